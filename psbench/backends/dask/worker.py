"""A training worker: computes a step from the model it is given, sends the gradient, and waits to go on."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch
from torch import Tensor

from psbench.backends.dask.conductor import servers_of
from psbench.backends.dask.keeper import State, restore, state_of
from psbench.backends.dask.letters import PIECE, PUSH, RELEASE, Pushed, Released, decode_piece, encode_piece
from psbench.backends.dask.names import worker_name
from psbench.backends.dask.ring import all_reduce
from psbench.backends.dask.slices import slices
from psbench.backends.dask.wire import JSON, Address, Hub, Letter, Link, pack, unpack
from psbench.errors import BackendError
from psbench.problem import Problem
from psbench.server_math import Server, finite
from psbench.worker_math import StepResult

#: seconds between looks whether the conductor is still there, while there is nothing to do
_LOOK_S = 0.25
#: seconds between looks for a word of the conductor's while waiting for a piece of a ring
_RING_LOOK_S = 0.02
#: exchanges that the clocks' difference is taken from: the quickest counts
_CLOCK_ROUNDS = 5


class Stopped(Exception):
    """The conductor has sent us home."""


class Abandoned(Stopped):
    """The conductor is gone."""


class _RingBroken(Exception):
    """A member of the ring was lost."""


class Worker:
    """One training worker.

    Parameters
    ----------
    problem : Problem
    worker : int
    link : Link
        To the conductor.
    others : list of Link
        To the server shards but the first, in order.
    hub : Hub or None
        Where the member before us in a ring sends its pieces; None if no composition has rings.
    key : bytes
        The run's key, for links to other members.
    """

    def __init__(
        self, problem: Problem, worker: int, link: Link, others: list[Link], hub: Hub | None, key: bytes
    ) -> None:
        self.problem, self.worker, self.link, self.others, self.hub = problem, worker, link, others, hub
        self._key = key
        self.trainer = problem.trainer()
        self._parameters, self._buffers = problem.parameters, problem.buffers
        self._stash: deque[Letter] = deque()
        self._offset_s = self._begin_s = 0.0
        self._roster: dict[int, Address] = {}
        self._neighbours: dict[int, Link] = {}
        self._replica: Server | None = None
        self._mine: StepResult | None = None
        self._finished_ring = 0
        self._pieces: dict[tuple[int, int], Tensor] = {}
        self._slowness = _slowness(problem, worker)
        self._compose(0)

    def run(self) -> None:
        """Work until the conductor says stop.

        Raises
        ------
        Stopped
            Always, at the end.
        """
        self._set_clock()
        ring = list(self.hub.address) if self.hub is not None else None
        self.link.tell({"do": "ready", "ring": ring})
        try:
            while True:
                self._step(self._await_release())
        finally:
            for neighbour in self._neighbours.values():
                neighbour.close()

    # ---------------------------------------------------------------- a step

    def _step(self, released: Released) -> None:
        began = time.perf_counter()
        job = self.trainer.start(self.worker, released.samples)
        result = self.trainer.result(job, self._parameters, self._buffers)
        is_finite = abs(result.loss) < float("inf") and finite(result.gradient)
        computed = time.perf_counter() - began
        if self._interrupted(computed * (self._slow_factor(began) - 1.0)):
            return  # void: a newer release has come
        compute_s = time.perf_counter() - began
        self._push(released, result, compute_s, is_finite)

    def _slow_factor(self, began: float) -> float:
        """Return how many times as long as here a step takes on the emulated machine."""
        factor, spells = self._slowness
        if spells:
            at = began - time.perf_counter() + time.monotonic() + self._offset_s - self._begin_s
            for from_s, to_s, times in spells:
                factor *= times if from_s <= at < to_s else 1.0
        return max(1.0, factor)

    def _interrupted(self, seconds: float) -> bool:
        """Wait so long, or until a new release makes the work void; obey other orders meanwhile."""
        if seconds <= 0 and not self.link.has_letter:
            return False  # nearly always, and much quicker to find out than by trying to read
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            letter = self._receive(min(max(0.0, left), _LOOK_S))
            if letter is None:
                if left <= 0:
                    return False
            elif letter.kind == RELEASE:
                self._stash.append(letter)
                return True
            else:
                self._obey(letter)

    def _push(self, released: Released, result: StepResult, compute_s: float, is_finite: bool) -> None:
        sent_s = time.monotonic() + self._offset_s
        told = Pushed(
            released.ticket, released.version, released.samples, compute_s, sent_s, result.loss, is_finite
        )
        body = told.encode()
        if self._replica is not None:
            self._mine = result
            self.link.send(PUSH, body)
            return
        parts = [result.gradient[part] for part in self._slices]
        for other, part in zip(self._serving, parts[1:], strict=True):
            other.send(PUSH, body, part)
        first = torch.cat([parts[0], result.buffers]) if len(result.buffers) else parts[0]
        self.link.send(PUSH, body, first)

    # ---------------------------------------------------------------- letters

    def _receive(self, timeout_s: float) -> Letter | None:
        letter = self.link.receive(timeout_s)
        if letter is None and timeout_s and self.link.lost:
            raise Abandoned("the conductor is gone")
        return letter

    def _await_release(self) -> Released:
        while True:
            letter = self._stash.popleft() if self._stash else self._receive(_LOOK_S)
            if letter is None:
                continue
            if letter.kind == RELEASE:
                released = Released.decode(letter.body)
                if released.fresh:
                    self._load(released, letter.payload)
                return released
            self._obey(letter)

    def _load(self, released: Released, payload: Tensor | None) -> None:
        """Take over the model that comes with a release, from all servers."""
        assert payload is not None
        length = self._slices[0].stop
        self._buffers = payload[length:]
        parts = [payload[:length]]
        parts += [self._part(other, released.ticket) for other in self._serving]
        self._parameters = parts[0] if len(parts) == 1 else torch.cat(parts)

    def _part(self, other: Link, ticket: int) -> Tensor:
        """Wait for another server's part of the answer; older ones are of work that was made void."""
        while True:
            letter = other.receive(_LOOK_S)
            if letter is not None and letter.kind == RELEASE:
                assert letter.payload is not None
                if Released.decode(letter.body).ticket == ticket:
                    return letter.payload
            elif letter is None:
                self._look()

    def _look(self) -> None:
        """Take a word of the conductor's while waiting for somebody else."""
        letter = self._receive(0)
        if letter is not None:
            self._obey_or_keep(letter)
        elif self.link.lost:
            raise Abandoned("the conductor is gone")

    def _obey_or_keep(self, letter: Letter) -> None:
        if letter.kind == JSON and letter.plain["do"] == "stop":
            raise Stopped
        self._stash.append(letter)

    def _obey(self, letter: Letter) -> None:
        if letter.kind != JSON:
            return  # a ping
        plain = letter.plain
        order = plain["do"]
        if order == "stop":
            raise Stopped
        if order == "ring":
            self._ring(plain)
        elif order == "state":
            self._tell_state(plain)
        elif order == "abort":
            self._judge(plain["ring"])
        elif order == "load":
            self._take_over(unpack(plain["shapes"], letter.payload), plain["ring"])
        elif order == "compose":
            self._compose(plain["composition"])
        elif order == "start":
            self._start(plain)

    def _start(self, plain: dict[str, Any]) -> None:
        self._begin_s = plain["begin_s"]
        self._roster = {int(w): Address(*ring) for w, ring in plain["ring"].items() if ring}

    def _set_clock(self) -> None:
        """Find what to add to our clock to get the conductor's (Cristian's algorithm)."""
        quickest = float("inf")
        for _ in range(_CLOCK_ROUNDS):
            asked = time.monotonic()
            self.link.tell({"do": "clock"})
            answer = self._await_clock()
            took = time.monotonic() - asked
            if took < quickest:
                quickest, self._offset_s = took, answer - (asked + took / 2)

    def _await_clock(self) -> float:
        while True:
            letter = self._receive(_LOOK_S)
            if letter is not None and letter.kind == JSON:
                plain = letter.plain
                if plain["do"] == "clock":
                    return float(plain["time_s"])
                self._obey_or_keep(letter)

    # ---------------------------------------------------------------- placement

    def _compose(self, index: int) -> None:
        """Work for another composition: with servers, or with a replica of our own."""
        problem = self.problem
        composition = problem.experiment.strategy.compositions[index]
        count = servers_of(composition)
        self._slices = slices(len(self._parameters), max(1, count))
        self._serving = self.others[: max(0, count - 1)]
        if count:
            self._replica = None  # its model is still ours, as parameters and buffers
            return
        self._replica = problem.server()
        restore(self._replica, {"parameters": self._parameters, "buffers": self._buffers})
        self._parameters, self._buffers = self._replica.parameters, self._replica.buffers

    def _tell_state(self, plain: dict[str, Any]) -> None:
        assert self._replica is not None
        shapes, flat = pack(state_of(self._replica, plain["optimizer"]))
        self.link.tell({"do": "keeper", "tag": plain["tag"], "shapes": shapes}, flat)

    def _take_over(self, state: State, ring: int) -> None:
        assert self._replica is not None
        restore(self._replica, state)
        self._finished_ring = ring

    # ---------------------------------------------------------------- the ring

    def _ring(self, order: dict[str, Any]) -> None:
        """Add up the members' gradients and make the update; if a member is lost, as the conductor says."""
        while True:
            try:
                gradient, buffers = self._add_up(order)
            except _RingBroken:
                again = self._await_settlement()
                if again is None:
                    return  # we were given the model
                order = again
            else:
                break
        assert self._replica is not None
        self._replica.apply([gradient], [1.0], **order["update"])
        self._replica.merge_buffers([buffers], [sum(order["samples"])])
        self._finished_ring = order["ring"]

    def _add_up(self, order: dict[str, Any]) -> tuple[Tensor, Tensor]:
        assert self._mine is not None
        members: list[int] = order["members"]
        place, size, number = members.index(self.worker), len(members), order["ring"]
        gradient, buffers = self._mine.gradient, self._mine.buffers
        if size == 1 and order["weights"][0] == 1.0:
            return gradient, buffers
        share = order["samples"][place] / sum(order["samples"])
        vector = torch.cat([gradient * order["weights"][place], buffers * share])
        following = self._neighbour(members[(place + 1) % size])
        self._pieces = {key: piece for key, piece in self._pieces.items() if key[0] >= number}
        all_reduce(
            *(vector, place, size),
            lambda step, piece: following.send(PIECE, encode_piece(number, step), piece),
            lambda step: self._await_piece(number, step),
        )
        return vector[: len(gradient)], vector[len(gradient) :]

    def _neighbour(self, worker: int) -> Link:
        if worker not in self._neighbours:
            self._neighbours[worker] = Link(self._roster[worker], self._key, worker_name(self.worker))
        return self._neighbours[worker]

    def _await_piece(self, number: int, step: int) -> Tensor:
        assert self.hub is not None
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
        letter = self._receive(0)
        if letter is None:
            if self.link.lost:
                raise Abandoned("the conductor is gone")
        elif letter.kind == JSON and letter.plain["do"] == "abort" and letter.plain["ring"] == number:
            self._judge(number)
            raise _RingBroken
        else:
            self._obey_or_keep(letter)

    def _judge(self, number: int) -> None:
        """Tell whether we came to the end of a ring that lost a member."""
        self.link.tell({"do": "keeper", "ring": number, "verdict": self._finished_ring >= number})

    def _await_settlement(self) -> dict[str, Any] | None:
        """Wait to be told to do the ring again with others, or be given the model that it made (None)."""
        while True:
            letter = self._receive(_LOOK_S)
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
                self._obey_or_keep(letter)


def _slowness(problem: Problem, worker: int) -> tuple[float, list[tuple[float, float, float]]]:
    """Return how many times slower a worker is than the fastest, and its slow spells."""
    profile = problem.profile
    spells = [(slow.from_s, slow.to_s, slow.factor) for slow in profile.slowdowns if slow.worker == worker]
    return max(profile.speed) / profile.speed[worker], spells


__all__ = ["Abandoned", "BackendError", "Stopped", "Worker"]
