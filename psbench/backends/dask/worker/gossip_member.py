"""A live worker without a server: it sends its model to neighbours, and mixes theirs with its own.

What is mixed with what weights the coordinator says; models pass from worker to worker. Orders are carried
out one by one in the order in which the coordinator gave them to all, so that no circle of workers waits. A
worker that computes carries out an order for a pair at the end of its step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from psbench.backends.checkpointing import named, under
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.messages import (
    MixModels,
    PeerModel,
    PushMessage,
    ReleaseMessage,
    RingPiece,
)
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.protocol.transport import ClientSocket
from psbench.backends.dask.worker.exchange import WorkerExchange
from psbench.backends.dask.worker.mailbox import LOOK_S, Mailbox
from psbench.backends.dask.worker.ring_all_reduce import all_reduce
from psbench.backends.dask.worker.ring_member import RingBroken, RingMember
from psbench.core.events import Push
from psbench.core.peer_to_peer import NeighbourMixing, PeerToPeer, sends_before_step
from psbench.core.strategy import Strategy
from psbench.training.build import Workload
from psbench.training.local_model import LocalModel
from psbench.training.mixing import Mixer
from psbench.training.server import all_finite

#: versions of its model that a worker keeps after sending them, for a checkpoint
_KEPT = 2


class GossipMember(RingMember):
    """A worker among neighbours; see `RingMember` for sockets and addresses.

    Attributes
    ----------
    mixed : (parameters, buffers) or None
        What the worker goes on from when it is released.
    ticket : int
        Of its last release.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # models of others, by worker, by version or key, and by the first release that they are for
        self._arrived: dict[tuple[int, int, int], StateDict] = {}
        self.ticket = -1
        self._lost_at: dict[int, int] = {}  # by worker: no earlier order waits for its models
        self._unreachable = set[int]()  # none is sent to them
        self._has_begun = False
        self._meeting: MixModels | None = None  # the group with which it adds up models now

    def set_addresses(self, addresses: Mapping[int, Address]) -> None:
        """Set addresses of other workers; see `RingMember`."""
        super().set_addresses(addresses)
        self._unreachable.difference_update(addresses)

    def compose(self, composition: Strategy, workload: Workload, model: LocalModel) -> None:
        """Set the composition and its empty model; messages of other workers may already belong to it."""
        self._composition, self._workload, self._model = composition, workload, model
        self._mixer = Mixer(composition.aggregation, workload.experiment.batch_size)
        self._order: MixModels | None = None
        self.mixed: tuple[Tensor, Tensor] | None = None
        self._sent: dict[int, StateDict] = {}
        self._handlers = {
            msg.PeerAddresses: lambda order: self.set_addresses(order.addresses),
            MixModels: self._take_order,
            msg.GiveModel: self._give,
            msg.SendAgain: lambda order: self._send_again({order.to}, order.ticket),
            msg.NeighbourLost: self._note_lost,
        }

    # ---------------------------------------------------------------- sending

    def spread(self, version: int, parameters: Tensor | None = None) -> None:
        """Send the worker's model of a version to its neighbours, or the corrupted `parameters`."""
        own = {name: tensor.clone() for name, tensor in self._own().items()}
        if parameters is not None:
            own["parameters"] = parameters.clone()
        self._sent[version] = own
        for old in [number for number in self._sent if number <= version - _KEPT]:
            del self._sent[old]
        for other in self._receivers(version):
            self._send(other, version, own)

    def _receivers(self, version: int) -> list[int]:
        placement = self._composition.placement
        assert isinstance(placement, PeerToPeer)
        return placement.receivers(self.worker, version, self._workload.profile.num_workers)

    def _give(self, order: msg.GiveModel) -> None:
        self._send(order.to, order.key, self._own())

    def _own(self) -> StateDict:
        return {"parameters": self._model.parameters, "buffers": self._model.buffers}

    def _send(self, other: int, key: int, model: StateDict, ticket: int = -1) -> None:
        if other in self._unreachable or other not in self._addresses:
            return
        try:
            self._neighbour(other).send(PeerModel(self.worker, key, model, ticket))
        except OSError:
            self._unreachable.add(other)  # the coordinator will say that it is gone

    # ---------------------------------------------------------------- mixing

    def _take_order(self, order: MixModels) -> None:
        if order.worker == self.worker:
            if _is_to_begin(order) and len(self._model.parameters):
                return  # the giver was lost after it had given
            self._order = order  # carried out with the release that follows, or before a checkpoint
            return
        mixed = self._mix(order)
        if mixed is not None:
            self._model.parameters.copy_(mixed[0])

    def settle(self) -> None:
        """Execute the order that the next release depends on."""
        order, self._order = self._order, None
        if order is not None:
            self.mixed = self._mix(order)

    def _mix(self, order: MixModels) -> tuple[Tensor, Tensor] | None:
        """Wait for other workers' models, and return the mixture; lost models' weights go to this worker.

        None if the worker was to begin with the model of one that is lost, and is halted before another gives
        its own, or if one is lost with whom it adds up models.
        """
        if order.meet:
            return self._meet(order)
        if order.key < 0 and self.worker in order.row:  # a pair: both send what they have now
            for other in order.row.keys() - {self.worker}:
                self._send(other, order.key, self._own())
        found = {other: self._await(other, order) for other in order.row if other != self.worker}
        row = {other: weight for other, weight in order.row.items() if found.get(other, True) is not None}
        if self.worker in row:
            row[self.worker] += sum(order.row.values()) - sum(row.values())
        elif not row:
            other_order = self._await_another_giver()
            return None if other_order is None else self._mix(other_order)
        models = [self._own() if other == self.worker else found[other] for other in row]
        pairs = [(model["parameters"], model["buffers"]) for model in models if model is not None]
        for name in [name for name in self._arrived if 0 <= name[1] < order.key and name[2] <= self.ticket]:
            del self._arrived[name]
        return self._mixer.mix(self.worker, pairs, row)

    def _meet(self, order: MixModels) -> tuple[Tensor, Tensor] | None:
        """Add up the models of a group in a ring; None, for the worker's own model, if a member is lost."""
        members = [other for other in order.row if other not in order.lost]
        left = sum(order.row[other] for other in members)
        weight, count = order.row[self.worker] / left, len(self._model.parameters)
        vector = torch.cat([self._model.parameters, self._model.buffers]) * weight
        place, size = members.index(self.worker), len(members)
        own = msg.RingPlace(place, size, size, members[(place + 1) % size])
        self._meeting = order
        try:
            all_reduce(vector, [self._ring(own, order.number, 0)])
        except (RingBroken, OSError):
            return None
        finally:
            self._meeting = None
            self._pieces = {key: piece for key, piece in self._pieces.items() if key[0] > order.number}
        return vector[:count], vector[count:]

    def _look_for_abort(self, number: int, wait_s: float) -> None:
        """Look for the loss of a ring member, as `_await` does for a model."""
        self._hear_of_loss()
        order = self._meeting
        assert order is not None
        if any(self._lost_at.get(other, -1) > number for other in order.row if other not in order.lost):
            raise RingBroken

    def _receive(self, server: ClientSocket | None = None) -> Message | None:
        """Keep the models of others, and the pieces of rings that may be of a later order."""
        arrived = super()._receive(server)
        if isinstance(arrived, PeerModel):
            self._arrived[arrived.worker, arrived.key, arrived.ticket] = arrived.tensors
        elif isinstance(arrived, RingPiece):
            self._pieces[arrived.ring, arrived.step] = arrived.payload
        return arrived

    def _await(self, other: int, order: MixModels) -> StateDict | None:
        """Return the model of another worker; None if it is lost and has not sent it."""
        while True:
            model = self._take(other, order.key)
            if model is not None or other in order.lost or self._lost_at.get(other, -1) > order.number:
                return model
            if self._receive() is None:
                self._hear_of_loss()

    def _hear_of_loss(self) -> None:
        """Take the coordinator's next message, while another worker is awaited."""
        message = self.mailbox.next_new(0)
        if message is None:
            self.mailbox.check()
        elif isinstance(message, msg.NeighbourLost):
            self._note_lost(message)
        elif isinstance(message, msg.PeerAddresses):
            self.set_addresses(message.addresses)
        elif isinstance(message, msg.GiveModel) and message.at_once:
            self._give(message)
        else:
            self.mailbox.defer(message)

    def _take(self, other: int, key: int) -> StateDict | None:
        """Return and remove a received model; keep one that is for a later release."""
        for name in self._arrived:
            if name[:2] == (other, key) and name[2] <= self.ticket:
                return self._arrived.pop(name)
        return None

    def _await_another_giver(self) -> MixModels | None:
        """Return the order to start from another worker's model; None if a halt comes first."""
        while not self.mailbox.has_deferred(msg.Halt):
            message = self.mailbox.next_new(LOOK_S)
            if isinstance(message, MixModels) and _is_to_begin(message):
                return message
            if isinstance(message, msg.NeighbourLost):
                self._note_lost(message)
            elif isinstance(message, msg.PeerAddresses):
                self.set_addresses(message.addresses)
            elif message is not None:
                self.mailbox.defer(message)
        return None

    def _note_lost(self, message: msg.NeighbourLost) -> None:
        self._lost_at[message.worker] = message.number
        self._unreachable.add(message.worker)

    # ---------------------------------------------------------------- checkpoints

    def state(self) -> StateDict:
        """Return the model, the mixed model to continue from, and the models sent and received."""
        self.settle()
        found = named("model/", self._model.state_dict())
        if self.mixed is not None:
            found |= {"mixed/parameters": self.mixed[0], "mixed/buffers": self.mixed[1]}
        for version, model in self._sent.items():
            found |= named(f"sent/{version}/", model)
        for (other, key, _), model in self._arrived.items():
            if key >= 0:  # else of one exchange, whose number is given again when the run is resumed
                found |= named(f"arrived/{other}/{key}/", model)
        if (state := self._mixer.states.get(self.worker)) is not None:
            found |= named("mixing/", state.tensors())
        return {name: tensor.clone() for name, tensor in found.items()}

    def restore(self, tensors: StateDict) -> None:
        """Restore the state that `state` returned, except the model; repeat the sent messages."""
        if mixed := under("mixed/", tensors):
            self.mixed = mixed["parameters"], mixed["buffers"]
        for name in {name.rpartition("/")[0] for name in under("arrived/", tensors)}:
            other, key = map(int, name.split("/"))
            self._arrived[other, key, -1] = under(f"arrived/{name}/", tensors)
        if state := under("mixing/", tensors):
            self._mixer.load(self.worker, state)
        for version in sorted({int(name.partition("/")[0]) for name in under("sent/", tensors)}):
            self._sent[version] = under(f"sent/{version}/", tensors)

    def begin_training(self) -> None:
        """Repeat the messages that a checkpoint lists as sent; they are stored nowhere else."""
        if not self._has_begun:
            self._has_begun = True
            self._send_again(range(self._workload.profile.num_workers))

    def _send_again(self, workers: Collection[int], ticket: int = -1) -> None:
        """Repeat the latest messages to these workers, for that release and later ones."""
        for version, model in self._sent.items():
            for other in self._receivers(version):
                if other in workers:
                    self._send(other, version, model, ticket)


def _is_to_begin(order: MixModels) -> bool:
    return order.key < 0 and order.worker not in order.row


class GossipExchange(WorkerExchange):
    """Exchanges of a worker without a server: its model to neighbours, a mixture from them."""

    def __init__(
        self,
        member: GossipMember,
        composition: Strategy,
        workload: Workload,
        model: LocalModel,
        mailbox: Mailbox,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(mailbox, clock, None)
        self._member, self._model, self._workload = member, model, workload
        self._sends_first = sends_before_step(composition.communication)
        self._by_neighbours = isinstance(composition.aggregation, NeighbourMixing)
        member.compose(composition, workload, model)

    def push(self, push: Push, payload: Tensor, buffers: Tensor) -> Callable[[], Tensor | None]:
        """Report to the coordinator, and send the payload to the neighbours."""
        is_finite = math.isfinite(push.loss) and all_finite(payload)
        if self._by_neighbours and not self._sends_first and is_finite:
            self._member.spread(push.base_version, payload)
        self._mailbox.send(PushMessage.of(push, self._clock(), is_finite))
        return lambda: payload

    def model(self, release: ReleaseMessage) -> tuple[Tensor, Tensor] | tuple[()]:
        """Return the mixture; empty if the worker continues from its own model after a cancelled step."""
        self._member.ticket = release.ticket
        self._member.settle()
        mixed, self._member.mixed = self._member.mixed, None
        if mixed is not None:
            return mixed
        if len(self._model.parameters):
            return ()
        server = self._workload.server()  # all begin with the same
        return server.parameters, server.buffers

    def began(self, version: int) -> None:
        """Send the neighbours the model from which a step starts, if the composition exchanges it."""
        if self._by_neighbours and self._sends_first:
            self._member.spread(version)

    def checkpoint(self, waits: bool) -> tuple[StateDict, dict[str, Any]]:
        """Return the worker's model, and the models that neighbours may still request."""
        return self._member.state(), {"ready_s": None}

    def restore(self, tensors: StateDict, plain: dict[str, Any]) -> None:
        self._member.restore(tensors)
