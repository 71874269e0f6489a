"""The cluster view: the engine's state of the run, read by every part."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from psbench.core.events import Push


class Status(IntEnum):
    """A worker's status in the engine's view."""

    NEW = 0  #: has joined and was never released
    COMPUTING = 1  #: was released and has sent nothing since
    PUSHED = 2  #: has pushed (or was cancelled) and was not released since
    VOTED = 3  #: has voted and was not released since
    GONE = 4  #: has left


class WorkerGraph(Protocol):
    """The exchange graph at a worker's next exchange; implemented in `core.neighbourhood`."""

    sends_first: bool

    def senders(self, worker: int) -> list[int]:
        """Return the workers whose models a worker receives."""

    def receivers(self, worker: int, exchange: int | None = None) -> list[int]:
        """Return the workers that receive a worker's model, at another exchange if one is given."""

    def degree(self, worker: int, exchange: int) -> int:
        """Return the number of receivers of a worker at that exchange."""

    def is_ready(self, worker: int, advanced: Collection[int] = (), begun: Collection[int] = ()) -> bool:
        """Return whether all messages for a worker's exchange have been sent."""


def _constant(epoch: float) -> float:
    return 1.0


#: statuses of workers that may be released to take a step
WAITING = (Status.PUSHED, Status.NEW)


@dataclass(slots=True)
class WorkerView:
    """One worker; written by the engine, read by parts."""

    id: int
    status: Status = Status.NEW
    #: exchanges completed; equals steps while `local_steps` is 1. A newcomer starts at the slowest clock.
    clock: int = 0
    #: the ticket of the last release; a message with an older one is void
    ticket: int = 0
    #: the version loaded at the last release
    base_version: int = -1
    #: times of the last two pushes, seconds; nan until there are two
    last_push_s: float = math.nan
    previous_push_s: float = math.nan
    batch_size: int = 0
    #: reason of its last `Hold`; empty while it computes
    hold_reason: str = ""
    #: whether it computes although it has pushed (overlap)
    overlapping: bool = False
    #: samples of its open vote: progress if it is released to step, else part of its push
    voted_samples: int = 0
    #: whether a part dropped it, so that it may be readmitted
    dropped: bool = False
    #: the id of its last push; -1 before the first
    last_push: int = -1
    #: samples of its last push, and how many its next one may have at most (-1: no limit)
    pushed_samples: int = 0
    allowance: int = -1
    #: the entries that its next push carries; -1: all
    fragment: int = -1
    #: the setting of its codec for its next push; -1: the only one, or the first
    codec_setting: int = -1
    #: how often each fragment had been updated when the worker was sent it
    fragment_updates: list[int] = field(default_factory=list)
    #: without a server: how often its model was mixed with others', and that number when it came
    version: int = 0
    first_version: int = 0
    #: its weight in stochastic gradient push
    push_weight: float = 1.0


@dataclass(slots=True)
class ClusterView:
    """The state of the run; parts must treat it as read-only.

    `notebooks/site/glossary.md` defines clock, lead, version, staleness and ticket.

    Shapes
    ------
    `workers` has one entry for every worker ever seen; those that left are `Status.GONE`.
    """

    num_workers: int  #: size of the cluster in the specification, the n of lr/n
    dataset_size: int = 1  #: training samples; turns samples into epochs
    global_batch: int = 1  #: B
    epochs: float | None = None  #: the stop rule's number of epochs, if it has one
    #: the optimizer's rate by epoch; part of the specification, like the lines above
    rate: Callable[[float], float] = _constant
    #: samples that each worker's memory holds beside the model; empty where that is not known
    capacity: Sequence[int] = ()
    layout: Sequence[tuple[str, int]] = ()  #: the model's tensors in the order of its vector: name, entries
    #: the entries that each server holds now: ranges, start included, stop excluded
    ranges: Sequence[Sequence[tuple[int, int]]] = ()
    #: how often each fragment has been updated, where pushes are of fragments
    fragment_updates: list[int] = field(default_factory=list)
    now: float = 0.0  #: seconds since the run began, virtual or wall
    version: int = 0  #: committed updates
    samples: int = 0  #: samples in committed pushes, and in steps that workers keep after a vote
    workers: dict[int, WorkerView] = field(default_factory=dict)
    pending: dict[int, Push] = field(default_factory=dict)  #: pushes neither committed nor discarded, by id
    num_active: int = 0  #: workers that have not left
    num_computing: int = 0
    num_voted: int = 0  #: workers whose vote is not answered
    pushes: int = 0
    committed: int = 0
    discarded: int = 0
    cancelled: int = 0  #: steps made void before they became a push
    min_clock: int = 0  #: clock of the slowest active worker
    min_clock_rose: bool = False  #: whether the event being handled raised `min_clock`
    in_force: int = 0  #: number of the composition in force (more than one in a run that switches)
    composition: int = 0  #: the same as the switch rule sees it: 0 before its switch, 1 after it
    #: the graph among the workers, where there is no server
    neighbourhood: WorkerGraph | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.Generator(np.random.PCG64(0)))
    #: how many active workers stand at each clock; keeps `min_clock` without scanning
    clock_counts: dict[int, int] = field(default_factory=dict)
    voted_samples: int = 0  #: samples of all open votes
    pending_samples: int = 0  #: samples of all pending pushes
    members: list[int] = field(default_factory=list)  #: ids of the active workers, in order
    membership: int = 0  #: number of joins and departures so far, for parts that keep numbers of all members

    @property
    def graph(self) -> WorkerGraph:
        """The graph among the workers, which only a placement without a server has."""
        assert self.neighbourhood is not None
        return self.neighbourhood

    def last_ticket(self, worker: int) -> int:
        """Return the ticket of a worker's last release; -1 for one that was never seen."""
        return self.workers[worker].ticket if worker in self.workers else -1

    @property
    def num_under_way(self) -> int:
        """Number of workers that compute or have an open vote."""
        return self.num_computing + self.num_voted

    @property
    def epoch(self) -> float:
        """Samples trained on over the size of the training set; see `samples`."""
        return self.samples / self.dataset_size

    @property
    def epochs_per_step(self) -> float:
        """Epochs in one step of every active worker."""
        return self.global_batch * self.num_active / self.num_workers / self.dataset_size

    @property
    def active(self) -> list[int]:
        """Ids of the workers that have not left, in order."""
        if self.members and len(self.members) == self.num_active:
            return [*self.members]
        return sorted(w.id for w in self.workers.values() if w.status != Status.GONE)  # made by hand

    @property
    def waiting(self) -> list[int]:
        """Ids of the workers that may be released to take a step, in order."""
        workers = self.workers
        # where only workers wait whose pushes are pending, as in k-ASP, the others are not looked at
        pushed = {p.worker for p in self.pending.values() if workers[p.worker].status in WAITING}
        if len(pushed) == self.num_active - self.num_under_way:
            return sorted(pushed)
        return sorted(w.id for w in workers.values() if w.status in WAITING)

    @property
    def computing(self) -> list[int]:
        """Ids of the computing workers, in order."""
        return sorted(w.id for w in self.workers.values() if w.status == Status.COMPUTING)

    def buffered(self) -> list[Push]:
        """Return the pending pushes in worker order, each worker's in the order of arrival.

        Sums of floats depend on their order; this is the order in which a single process would add them.
        """
        return sorted(self.pending.values(), key=lambda push: push.worker)

    def waits(self) -> str:
        """Return a description of the event for which each active worker waits."""
        return "; ".join(
            f"worker {w.id} at clock {w.clock}: {w.hold_reason or w.status.name.lower()}"
            for w in self.workers.values()
            if w.status != Status.GONE
        )

    def clock_lead(self, worker: int) -> int:
        """Return the exchanges by which `worker` is ahead of the slowest active worker."""
        return self.workers[worker].clock - self.min_clock

    def move_clock(self, worker: WorkerView, clock: int) -> None:
        """Set a worker's clock and update `min_clock` (called by the engine)."""
        counts, old = self.clock_counts, worker.clock
        worker.clock = clock
        counts[clock] = counts.get(clock, 0) + 1
        if counts[old] > 1:
            counts[old] -= 1
        else:
            del counts[old]
            self._raise_min_clock()

    def set_voted(self, worker: WorkerView, samples: int) -> None:
        """Set the samples of a worker's open vote (called by the engine)."""
        self.voted_samples += samples - worker.voted_samples
        worker.voted_samples = samples

    def enter_clock(self, worker: WorkerView) -> None:
        """Add a joining worker and its clock (called by the engine)."""
        insort(self.members, worker.id)
        self.membership += 1
        worker.clock = self.min_clock
        self.clock_counts[worker.clock] = self.clock_counts.get(worker.clock, 0) + 1

    def leave_clock(self, worker: WorkerView) -> None:
        """Remove a leaving worker and its clock (called by the engine)."""
        self.members.remove(worker.id)
        self.membership += 1
        self._forget_clock(worker.clock)
        self._raise_min_clock()

    def _forget_clock(self, clock: int) -> None:
        left = self.clock_counts[clock] - 1
        if left:
            self.clock_counts[clock] = left
        else:
            del self.clock_counts[clock]

    def _raise_min_clock(self) -> None:
        counts = self.clock_counts
        if counts and self.min_clock not in counts:
            self.min_clock = min(counts)
            self.min_clock_rose = True

    def state_dict(self) -> dict[str, Any]:
        """Return the view as plain data."""
        state = {name: getattr(self, name) for name in _SAVED}
        state |= {"in_force": self.in_force} if self.in_force != self.composition else {}
        state["workers"] = [asdict(w) | {"status": int(w.status)} for w in self.workers.values()]
        state["pending"] = [asdict(p) for p in self.pending.values()]
        state["clock_counts"] = sorted(self.clock_counts.items())
        state["ranges"] = [[list(each) for each in own] for own in self.ranges]
        state |= {"fragment_updates": [*self.fragment_updates]} if self.fragment_updates else {}
        state["rng"] = self.rng.bit_generator.state
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from `state_dict`."""
        for name in _SAVED:
            setattr(self, name, state[name])
        self.in_force = state.get("in_force", self.composition)
        self.fragment_updates = [*state.get("fragment_updates", ())]
        workers, pending = state["workers"], state["pending"]
        self.workers = {w["id"]: WorkerView(**w | {"status": Status(w["status"])}) for w in workers}
        self.voted_samples = sum(worker.voted_samples for worker in self.workers.values())
        self.members = sorted(w.id for w in self.workers.values() if w.status is not Status.GONE)
        self.pending = {p["id"]: Push(**p) for p in pending}
        self.pending_samples = sum(push.samples for push in self.pending.values())
        self.clock_counts = dict(state["clock_counts"])
        self.ranges = [[(start, stop) for start, stop in own] for own in state["ranges"]]
        self.rng.bit_generator.state = state["rng"]


#: fields that are written as they are
_SAVED = (
    *("num_workers", "dataset_size", "global_batch", "epochs", "now", "version", "samples"),
    *("num_active", "num_computing", "num_voted", "pushes", "committed", "discarded", "cancelled"),
    *("min_clock", "min_clock_rose", "composition"),
)
