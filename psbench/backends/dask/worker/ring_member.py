"""A worker in the rings of All-Reduce: its replica, and its messages to neighbours or servers.

Servers that add up (`Adder`) take the place of the neighbours, and of nothing else. A ring leaves a sum
with every member. The next version is made from it when the coordinator says so, which first hears that all
have it: so a version is stamped after its ring, and a run that ends in the midst of one ends with the version
before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message, MessageRefused
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.messages import RingPiece, RingPlace, StartRing, Summand
from psbench.backends.dask.protocol.roles import Address, worker_name
from psbench.backends.dask.protocol.transport import ClientSocket, ServerSocket
from psbench.backends.dask.protocol.wire import PeerPatience
from psbench.backends.dask.server.parameter_server import of_part
from psbench.backends.dask.server.store import slice_of, state_of
from psbench.backends.dask.worker.mailbox import LOOK_S, Mailbox
from psbench.backends.dask.worker.ring_all_reduce import Ring, all_gather, all_reduce, reduce_scatter
from psbench.backends.partition import Partition, even_ranges, ring_shares
from psbench.core.arithmetic import Pushed
from psbench.strategies.codecs import decode, encode, over_the_wire
from psbench.strategies.codecs.base import Packed
from psbench.training.server import Server, added_up

#: seconds between looks for a message of the coordinator while waiting for a piece of a ring
_RING_LOOK_S = 0.02
#: prefix of the sums among the tensors of `TakeSum`
_SUM = "sum/"


class RingBroken(Exception):
    """A member of the ring was lost."""


class RingMember:
    """A worker as a member of rings.

    Parameters
    ----------
    worker : int
    mailbox : Mailbox
        Of the coordinator's messages.
    socket : ServerSocket
        Where the member before this one sends its pieces.
    key : bytes
        The run's key, for connections to other members.
    patience : PeerPatience
        How long these may be silent.

    Attributes
    ----------
    replica : Server
        Makes the same updates as every other member's.
    contribution : (payload, buffers) or None
        What this worker adds to the next ring.
    leave_out : callable
        Called with what an exchange has left out of the contribution.
    """

    def __init__(
        self, worker: int, mailbox: Mailbox, socket: ServerSocket, key: bytes, patience: PeerPatience
    ) -> None:
        self.worker, self.mailbox, self.socket = worker, mailbox, socket
        self._key, self._patience = key, patience
        self.replica: Server
        self.contribution: tuple[Tensor, Tensor] | None = None
        self.leave_out: Callable[[Tensor], None] = lambda residual: None
        self._codec = "none"
        self._servers: Sequence[ClientSocket] = ()
        self._gathers = 0
        self._place: RingPlace | None = None  # among those that hold the shares; None if it holds all
        self._whole: Tensor  # where they are gathered
        self._addresses: dict[int, Address] = {}
        self._neighbours: dict[int, ClientSocket] = {}
        self._finished = 0  # the last ring whose sum is here
        self._sum: Pushed | None = None
        self._pieces: dict[tuple[int, int], Tensor] = {}
        self._handlers: dict[type[Message], Callable[..., None]] = {
            msg.PeerAddresses: lambda order: self.set_addresses(order.addresses),
            StartRing: self._sum_up,
            msg.SendState: self._send_state,
            msg.SendPayload: self._send_payload,
            msg.ContributeZeros: self._add_nothing,
            msg.AbortRing: lambda order: self._give_verdict(order.ring),
            msg.LoadReplica: lambda order: self.replica.load(order.tensors),
            msg.KeepShare: self._keep_share,
            msg.MakeVersion: self._make_version,
            msg.SendSum: self._send_sum,
        }

    def begin(
        self, replica: Server, codec: str, servers: Sequence[ClientSocket] = (), gathers: int = 0
    ) -> None:
        """Start with a replica under a composition with that codec; `servers` sum, if given.

        Of a share of the model the others are gathered so often for a step; see `Shares.gathers`.
        """
        self.replica, self._codec, self._servers = replica, codec, servers
        self._gathers, self._place = gathers, None
        self.contribution = None

    @property
    def parameters(self) -> Tensor:
        """The model; a sharded worker's includes the shares it has gathered."""
        return self.replica.parameters if self._place is None else self._whole

    def _gather(self, place: RingPlace) -> None:
        """Gather the other members' shares of the version."""
        self._whole[ring_shares(len(self._whole), place.size)[place.place]] = self.replica.parameters
        for number in range(self._gathers):
            all_gather(self._whole, self._ring(place, self._finished, _first(place.size, 2 + number)))

    def _keep_share(self, order: msg.KeepShare) -> None:
        """Keep this worker's share of the replica, and the whole model during a step."""
        self._place = place = order.place
        self._whole = self.replica.parameters
        own = ring_shares(len(self._whole), place.size)[place.place]
        self.replica = _share_of(self.replica, Partition((own,)))

    def set_addresses(self, addresses: Mapping[int, Address]) -> None:
        """Set addresses of other workers; a new address means a new process."""
        for worker in list(self._neighbours):
            if addresses.get(worker, self._addresses[worker]) != self._addresses[worker]:
                self._neighbours.pop(worker).close()
        self._addresses |= addresses

    def contribute(self, payload: Tensor, buffers: Tensor) -> Tensor:
        """Set this worker's contribution to the next ring, and return its payload as decoded by receivers."""
        payload = over_the_wire(payload, self._codec)
        self.contribution = payload, buffers
        return payload

    def close(self) -> None:
        """Close the connections to the neighbours."""
        for neighbour in self._neighbours.values():
            neighbour.close()

    # ---------------------------------------------------------------- what the coordinator orders

    def handle(self, message: Message) -> None:
        """Execute the coordinator's order, if it concerns a ring."""
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(message)

    def _send_state(self, order: msg.SendState) -> None:
        self._reply(order.tag, state_of(self.replica, order.states))

    def _send_payload(self, order: msg.SendPayload) -> None:
        assert self.contribution is not None
        self._reply(order.tag, {"parameters": self.contribution[0], "buffers": self.contribution[1]})

    def _reply(self, tag: int, state: StateDict) -> None:
        self.mailbox.send(msg.StateReply(tag, state))

    def _add_nothing(self, order: msg.ContributeZeros) -> None:
        replica = self.replica
        own = (
            replica.parameters
            if order.fragment < 0
            else replica.fragments[order.fragment].of(replica.parameters)
        )
        is_model = replica.aggregation.payload == "parameters"
        self.contribute(own.clone() if is_model else torch.zeros_like(own), replica.buffers.clone())

    def _send_sum(self, order: msg.SendSum) -> None:
        assert self._sum is not None
        found = {"vector": self._sum.vector, **self._sum.more}
        self._reply(order.tag, {"buffers": self._sum.buffers} | {_SUM + name: t for name, t in found.items()})

    def _give_verdict(self, number: int) -> None:
        """Report whether the ring's sum is complete."""
        self.mailbox.send(msg.RingVerdict(number, self._finished >= number))

    # ---------------------------------------------------------------- the ring

    def _sum_up(self, order: StartRing) -> None:
        """Execute a ring; if a member is lost, follow the coordinator's orders."""
        while True:
            try:
                found, buffers = self._add_up(order)
            except RingBroken:
                settled = self._await_settlement()
                if isinstance(settled, StartRing):
                    order = settled
                    continue
                found = {n.removeprefix(_SUM): t for n, t in settled.tensors.items() if n.startswith(_SUM)}
                buffers = settled.tensors["buffers"]
            break
        self._sum = added_up(found, buffers, self.worker, [order.samples], order.steps)
        self._finished = order.ring
        self._give_verdict(order.ring)

    def _make_version(self, order: msg.MakeVersion) -> None:
        assert self._sum is not None
        assert self._finished == order.ring
        residual = None
        if self.contribution is not None:
            residual = self.replica.left_out(self.contribution[0], self._sum, order.update.numbers)
        self.replica.apply([self._sum], order.update)
        self._sum = None
        if self._place is not None:
            self._gather(self._place)
        if residual is not None:
            self.leave_out(residual)

    def _add_up(self, order: StartRing) -> tuple[Mapping[str, Tensor], Tensor]:
        """Execute this member's part in an exchange, one ring or round per sum.

        Buffers go with the first; or before it, by themselves, if it is a message or encoded.
        """
        assert self.contribution is not None
        payload, buffers = self.contribution
        self._pieces = {key: piece for key, piece in self._pieces.items() if key[0] >= order.ring}
        replica, none = self.replica, buffers[:0]
        if self._place is not None:
            return self._add_up_share(order, payload, buffers)
        exchange = replica.aggregation.exchange(payload, replica.state, replica.shapes, order.numbers)
        given, sums = next(exchange), 0
        beside = isinstance(given, Tensor) and self._codec == "none"
        if len(buffers) and not beside:
            _, buffers = self._total(order, none, buffers, 0)
            sums += 1
        while True:
            answer: Any
            if not isinstance(given, Tensor):
                answer = self._hand_round(order, given, sums)
            elif sums:
                answer, _ = self._total(order, given, none, sums)
            else:
                answer, buffers = self._total(order, given, buffers, 0)
            try:
                given, sums = exchange.send(answer), sums + 1
            except StopIteration as end:
                return end.value, buffers

    def _add_up_share(
        self, order: StartRing, payload: Tensor, buffers: Tensor
    ) -> tuple[Mapping[str, Tensor], Tensor]:
        """Return the sum of this worker's share, and of all buffers; the gradient is not kept."""
        place, self.contribution = order.place, None
        own = reduce_scatter(payload * order.weight, self._ring(place, order.ring, _first(place.size, 0)))
        if len(buffers):
            _, buffers = self._total(order, buffers[:0], buffers, 1)
        return {"vector": own.clone()}, buffers

    def _hand_round(self, order: StartRing, message: Packed, sums: int) -> list[tuple[float, Packed]]:
        """Return the messages of all members with their weights, after `sums` sums."""
        place, size, number = order.place.place, order.place.size, order.ring
        weights = order.weights or [order.weight] * size
        if self._servers:
            pieces = self._at_servers(order, torch.from_numpy(message), torch.empty(0))
            whole = torch.cat([piece.view(size, -1) for piece in pieces if len(piece)], dim=1)
            return list(zip(weights, whole.numpy(), strict=True))
        first, found = _first(size, sums), {place: message}
        for step in range(size - 1):
            piece = torch.from_numpy(found[(place - step) % size])
            self._neighbour(order.place.following).send(RingPiece(number, first + step, piece))
            found[(place - step - 1) % size] = self._await_piece(number, first + step).numpy()
        return [(weights[each], found[each]) for each in range(size)]

    def _total(self, order: StartRing, vector: Tensor, buffers: Tensor, sums: int) -> tuple[Tensor, Tensor]:
        """Return the members' weighted sum of a vector, and of buffers, which are never encoded."""
        codec = "none" if len(buffers) else self._codec
        if self._servers:
            first, *others = self._at_servers(order, encode(vector, codec), buffers)
            end = len(first) - len(buffers)
            parts = [decode(piece) for piece in (first[:end], *others)]
            return torch.cat(parts) if others else parts[0], decode(first[end:])
        both = vector * order.weight
        if len(buffers):
            both = torch.cat([both, buffers * order.share])
        self._reduce(order, both, sums, codec)
        return both[: len(vector)], both[len(vector) :]

    def _at_servers(self, order: StartRing, vector: Tensor, buffers: Tensor) -> list[Tensor]:
        """Let each server sum its part of a vector, the first also the buffers; return the results.

        Buffers alone are the first server's business.
        """
        servers = self._servers if len(vector) else self._servers[:1]
        cuts = even_ranges(len(vector), len(servers))
        for number, (cut, server) in enumerate(zip(cuts, servers, strict=True)):
            behind = buffers[:0] if number else buffers
            part = torch.cat([vector[cut], behind]) if len(behind) else vector[cut]
            facts = order.place.place, order.place.size, order.weight, order.share, len(behind)
            server.send(Summand(order.ring, number, *facts, part))
        return [self._await_piece(order.ring, number, server) for number, server in enumerate(servers)]

    def _reduce(self, order: StartRing, vector: Tensor, sums: int, codec: str) -> None:
        """Sum a vector over the members, in place, after `sums` sums of this exchange."""
        size, wired = order.place.size, None if codec == "none" else lambda piece: over_the_wire(piece, codec)
        places = order.levels or [order.place]
        rings = [
            self._ring(place, order.ring, _first(size, sums, level), codec)
            for level, place in enumerate(places)
        ]
        all_reduce(vector, rings, wired)

    def _ring(self, place: RingPlace, number: int, first: int, codec: str = "none") -> Ring:
        """Return this member's part in a ring whose pieces are numbered from step `first` on."""

        def send(step: int, piece: Tensor) -> None:
            self._neighbour(place.following).send(RingPiece(number, first + step, encode(piece, codec)))

        def receive(step: int) -> Tensor:
            return decode(self._await_piece(number, first + step))

        return Ring(place.place, place.size, place.pieces, send, receive)

    def _neighbour(self, worker: int) -> ClientSocket:
        if worker not in self._neighbours:
            address = self._addresses[worker]
            self._neighbours[worker] = ClientSocket(
                address, self._key, worker_name(self.worker), self._patience
            )
        return self._neighbours[worker]

    def _await_piece(self, number: int, step: int, server: ClientSocket | None = None) -> Tensor:
        """Wait for a piece of a ring, or for a server's answer."""
        while True:
            piece = self._pieces.pop((number, step), None)
            if piece is not None:
                return piece
            arrived = self._receive(server)
            if isinstance(arrived, RingPiece):
                if arrived.ring >= number:  # older ones are of a ring that was broken off
                    self._pieces[arrived.ring, arrived.step] = arrived.payload
            else:
                self._look_for_abort(number, _RING_LOOK_S if server in self._servers[:1] else 0)

    def _receive(self, server: ClientSocket | None = None) -> Message | None:
        if server is not None:  # what the first has sent is among the coordinator's messages
            return None if server is self._servers[0] else server.receive(_RING_LOOK_S)
        try:
            received = self.socket.receive(_RING_LOOK_S)
            return None if received is None else received.message
        except MessageRefused as error:
            self.mailbox.send(msg.PeerRefused(error.sender, error.reason))
            return None

    def _look_for_abort(self, number: int, wait_s: float) -> None:
        message = self.mailbox.next_new(wait_s)
        if message is None:
            self.mailbox.check()
        elif isinstance(message, RingPiece):
            if message.ring >= number:
                self._pieces[message.ring, message.step] = message.payload
        elif isinstance(message, msg.PeerAddresses):
            self.set_addresses(message.addresses)
        elif isinstance(message, msg.AbortRing) and message.ring == number:
            self._give_verdict(number)
            raise RingBroken
        else:
            self.mailbox.defer(message)

    def _await_settlement(self) -> StartRing | msg.TakeSum:
        """Wait for an order to repeat the ring without lost members, or for the sum of one that finished."""
        while True:
            message = self.mailbox.next_new(LOOK_S)
            if isinstance(message, StartRing | msg.TakeSum):
                return message
            if isinstance(message, msg.AbortRing):
                self._give_verdict(message.ring)
            elif isinstance(message, msg.PeerAddresses):
                self.set_addresses(message.addresses)
            elif message is not None:
                self.mailbox.defer(message)


def _first(size: int, sums: int, level: int = 0) -> int:
    """Return the number of the first step of a ring, after so many sums of an exchange of `size` members.

    Groups may be of different sizes, so it depends on the size of all.
    """
    return (2 * sums + level) * 2 * size


def _share_of(replica: Server, part: Partition) -> Server:
    """Return a server for these entries of a replica, with their states and all buffers."""
    state = slice_of(replica.tensors(), part, first=True)
    optimizer, batch = of_part(replica.spec, part), replica.global_batch
    made = Server(state["parameters"], state["buffers"], optimizer, batch, replica.aggregation)
    made.load_states(state)
    return made
