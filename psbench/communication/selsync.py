"""SelSync: workers vote after every step whether to synchronise, by the change of their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import PrivateAttr

from psbench.core.actions import Action, Hold, Orders, Release
from psbench.core.events import Vote
from psbench.core.parts import Communication
from psbench.core.specification import parameter
from psbench.core.view import ClusterView, Status
from psbench.core.worker_policy import Directive, WorkerPolicy

SOURCE = "Tyagi and Swany 2023 (SelSync)"


class Flags(WorkerPolicy):
    """A worker that votes 1 where its smoothed squared gradient norm has changed by `delta` or more."""

    delta: float
    window: int
    smoothing: float
    norms: list[float] = []
    changed: bool = True

    def on_orders(self, orders: Orders) -> None:
        """Take the smoothing that suits the size of the cluster."""
        self.smoothing = orders.get("smoothing", self.smoothing)

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Vote, always."""
        before = ewma(self.norms, self.smoothing)
        self.norms = [*self.norms, stats["grad_norm_sq"]][-self.window :]
        now = ewma(self.norms, self.smoothing)
        # no change can be told with the first step, or from nothing
        self.changed = not before or not abs(now - before) / before < self.delta
        return "vote"

    def vote_value(self) -> float:
        """Return the flag."""
        return float(self.changed)


def ewma(values: list[float], smoothing: float) -> float:
    """Return the exponentially weighted mean of the values, the oldest first; 0 of none.

    E_i = smoothing v_i + (1 - smoothing) E_(i-1), begun with the oldest.

    Examples
    --------
    >>> ewma([4.0, 4.4], smoothing=0.16)
    4.064
    """
    mean = values[0] if values else 0.0
    for value in values[1:]:
        mean = smoothing * value + (1.0 - smoothing) * mean
    return mean


class SelSync(Communication):
    """Step locally, and synchronise all workers as soon as the gradients of one of them change.

    After every step each worker compares the smoothed squared norm of its gradients, E, with that one step
    before, and votes to synchronise if abs(E - E_before)/E_before >= delta. One such vote suffices; without
    any, all keep their own step and go on.

    Parameters
    ----------
    delta : float, >= 0
        0 synchronises after every step; above the largest change that occurs, never.
    window : int, steps, >= 1
        The norms of so many steps make E; 1 does not smooth.
    smoothing : float, 0 to 1
        What the last norm counts for in E; 0 is n/100 for n workers (0.16 for 16).

    Notes
    -----
    Reduces to: BSP with delta = 0; workers that never meet, but vote, with a large one.
    Our reading: of paper and code, which differ in many points, the paper: one exponentially weighted mean,
    of the squared norm, and models averaged after the local step. As it gives both a window and a smoothing,
    the mean is begun anew at every step, with the oldest norm of the window. The first step of a worker
    synchronises, and one after a norm of 0, since no change can be told. So does the arrival of a worker,
    who could not begin before. The workers' momentum is neither exchanged nor cleared, as in the code.

    Source
    ------
    Tyagi and Swany (2023), "Accelerating Distributed ML Training via Selective Synchronization", CLUSTER;
    `protocols` 3.

    Examples
    --------
    >>> half = SelSync(delta=0.3, smoothing=1.0).worker_policy()
    >>> for norm in (4.0, 4.4, 4.2, 6.0):
    ...     _ = half.after_step({"grad_norm_sq": norm})
    ...     print(half.vote_value())
    1.0
    0.0
    0.0
    1.0
    """

    name: ClassVar[str] = "selsync"
    source: ClassVar[str] = SOURCE
    reads: ClassVar[tuple[str, ...]] = ("grad_norm_sq",)
    pushes = "together"
    local: ClassVar[bool] = True

    delta: float = parameter(
        0.3, "relative change of a gradient's norm that synchronises", source=SOURCE, ge=0
    )
    window: int = parameter(
        25, "steps whose gradient norms are averaged", unit="steps", source=SOURCE, ge=1, le=10_000
    )
    smoothing: float = parameter(
        0.0, "weight of the last norm in that average; 0: a hundredth per worker", source=SOURCE, ge=0, le=1
    )

    _flags: dict[str, bool] = PrivateAttr(default_factory=dict)  # of the votes that are not answered

    @property
    def forgets_momentum(self) -> bool:
        """A worker's own momentum stays."""
        return False

    def worker_policy(self) -> WorkerPolicy:
        """Return the worker half that votes."""
        return Flags(delta=self.delta, window=self.window, smoothing=self.smoothing)

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Tell a newcomer the smoothing that depends on the number of workers."""
        if self.smoothing or view.workers[worker].status is not Status.NEW:
            return {}
        return {"smoothing": min(1.0, view.num_workers / 100)}

    def on_vote(self, vote: Vote, view: ClusterView) -> list[Action]:
        """Wait until all have voted; one flag makes all push."""
        self._flags[str(vote.worker)] = vote.value > 0
        return self._answer(view) or [Hold(vote.worker, "vote")]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Wait no longer for a worker that has gone."""
        self._flags.pop(str(worker), None)
        return self._answer(view)

    def _answer(self, view: ClusterView) -> list[Action]:
        if view.num_computing or not view.num_voted:
            return []
        # who waits already has pushed, or is new: a barrier only opens when all have pushed
        push = any(self._flags.values()) or bool(view.waiting)
        self._flags = {}
        voted = sorted(w.id for w in view.workers.values() if w.status is Status.VOTED)
        return [Release(worker, then="push" if push else "step") for worker in voted]
