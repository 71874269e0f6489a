"""A worker's place in the rings of All-Reduce: its replica of the model, and the links to its neighbours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from psbench.backends.dask.protocol.messages import PIECE, decode_piece, encode_piece
from psbench.backends.dask.protocol.roles import worker_name
from psbench.backends.dask.protocol.transport import (
    JSON,
    Address,
    ClientSocket,
    Message,
    ServerSocket,
    pack,
    unpack,
)
from psbench.backends.dask.server.store import State, restore, state_of
from psbench.backends.dask.worker.mailbox import LOOK_S, Mailbox
from psbench.backends.dask.worker.ring_all_reduce import all_reduce
from psbench.codecs import decode, encode, over_the_wire
from psbench.training.server import Server

#: seconds between looks for a word of the conductor's while waiting for a piece of a ring
_RING_LOOK_S = 0.02


class RingBroken(Exception):
    """A member of the ring was lost."""


class RingMember:
    """A worker as a member of rings.

    Parameters
    ----------
    worker : int
    mail : Mail
        From the conductor.
    hub : Hub
        Where the member before us sends its pieces.
    key : bytes
        The run's key, for links to other members.

    Attributes
    ----------
    replica : Server
        Makes the same updates as every other member's.
    mine : (payload, buffers) or None
        What we have to add to the next ring.
    """

    def __init__(self, worker: int, mail: Mailbox, hub: ServerSocket, key: bytes) -> None:
        self.worker, self.mail, self.hub = worker, mail, hub
        self._key = key
        self.replica: Server
        self.mine: tuple[Tensor, Tensor] | None = None
        self._codec = "none"
        self._roster: dict[int, Address] = {}
        self._neighbours: dict[int, ClientSocket] = {}
        self._finished = 0
        self._pieces: dict[tuple[int, int], Tensor] = {}

    def begin(self, replica: Server, codec: str) -> None:
        """Begin with a replica, under a composition with that codec."""
        self.replica, self._codec = replica, codec
        self.mine = None

    def meet(self, roster: dict[str, list[str] | None]) -> None:
        """Hear where the members listen."""
        self._roster = {int(worker): Address(*ring) for worker, ring in roster.items() if ring}

    def close(self) -> None:
        """Close the links to our neighbours."""
        for neighbour in self._neighbours.values():
            neighbour.close()

    # ---------------------------------------------------------------- what the conductor orders

    def obey(self, plain: dict[str, Any], letter: Message) -> None:
        """Do what the conductor orders, if it is for members of rings."""
        order = plain["do"]
        if order == "ring":
            self._ring(plain)
        elif order == "state":
            self._tell(plain["tag"], state_of(self.replica, plain["optimizer"]))
        elif order == "payload":
            assert self.mine is not None
            self._tell(plain["tag"], {"parameters": self.mine[0], "buffers": self.mine[1]})
        elif order == "abort":
            self._judge(plain["ring"])
        elif order == "load":
            self._take_over(unpack(plain["shapes"], letter.payload), plain["ring"])

    def _tell(self, tag: int, state: State) -> None:
        shapes, flat = pack(state)
        self.mail.tell({"do": "keeper", "tag": tag, "shapes": shapes}, flat)

    def _take_over(self, state: State, ring: int) -> None:
        restore(self.replica, state)
        self._finished = ring

    # ---------------------------------------------------------------- the ring

    def _ring(self, order: dict[str, Any]) -> None:
        """Add up the members' payloads and make the update; if a member is lost, as the conductor says."""
        while True:
            try:
                payload, buffers = self._add_up(order)
            except RingBroken:
                again = self._await_settlement()
                if again is None:
                    return  # we were given the model
                order = again
            else:
                break
        self.replica.apply([payload], [1.0], **order["update"])
        self.replica.merge_buffers([buffers], [sum(order["samples"])])
        self._finished = order["ring"]

    def _add_up(self, order: dict[str, Any]) -> tuple[Tensor, Tensor]:
        assert self.mine is not None
        members: list[int] = order["members"]
        place, size, number = members.index(self.worker), len(members), order["ring"]
        payload, buffers = self.mine
        if size == 1 and order["weights"][0] == 1.0:
            return payload, buffers
        share = order["samples"][place] / sum(order["samples"])
        vector = torch.cat([payload * order["weights"][place], buffers * share])
        following = self._neighbour(members[(place + 1) % size])
        self._pieces = {key: piece for key, piece in self._pieces.items() if key[0] >= number}
        codec = self._codec
        all_reduce(
            *(vector, place, size),
            lambda step, piece: following.send(PIECE, encode_piece(number, step), encode(piece, codec)),
            lambda step: decode(self._await_piece(number, step)),
            None if codec == "none" else lambda piece: over_the_wire(piece, codec),
        )
        return vector[: len(payload)], vector[len(payload) :]

    def _neighbour(self, worker: int) -> ClientSocket:
        if worker not in self._neighbours:
            self._neighbours[worker] = ClientSocket(self._roster[worker], self._key, worker_name(self.worker))
        return self._neighbours[worker]

    def _await_piece(self, number: int, step: int) -> Tensor:
        while True:
            piece = self._pieces.pop((number, step), None)
            if piece is not None:
                return piece
            letter = self.hub.receive(_RING_LOOK_S)
            if letter is None:
                self._look_for_abort(number)
            elif letter.kind == PIECE:
                key = decode_piece(letter.body)
                if key[0] >= number:  # older ones are of a ring that was broken off
                    self._pieces[key] = torch.empty(0) if letter.payload is None else letter.payload

    def _look_for_abort(self, number: int) -> None:
        letter = self.mail.fresh(0)
        if letter is None:
            self.mail.check()
        elif letter.kind == JSON and letter.plain["do"] == "abort" and letter.plain["ring"] == number:
            self._judge(number)
            raise RingBroken
        else:
            self.mail.keep(letter)

    def _judge(self, number: int) -> None:
        """Tell whether we came to the end of a ring that lost a member."""
        self.mail.tell({"do": "keeper", "ring": number, "verdict": self._finished >= number})

    def _await_settlement(self) -> dict[str, Any] | None:
        """Wait to be told to do the ring again with others, or be given the model that it made (None)."""
        while True:
            letter = self.mail.fresh(LOOK_S)
            if letter is None:
                continue
            plain: dict[str, Any] = letter.plain if letter.kind == JSON else {"do": ""}
            if plain["do"] == "ring":
                return plain
            if plain["do"] == "load":
                self._take_over(unpack(plain["shapes"], letter.payload), plain["ring"])
                return None
            if plain["do"] == "abort":
                self._judge(plain["ring"])
            else:
                self.mail.keep(letter)
