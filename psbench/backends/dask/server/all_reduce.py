"""All-Reduce: every worker keeps the model, and the conductor tells them when to add up their payloads.

A ring that loses a member is settled among the survivors. All are asked whether they came to its end. If
one did, the version exists, and those who did not get it from that one. If none did, the survivors do the
ring again with their own payloads, weighted so that the weights still have the same sum.

Who was not in the last ring (it joined, came back, or was dropped for a while) is given the model by
another before it goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from psbench.backends.dask.protocol.messages import RELEASE, ReleaseMessage
from psbench.backends.dask.protocol.roles import worker_name, worker_number
from psbench.backends.dask.protocol.transport import ServerSocket, pack, unpack
from psbench.backends.dask.server.store import State, Then, ThenNumber, update_of
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.errors import WorkerLost


@dataclass
class _Ring:
    """A ring that some members may not have finished."""

    order: dict[str, Any]
    doubtful: set[int]
    #: what the survivors answered; empty while nobody asks
    verdicts: dict[int, bool | None] = field(default_factory=dict)

    @property
    def members(self) -> list[int]:
        members: list[int] = self.order["members"]
        return members


@dataclass
class _Request:
    """A state, or what a push carries, that a worker was asked for."""

    plain: dict[str, Any]
    then: Then
    #: whom to ask; None for anybody who has the current version
    of: int | None = None
    worker: int = -1


class AllReduceStore:
    """The keeper under All-Reduce.

    Parameters
    ----------
    hub : Hub
    workers : list of int
        Those who are there.
    state : State or None
        What every replica begins with; None if they have it already.
    numbers : iterator of int
        Numbers for rings and requests that nobody had before in this run.
    """

    def __init__(
        self, hub: ServerSocket, workers: list[int], state: State | None, numbers: Iterator[int]
    ) -> None:
        self._hub = hub
        self._alive = sorted(workers)
        self._current = set(workers)  # whose replica is of the current version
        self._ring: _Ring | None = None
        self._numbers = numbers
        self._requests: dict[int, _Request] = {}
        self.movement = math.inf  # nobody measures it; an experiment that asks for it is refused
        self._gift = -1  # the request whose answer goes to those who did not finish a ring
        if state is not None:
            for worker in self._alive:
                self._load(worker, state, 0)

    def take(self, push: Push, payload: Tensor | None) -> None:
        """Know that the pusher has finished the last ring."""
        if self._ring is not None:
            self._ring.doubtful.discard(push.worker)
            if not self._ring.doubtful:
                self._ring = None

    def apply(self, apply: act.Apply) -> None:
        """Have the pushers that are alive add up their payloads, and make the same update each."""
        there = [i for i, push in enumerate(apply.pushes) if push.worker in self._alive]
        if not there:
            raise WorkerLost("every worker that was to make the next version is gone")
        weights = [apply.weights[i] for i in there]
        scale = sum(apply.weights) / sum(weights) if len(there) < len(apply.pushes) else 1.0
        self._start(
            {
                "do": "ring",
                "members": [apply.pushes[i].worker for i in there],
                "weights": [weight * scale for weight in weights],
                "samples": [apply.pushes[i].samples for i in there],
                "version": apply.version,
                "update": update_of(apply),
            }
        )

    def _start(self, order: dict[str, Any]) -> None:
        order["ring"] = next(self._numbers)
        self._ring = _Ring(order, set(order["members"]))
        self._current = set(order["members"])
        for worker in order["members"]:
            self._tell(worker, order)

    def release(self, release: act.Release, samples: int) -> None:
        """Let a worker go on from its own replica, which it is given first if it has missed a version."""
        worker, body = release.worker, ReleaseMessage.of(release, samples).encode()
        if worker in self._current:
            self._hub.send(worker_name(worker), RELEASE, body)
            return

        def welcome(state: State) -> None:
            self._load(worker, state, 0)
            self._current.add(worker)
            self._hub.send(worker_name(worker), RELEASE, body)

        self._request(_Request({"do": "state", "optimizer": True}, welcome))

    def discard(self, push: Push) -> None:
        """Nothing was sent with the push."""

    def gather(self, optimizer: bool, then: Then) -> None:
        """Ask a worker for its replica."""
        self._request(_Request({"do": "state", "optimizer": optimizer}, then))

    def record(self, keys: Sequence[tuple[int, int]], then: Then) -> None:
        """Ask a worker for its replica; at a barrier no push waits when there is a new version."""
        self.gather(True, then)

    @property
    def wire(self) -> dict[str, int]:
        """Nothing is written with chance."""
        return {"draws": -1, "aggregates": 0}

    def payload(self, push: Push, then: Then) -> None:
        """Ask the pusher for what it has to add to the next ring; nothing comes of it if it is lost."""
        self._request(_Request({"do": "payload"}, then, push.worker))

    def hold(self, version: int, in_use: Iterable[int]) -> None:
        """Remember nothing: at a barrier everybody starts from the current version."""

    def distance_sq(self, push: Push, then: ThenNumber) -> None:
        """Tell that the current version is the one that the push started from."""
        then(0.0)

    def _request(self, request: _Request) -> int:
        able = self._current.intersection(self._alive) if request.of is None else {request.of}
        if not able:
            raise WorkerLost("every worker that has the model is gone")
        request.worker = min(able)
        tag = next(self._numbers)
        self._requests[tag] = request
        self._tell(request.worker, request.plain | {"tag": tag})
        return tag

    def answer(self, sender: str, plain: dict[str, Any], payload: Tensor | None) -> None:
        """Take a replica, or a verdict on a ring."""
        if "verdict" in plain:
            self._judge(worker_number(sender), plain["ring"], plain["verdict"])
            return
        request = self._requests.pop(plain["tag"], None)
        if request is not None:
            request.then(unpack(plain["shapes"], payload))

    def forget(self, worker: int) -> None:
        """Do nothing: what a worker holds is known to itself alone."""

    def leave(self, worker: int) -> None:
        """Ask others for what that worker was to send, and settle a ring that it was in."""
        if worker not in self._alive:
            return
        self._alive.remove(worker)
        ring = self._ring
        if ring is not None and worker in ring.members:
            self._requests.pop(self._gift, None)
            ring.doubtful.discard(worker)
            self._settle(ring)
        lost = [tag for tag, request in self._requests.items() if request.worker == worker]
        for request in [self._requests.pop(tag) for tag in lost]:
            if request.of is None:
                self._request(request)
            else:
                request.then({})

    def _settle(self, ring: _Ring) -> None:
        """Ask the survivors whether they came to the end of the ring."""
        if not ring.doubtful:
            self._ring = None
            return
        ring.verdicts = dict.fromkeys((w for w in ring.members if w in self._alive), None)
        for worker in ring.verdicts:
            self._tell(worker, {"do": "abort", "ring": ring.order["ring"]})

    def _judge(self, worker: int | None, number: int, done: bool) -> None:
        ring = self._ring
        if ring is None or worker not in ring.verdicts or number != ring.order["ring"]:
            return
        ring.verdicts[worker] = done
        if None in ring.verdicts.values():
            return
        finished = [w for w, verdict in ring.verdicts.items() if verdict]
        unfinished = [w for w, verdict in ring.verdicts.items() if not verdict]
        ring.verdicts = {}
        if not unfinished:
            self._ring = None
        elif finished:
            self._give(finished[0], unfinished, number)
        else:
            self._again(ring, unfinished)

    def _give(self, donor: int, others: list[int], number: int) -> None:
        def hand_out(state: State) -> None:
            for worker in others:
                self._load(worker, state, number)

        self._gift = self._request(_Request({"do": "state", "optimizer": True}, hand_out, donor))

    def _load(self, worker: int, state: State, ring: int) -> None:
        shapes, flat = pack(state)
        self._tell(worker, {"do": "load", "shapes": shapes, "ring": ring}, flat)

    def _again(self, ring: _Ring, members: list[int]) -> None:
        order = dict(ring.order)
        old = dict(zip(ring.members, zip(order["weights"], order["samples"], strict=True), strict=True))
        weights = [old[worker][0] for worker in members]
        scale = sum(order["weights"]) / sum(weights)
        order["members"] = members
        order["weights"] = [weight * scale for weight in weights]
        order["samples"] = [old[worker][1] for worker in members]
        self._start(order)

    def _tell(self, worker: int, plain: dict[str, Any], payload: Tensor | None = None) -> None:
        self._hub.tell(worker_name(worker), plain, payload)
