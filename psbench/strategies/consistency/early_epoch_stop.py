"""Early epoch stop: an epoch ends when most workers have finished their share of it."""

from __future__ import annotations

from typing import Any

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Commit, Consistency, Hold, Push, Release, parameter
from psbench.core.rounding import ceil

SOURCE = "Chilimbi et al. 2014 (Project Adam); thesis 3.2.5"


class EarlyEpochStop(Consistency):
    """ASP within an epoch, with a barrier that ends once `fraction` of the workers have done their share.

    A worker's share of an epoch is the training set over the number of workers. When enough have done theirs
    the epoch ends for all: the others are spared the rest and go on, with the step they are at, into the
    next one.

    Notes
    -----
    Reduces to: with fraction 1, ASP that meets at the end of every epoch, where all have done the same; SGD
    with one worker.
    Our reading: 75 % of the *workers* have done all of their share, as the paper has it; the thesis tells it
    as 75 % of a straggler's share. A push counts in the epoch in which it arrives, so the step that a worker
    is at when the epoch ends is its first of the next. What a worker is spared is not lost to it: its
    batches go on through its shard where they were. A newcomer's whole share lies before it. Epochs of the
    run (samples over the training set) are longer than these where work is skipped.
    """

    name = "early_epoch_stop"
    source = SOURCE
    singly = True

    fraction: float = parameter(
        0.75, "share of the workers that must finish before an epoch ends", source=SOURCE, gt=0, le=1
    )

    _samples: dict[str, int] = PrivateAttr(default_factory=dict)  # of this epoch, by worker
    _done: int | None = PrivateAttr(None)  # workers that have done their share; None: not counted yet

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Commit, and release the worker or hold it until the end of the epoch."""
        key = str(push.worker)
        was_done = self._is_done(push.worker, view)
        self._samples[key] = self._samples.get(key, 0) + push.samples
        if self._done is not None:
            self._done += self._is_done(push.worker, view) and not was_done
        return [Commit([push]), *self._go_on(push.worker, view)]

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        """Release a newcomer to begin its share."""
        self._samples.pop(str(worker), None)
        self._done = None
        return [Release(worker)]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """End the epoch if enough of the remaining workers have done their share."""
        self._samples.pop(str(worker), None)
        self._done = None
        return self._end(view)

    def _go_on(self, worker: int, view: ClusterView) -> list[Action]:
        if not self._is_done(worker, view):
            return [Release(worker)]
        return self._end(view) or [Hold(worker, "end of the epoch")]

    def _end(self, view: ClusterView) -> list[Action]:
        """Return the actions that end the epoch; none while too few workers are done."""
        if self._done is None:
            self._done = sum(self._is_done(worker, view) for worker in view.active)
        if self._done < ceil(self.fraction * view.num_active):
            return []
        done = [worker for worker in view.active if self._is_done(worker, view)]
        self._samples, self._done = {}, 0
        return [Release(worker) for worker in done]

    def state_dict(self) -> dict[str, Any]:
        """Return the samples, from which the rest follows."""
        return {"_samples": {**self._samples}}

    def _is_done(self, worker: int, view: ClusterView) -> bool:
        return self._samples.get(str(worker), 0) * view.num_workers >= view.dataset_size
