"""The model's record of a run: each worker's activity and version; everything else is recounted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psbench.core import Push, Status
from psbench.core.view import WorkerView


@dataclass
class Member(WorkerView):
    """One worker, with the fields of the engine's view, so that a part can read either."""

    sent: dict[int, int] = field(default_factory=dict)  #: of each fragment, at which of `fragments` it was
    has_model: bool = False  #: whether it was sent a whole model since it joined, or since the hand-over


@dataclass
class ModelCluster:
    """All workers, and the pushes that are neither committed nor discarded.

    A part that the model has no rule for is asked in the engine's place, with this for its view.
    """

    num_workers: int
    dataset_size: int
    global_batch: int
    epochs: float | None
    layout: Sequence[tuple[str, int]]
    rng: np.random.Generator
    rate: Callable[[float], float]
    graph: Any = None  #: the placement, which has the graph where there is no server
    sends_first: bool = False  #: whether a worker sends the model that its step begins with
    ranges: Sequence[Sequence[tuple[int, int]]] = ()
    fragments: list[int] = field(default_factory=list)  #: those that versions were made of, in order
    capacity: Sequence[int] = ()
    now: float = 0.0
    version: int = 0
    samples: int = 0
    in_force: int = 0
    composition: int = 0  #: as the switch rule sees it
    pushes: int = 0
    committed: int = 0
    discarded: int = 0
    cancelled: int = 0
    min_clock: int = 0
    min_clock_rose: bool = False
    workers: dict[int, Member] = field(default_factory=dict)
    pending: dict[int, Push] = field(default_factory=dict)

    @property
    def present(self) -> list[Member]:
        """The workers that have not left, in order of their first join."""
        return [each for each in self.workers.values() if each.status is not Status.GONE]

    def in_status(self, *statuses: Status) -> list[int]:
        """Return the workers with one of these statuses, in order."""
        return sorted(each.id for each in self.present if each.status in statuses)

    @property
    def active(self) -> list[int]:
        """The workers that have not left, in order."""
        return sorted(each.id for each in self.present)

    @property
    def waiting(self) -> list[int]:
        """The workers that may be let go, in order."""
        return self.in_status(Status.NEW, Status.PUSHED)

    @property
    def computing(self) -> list[int]:
        """The workers that compute, in order."""
        return self.in_status(Status.COMPUTING)

    @property
    def voted(self) -> list[int]:
        """The workers with an open vote, in order."""
        return self.in_status(Status.VOTED)

    @property
    def num_active(self) -> int:
        """Workers that have not left."""
        return len(self.present)

    @property
    def num_computing(self) -> int:
        return len(self.computing)

    @property
    def num_voted(self) -> int:
        """Number of workers with an open vote."""
        return len(self.voted)

    @property
    def num_under_way(self) -> int:
        """Number of workers that compute or have an open vote."""
        return len(self.computing) + len(self.voted)

    @property
    def epoch(self) -> float:
        """Samples trained on divided by the size of the training set."""
        return self.samples / self.dataset_size

    @property
    def clock_counts(self) -> dict[int, int]:
        clocks = [each.clock for each in self.present]
        return {clock: clocks.count(clock) for clock in clocks}

    def buffered(self) -> list[Push]:
        """Return the pending pushes by worker, each worker's in order of arrival."""
        order = {number: i for i, number in enumerate(self.pending)}
        return sorted(self.pending.values(), key=lambda push: (push.worker, order[push.id]))

    def clock_lead(self, worker: int) -> int:
        """Return the lead of a worker over the slowest active worker."""
        return self.workers[worker].clock - min(each.clock for each in self.present)

    def look_at_clocks(self) -> None:
        """Update the slowest clock; it stays unchanged while no worker is active."""
        slowest = min((each.clock for each in self.present), default=self.min_clock)
        self.min_clock_rose = self.min_clock_rose or slowest > self.min_clock
        self.min_clock = slowest


#: numbers of the engine's view that the model counts by itself
COUNTED = (
    *("now", "version", "samples", "in_force", "composition", "pushes", "committed", "discarded"),
    *("cancelled", "num_active", "num_computing", "num_voted", "min_clock"),
)
#: what the view must show of a worker that is there, and of one that has left
PRESENT = (
    *("status", "clock", "ticket", "base_version", "last_push_s", "previous_push_s"),
    *("batch_size", "hold_reason", "overlapping", "voted_samples", "dropped"),
    *("version", "first_version", "push_weight"),
)
LEFT = ("status", "ticket", "dropped", "overlapping")
