"""All-Reduce: every worker keeps the model, and the conductor tells them when to add up their gradients.

A ring that loses a member is settled among the survivors. All are asked whether they came to its end. If
one did, the version exists, and those who did not get it from that one. If none did, the survivors do the
ring again with their own gradients, weighted so that the weights still have the same sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from psbench.backends.dask.keeper import State, Then
from psbench.backends.dask.letters import RELEASE, Released
from psbench.backends.dask.names import worker_name, worker_number
from psbench.backends.dask.wire import Hub, pack, unpack
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
    worker: int
    optimizer: bool
    then: Then


class Replicas:
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

    def __init__(self, hub: Hub, workers: list[int], state: State | None, numbers: Iterator[int]) -> None:
        self._hub = hub
        self._alive = sorted(workers)
        self._ring: _Ring | None = None
        self._numbers = numbers
        self._requests: dict[int, _Request] = {}
        self._gift = -1  # the request whose answer goes to those who did not finish a ring
        if state is not None:
            shapes, flat = pack(state)
            for worker in self._alive:
                self._tell(worker, {"do": "load", "shapes": shapes, "ring": 0}, flat)

    def take(self, push: Push, payload: Tensor | None) -> None:
        """Know that the pusher has finished the last ring."""
        if self._ring is not None:
            self._ring.doubtful.discard(push.worker)
            if not self._ring.doubtful:
                self._ring = None

    def apply(self, apply: act.Apply) -> None:
        """Have the pushers that are alive add up their gradients, and make the same update each."""
        there = [i for i, push in enumerate(apply.pushes) if push.worker in self._alive]
        weights = [apply.weights[i] for i in there]
        scale = sum(apply.weights) / sum(weights) if len(there) < len(apply.pushes) else 1.0
        self._start(
            {
                "do": "ring",
                "members": [apply.pushes[i].worker for i in there],
                "weights": [weight * scale for weight in weights],
                "samples": [apply.pushes[i].samples for i in there],
                "version": apply.version,
                "update": {
                    "lr_scale": apply.lr_scale,
                    "epoch": apply.epoch,
                    "rule": apply.rule,
                    "keep": apply.keep,
                    "momentum_scale": apply.momentum_scale,
                },
            }
        )

    def _start(self, order: dict[str, Any]) -> None:
        order["ring"] = next(self._numbers)
        self._ring = _Ring(order, set(order["members"]))
        for worker in order["members"]:
            self._tell(worker, order)

    def release(self, release: act.Release, samples: int) -> None:
        """Let a worker go on from its own replica."""
        body = Released(release.ticket, release.load, samples, False, release.orders).encode()
        self._hub.send(worker_name(release.worker), RELEASE, body)

    def discard(self, push: Push) -> None:
        """Nothing was sent with the push."""

    def gather(self, optimizer: bool, then: Then) -> None:
        """Ask the first worker for its replica."""
        self._request(_Request(-1, optimizer, then))

    def _request(self, request: _Request, worker: int | None = None) -> int:
        if not self._alive:
            raise WorkerLost("every worker is gone, and with them the model")
        request.worker = self._alive[0] if worker is None else worker
        tag = next(self._numbers)
        self._requests[tag] = request
        self._tell(request.worker, {"do": "state", "tag": tag, "optimizer": request.optimizer})
        return tag

    def answer(self, sender: str, plain: dict[str, Any], payload: Tensor | None) -> None:
        """Take a replica, or a verdict on a ring."""
        if "verdict" in plain:
            self._judge(worker_number(sender), plain["ring"], plain["verdict"])
            return
        request = self._requests.pop(plain["tag"], None)
        if request is not None:
            request.then(unpack(plain["shapes"], payload))

    def leave(self, worker: int) -> None:
        """Ask others for what that worker was to send, and settle a ring that it was in."""
        if worker not in self._alive:
            return
        self._alive.remove(worker)
        self._requests.pop(self._gift, None)
        lost = [tag for tag, request in self._requests.items() if request.worker == worker]
        for tag in lost:
            self._request(self._requests.pop(tag))
        ring = self._ring
        if ring is not None and worker in ring.members:
            ring.doubtful.discard(worker)
            self._settle(ring)

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
            shapes, flat = pack(state)
            for worker in others:
                self._tell(worker, {"do": "load", "shapes": shapes, "ring": number}, flat)

        self._gift = self._request(_Request(donor, True, hand_out), donor)

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
