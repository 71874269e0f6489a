"""DBS-SGD: every worker's batch follows its speed relative to worker 0."""

from __future__ import annotations

from typing import Literal

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Orders, Push, Status, Stragglers, parameter
from psbench.core.rounding import floor

SOURCE = "DBS-SGD, AEJ 2022, Algs. 1-2"

#: the benchmark, whose batch never changes
_FIRST = 0


class DBS(Stragglers):
    """Choose batch sizes so that every worker takes as long as worker 0.

    The last computing times of worker 0 over those of a worker are its relative speed S. When S is away from
    1 by the tolerance or more, the worker's batch is multiplied by it.

    Parameters
    ----------
    window : int, steps, >= 1
        m of the paper: how many of the last times are summed. Nothing changes before both have so many.
    mode : "proportional" or "literal"
        literal: worker 0's batch times S, from the last times whatever batch they took, as printed; it
        settles off the right batch, since the times that S is made of belong to several batches.
        proportional: the worker's own batch times S, from times since it last changed.

    Notes
    -----
    Reduces to: equal work for all when the tolerance is not reached.
    Our reading: proportional, as the prose has it ("enlarged or reduced in equal proportion"). An iteration's
    time is what its worker computes. A batch is rounded half up, and is at least 1 and at most the training
    set. The rate of a push does not depend on its batch, which the paper leaves to future work. While worker
    0 is away its last times stand; one that is back begins with its first batch again. All this
    supposes that times grow with batches: where they hardly do (tiny models) batches drift to their ends.
    The paper gives no value of the tolerance.
    """

    name = "dbs_sgd"
    source = SOURCE
    reads = ("compute_s",)
    varies_batch = True

    window: int = parameter(
        5, "step times of each worker in the estimate", unit="steps", source=SOURCE, ge=1, le=10_000
    )
    tolerance: float = parameter(
        0.05, "smallest difference in speed that changes a batch size", source="our reading", ge=0
    )
    mode: Literal["proportional", "literal"] = parameter(
        "proportional", "change a worker's own batch in proportion, or set it from worker 0's", source=SOURCE
    )

    _times: dict[str, list[float]] = PrivateAttr(default_factory=dict)  # the last `window` by worker, seconds
    _first_pushes: int = PrivateAttr(0)  # pushes of worker 0
    _changed_at: dict[str, int] = PrivateAttr(default_factory=dict)  # `_first_pushes` when the batch changed
    _batches: dict[str, int] = PrivateAttr(default_factory=dict)  # sizes ordered, of those that changed

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Record the time of the step, and decide the size of the worker's next batch."""
        assert push.stats is not None  # the backend sends what `reads` declares
        times = self._times.setdefault(str(push.worker), [])
        times.append(push.stats["compute_s"] / push.steps)
        del times[: -self.window]
        if push.worker == _FIRST:
            self._first_pushes += 1
        else:
            self._resize(push.worker, times, view)
        return []

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the worker's batch size if it has changed."""
        key, seen = str(worker), view.workers[worker]
        if seen.status == Status.NEW:
            self._times.pop(key, None)
            self._changed_at.pop(key, None)
            self._batches.pop(key, None)
        size = self._batches.get(key, seen.batch_size)
        return {} if size == seen.batch_size else {"batch_size": size}

    def _resize(self, worker: int, times: list[float], view: ClusterView) -> None:
        first, key = self._times.get(str(_FIRST), []), str(worker)
        comparable = min(len(times), len(first), self._first_pushes - self._changed_at.get(key, 0))
        if comparable < self.window:
            return
        speed = sum(first) / sum(times)
        if abs(1.0 - speed) < self.tolerance:
            return
        literal = self.mode == "literal"
        base = view.workers[_FIRST if literal else worker].batch_size
        self._batches[key] = min(max(1, floor(base * speed + 0.5)), view.dataset_size)
        if not literal:  # times of the old batch say nothing about the new one
            times.clear()
            self._changed_at[key] = self._first_pushes
