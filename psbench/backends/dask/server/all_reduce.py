"""All-Reduce: every worker keeps the model, and the coordinator orders rings that add up their payloads.

A version takes two orders: to add up, and, when all members have the sum, to make the version from it.

A ring that loses a member is settled among the survivors. All are asked whether they finished it. If one
did, the others are given the sum by that one. If none did, the survivors do the ring again with their own
payloads, weighted so that the weights still have the same sum.

A worker that was not in the last ring (it joined, came back, or was dropped for a while) is given the model
by another before it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import PushKey, ReleaseMessage, RingPlace, StartRing
from psbench.backends.dask.protocol.roles import worker_name, worker_number
from psbench.backends.dask.server.introductions import Introductions
from psbench.backends.dask.server.ring_order import RingOrder, one_ring
from psbench.backends.dask.server.store import (
    NO_CODEC_COUNTERS,
    ParameterStore,
    StoreReply,
    Then,
    ThenCheckpoint,
    ThenNumber,
    key_of,
)
from psbench.core import actions as act
from psbench.core.aggregation import Aggregation
from psbench.core.events import Push
from psbench.errors import WorkerLost
from psbench.training.server import counted

#: what a sum is of: pushes by id, and their weights
Weighted: TypeAlias = tuple[list[int], list[float]]
#: of a sum: the worker, and the weight, the samples and the steps of its push
Addend: TypeAlias = tuple[int, float, int, int]


@dataclass
class _Ring:
    """The ring whose sum becomes the next version; `holders` are the members that have the sum."""

    number: int
    addends: list[Addend]
    numbers: dict[str, float]
    of: Weighted
    unfinished: set[int]
    holders: set[int] = field(default_factory=set)
    #: what the survivors answered; empty unless they were asked
    verdicts: dict[int, bool | None] = field(default_factory=dict)


@dataclass
class Request:
    """A request to a worker for a state or for the payload of a push."""

    message: Callable[[int], Message]
    then: Then
    #: the worker to ask; None for any that has the current version
    of: int | None = None
    worker: int = -1


class AllReduceStore(ParameterStore):
    """The store under All-Reduce: the workers' replicas.

    Parameters
    ----------
    out : Outbox
    workers : list of int
        Those that are connected.
    state : State or None
        What every replica begins with; None if they have it already. Of a checkpoint it names the pushes
        whose payloads their workers have been given again.
    numbers : iterator of int
        Numbers for rings and requests, unique in this run.
    introductions : Introductions
    aggregation : Aggregation
        The composition's, which says how buffers are weighed.
    order : RingOrder or None
        Groups the members of a sum; None for one ring of all.
    """

    kind = "All-Reduce"

    def __init__(
        self,
        out: Outbox,
        workers: list[int],
        state: StateDict | None,
        numbers: Iterator[int],
        introductions: Introductions,
        aggregation: Aggregation,
        order: RingOrder | None = None,
    ) -> None:
        self._out, self._introductions, self._aggregation = out, introductions, aggregation
        self._order = order
        self._alive = sorted(workers)
        self._current = set(workers)  # those whose replica is of the current version
        self._pushed: dict[int, PushKey] = {}  # what each worker adds to the next ring it is in
        self._ring: _Ring | None = None
        self._numbers = numbers
        self._behind: dict[int, ReleaseMessage] = {}  #: releases of workers that wait for a replica
        self._requests: dict[int, Request] = {}
        self._gift = -1  # the request for a sum that goes to those who did not finish its ring
        if state is not None:
            self._pushed = {key[0]: key for key in _pushes_in(state) if key[0] in self._current}
            replica = {name: tensor for name, tensor in state.items() if not _is_of_push(name)}
            for worker in self._alive:
                self._send(worker, msg.LoadReplica(replica))

    # ---------------------------------------------------------------- pushes and versions

    @property
    def awaits_replies(self) -> bool:
        return bool(self._requests)

    def arrived(self, push: Push) -> None:
        """Record a worker's contribution; the payload stays on the worker."""
        self._pushed[push.worker] = key_of(push)

    def reduce(self, apply: act.Apply) -> None:
        """Order the pushing workers to sum their payloads.

        A payload is lost with its worker, also if another process has taken that one's place since. If all
        are, the version is made by one that has the model, which stays as it is.

        Raises
        ------
        WorkerLost
            If no worker that has the model is left.
        """
        total = sum(apply.weights)
        pairs = zip(apply.pushes, apply.weights, strict=True)
        there = [(push, weight) for push, weight in pairs if self._has(push)]
        members = [(push.worker, weight, push.samples, push.steps) for push, weight in there]
        if not members:
            members = [(min(self._with_model()), total, sum(push.samples for push in apply.pushes), 1)]
            self._send(members[0][0], msg.ContributeZeros(apply.fragment))
        self._start(_weighted(apply), members, total, apply.numbers)

    def _with_model(self) -> set[int]:
        if not (able := self._current.intersection(self._alive)):
            raise WorkerLost("every worker that has the model is gone")
        return able

    def _has(self, push: Push) -> bool:
        """Return whether the worker still has its payload for the next ring."""
        return self._pushed.get(push.worker) == key_of(push)

    def _start(self, of: Weighted, members: list[Addend], total: float, numbers: dict[str, float]) -> None:
        """Order these members to sum, with their weights."""
        workers, weights, samples, steps = map(list, zip(*members, strict=True))
        scale = total / sum(weights) if len(members) < len(of[0]) else 1.0
        shares, most_steps = counted(self._aggregation, samples, steps)
        number, all_samples = next(self._numbers), sum(shares)
        self._ring = _Ring(number, members, numbers, of, set(workers))
        needs_all = self._aggregation.exchanges and len({*weights}) > 1
        all_weights = [weight * scale for weight in weights] if needs_all else []
        facts = all_samples, most_steps, numbers, all_weights
        levels = {} if self._order is None else self._order.levels(workers)
        for worker, place, weight, share in zip(workers, one_ring(workers), weights, shares, strict=True):
            own = levels.get(worker, [])
            self._introduce(worker, [*own, place] if self._aggregation.exchanges else own or [place])
            self._send(worker, StartRing(number, place, own, weight * scale, share / all_samples, *facts))

    def _introduce(self, worker: int, places: Sequence[RingPlace]) -> None:
        """Send a member the addresses of those that it sends to."""
        following = [place.following for place in places if place.following != worker]
        self._introductions.introduce(worker, following)

    @property
    def is_adding_up(self) -> bool:
        """Return True if the members of a ring have not all reported its sum."""
        return self._ring is not None and bool(self._ring.unfinished)

    @property
    def adding_up(self) -> list[int]:
        """The workers in a ring that have not reported its sum yet."""
        return [] if self._ring is None else sorted(self._ring.unfinished)

    def has_sum_for(self, apply: act.Apply) -> bool:
        """Return whether the present workers have the sum of this update, or will have it soon."""
        ring = self._ring
        return ring is not None and ring.of == _weighted(apply) and bool(ring.holders or ring.unfinished)

    def apply(self, apply: act.Apply) -> None:
        """Order the workers to make the version from their sum; see `reduce`.

        Raises
        ------
        WorkerLost
            If all who had it are gone.
        """
        ring, self._ring = self._ring, None
        assert ring is not None
        assert not ring.unfinished
        if not ring.holders:
            raise WorkerLost("every worker that was to make the next version is gone")
        self._current = ring.holders
        for worker in sorted(ring.holders):
            self._send(worker, msg.MakeVersion(ring.number, apply.version, msg.Update.of(apply)))

    def release(self, release: act.Release, samples: int) -> None:
        """Release a worker to continue from its replica, which it receives first if it missed a version."""
        worker, message = release.worker, ReleaseMessage.of(release, samples)
        if worker in self._current:
            self._send(worker, message)
            return

        self._behind[worker] = message

        def bring_up_to_date(state: StateDict) -> None:
            if self._behind.get(worker) is not message:
                return  # it is gone, and another process may have taken its place
            del self._behind[worker]
            self._send(worker, msg.LoadReplica(state))
            self._current.add(worker)
            self._send(worker, message)

        self.gather(True, bring_up_to_date)

    def forget(self, worker: int) -> None:
        """Cancel a worker's pending release, and request the model from others."""
        self._behind.pop(worker, None)
        if self._current.intersection(self._alive) - {worker}:
            self._current.discard(worker)
            self._ask_others(worker)

    # ---------------------------------------------------------------- states and measurements

    def gather(self, states: bool, then: Then) -> None:
        """Request a worker's replica."""
        self._request(Request(lambda tag: msg.SendState(tag, states), then))

    def payload(self, push: Push, then: Then) -> None:
        """Request a worker's contribution to the next ring; `then` receives an empty state if it is lost."""
        if self._has(push):
            self._ask_payload(key_of(push), then)
        else:
            then({})

    def _ask_payload(self, key: PushKey, then: Then) -> None:
        self._request(Request(lambda tag: msg.SendPayload(tag, key), then, key[0]))

    def checkpoint(self, keys: Sequence[PushKey], then: ThenCheckpoint) -> None:
        """Request a replica from one worker, and the contributions to the next ring from their workers."""
        found: StateDict = {}
        missing: set[PushKey | None] = {None, *(key for key in keys if self._pushed.get(key[0]) == key)}

        def take(key: PushKey | None, state: StateDict) -> None:
            missing.discard(key)
            found.update(state if key is None else _named_by_push(key, state))
            if not missing:
                then(found, dict(NO_CODEC_COUNTERS))

        self.gather(True, partial(take, None))
        for key in sorted(filter(None, missing)):
            self._ask_payload(key, partial(take, key))

    def distance_sq(self, push: Push, then: ThenNumber) -> None:
        """Call `then` with 0: the push started from the current version."""
        then(0.0)

    # ---------------------------------------------------------------- requests

    def _request(self, request: Request) -> int:
        request.worker = min(self._with_model()) if request.of is None else request.of
        tag = next(self._numbers)
        self._requests[tag] = request
        self._send(request.worker, request.message(tag))
        return tag

    def reply(self, sender: str, reply: StoreReply) -> None:
        """Handle a replica, or a member's report on a ring."""
        if isinstance(reply, msg.RingVerdict):
            self._judge(worker_number(sender), reply)
        elif isinstance(reply, msg.StateReply) and reply.tag in self._requests:
            self._requests.pop(reply.tag).then(reply.tensors)

    # ---------------------------------------------------------------- workers that are lost

    def leave(self, worker: int, ticket: int) -> None:
        """Request a lost worker's messages from other workers, and settle a ring of which it was a member."""
        if worker not in self._alive:
            return
        self._alive.remove(worker)
        self._pushed.pop(worker, None)
        self._behind.pop(worker, None)
        ring = self._ring
        if ring is not None and any(worker == addend[0] for addend in ring.addends):
            self._requests.pop(self._gift, None)
            ring.unfinished.discard(worker)
            ring.holders.discard(worker)
            self._settle(ring)
        self._ask_others(worker)
        for tag in [tag for tag, request in self._requests.items() if request.worker == worker]:
            self._requests.pop(tag).then({})

    def _ask_others(self, worker: int) -> None:
        """Redirect requests from a worker to others."""
        asked = [tag for tag, each in self._requests.items() if each.worker == worker and each.of is None]
        for request in [self._requests.pop(tag) for tag in asked]:
            self._request(request)

    def join(self, worker: int) -> None:
        """Include a worker, which receives the model with its release."""
        self._current.discard(worker)
        self._alive = sorted({*self._alive, worker})

    def _settle(self, ring: _Ring) -> None:
        """Ask the survivors whether they finished the ring."""
        if not ring.unfinished:
            return
        ring.verdicts = dict.fromkeys(sorted(ring.unfinished | ring.holders), None)
        for worker in ring.verdicts:
            self._send(worker, msg.AbortRing(ring.number))

    def _judge(self, worker: int | None, verdict: msg.RingVerdict) -> None:
        ring = self._ring
        if ring is None or worker is None or verdict.ring != ring.number:
            return
        if verdict.finished and worker in ring.unfinished:
            ring.unfinished.discard(worker)
            ring.holders.add(worker)
        if worker not in ring.verdicts:
            return
        ring.verdicts[worker] = verdict.finished
        if None in ring.verdicts.values():
            return
        finished = [w for w, done in ring.verdicts.items() if done]
        unfinished = [w for w, done in ring.verdicts.items() if not done]
        ring.verdicts = {}
        if finished and unfinished:
            self._give(finished[0], unfinished, verdict.ring)
        elif unfinished:
            self._repeat(ring, unfinished)

    def _give(self, donor: int, others: list[int], ring: int) -> None:
        def hand_out(state: StateDict) -> None:
            for worker in others:
                self._send(worker, msg.TakeSum(ring, state))

        self._gift = self._request(Request(msg.SendSum, hand_out, donor))

    def _repeat(self, ring: _Ring, members: list[int]) -> None:
        left = [addend for addend in ring.addends if addend[0] in members]
        self._start(ring.of, left, sum(ring.of[1]), ring.numbers)

    def _send(self, worker: int, message: Message) -> None:
        self._out.send(worker_name(worker), message)


_OF_PUSH = ("payload", "buffers")  # how a push's tensors are named, before its worker and ticket


def _named_by_push(key: PushKey, state: StateDict) -> StateDict:
    """Rename the tensors of a worker's contribution as a server does; empty if the worker is lost."""
    values = zip(_OF_PUSH, (state[name] for name in ("parameters", "buffers")), strict=True) if state else ()
    return {f"{name}/{key[0]}/{key[1]}": tensor for name, tensor in values}


def _is_of_push(name: str) -> bool:
    return name.startswith(tuple(f"{each}/" for each in _OF_PUSH))


def _pushes_in(state: StateDict) -> Iterator[PushKey]:
    for name in state:
        if name.startswith("payload/"):
            worker, ticket = map(int, name.split("/")[1:])
            yield worker, ticket


def _weighted(apply: act.Apply) -> Weighted:
    return [push.id for push in apply.pushes], list(apply.weights)
