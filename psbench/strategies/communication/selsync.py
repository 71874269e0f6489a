"""SelSync: workers vote after every step on synchronising, by the change of their gradients."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import PrivateAttr

from psbench.core import ClusterView, Directive, OwnSteps, Status, Vote, WorkerPolicy, parameter
from psbench.core.actions import Action, Hold, Orders, Release
from psbench.core.rounding import floor

SOURCE = "Tyagi and Swany 2023 (SelSync)"


class Flags(WorkerPolicy):
    """A worker that votes 1 if its smoothed squared gradient norm has changed by `delta` or more."""

    delta: float
    window: int
    smoothing: float
    norms: list[float] = []
    changed: bool = True

    def on_orders(self, orders: Orders) -> None:
        """Set the smoothing factor for the size of the cluster."""
        self.smoothing = orders.get("smoothing", self.smoothing)

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Vote after every step."""
        before = ewma(self.norms, self.smoothing)
        self.norms = [*self.norms, stats["grad_norm_sq"]][-self.window :]
        now = ewma(self.norms, self.smoothing)
        # no relative change with the first step, or from a norm of 0
        self.changed = not before or not abs(now - before) / before < self.delta
        return "vote"

    def vote_value(self) -> float:
        return float(self.changed)


def ewma(values: list[float], smoothing: float) -> float:
    """Return the exponentially weighted mean of the values, the oldest first; 0 if empty.

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


def injected_samples(batch_size: int, shared_fraction: float, sharing: int) -> int:
    """Return the number of samples that each sharing worker gives to every other: beta b', rounded down.

    Examples
    --------
    >>> injected_samples(32, shared_fraction=0.5, sharing=8)  # b' = 32/(1 + 0.5 * 8) = 6.4
    3
    """
    return floor(shared_fraction * batch_size / (1.0 + shared_fraction * sharing))


class SelSync(OwnSteps):
    """Take local steps, and synchronise all workers when the gradients of one worker change.

    After every step each worker compares the smoothed squared norm of its gradients, E, with that one step
    before, and votes to synchronise if abs(E - E_before)/E_before >= delta. One such vote suffices; without
    any, all keep their own step and continue.

    Parameters
    ----------
    sharing_workers, shared_fraction : float, 0 to 1
        alpha and beta of the data injection for shards that are not alike: so large a share of the workers,
        drawn for every step, hands so large a share of its batch to all others. 0 is no injection.

    Notes
    -----
    Reduces to: BSP with delta = 0; workers that vote and never synchronise, with a large one.
    Our reading: of paper and code, which differ in many points, the paper: one exponentially weighted mean,
    of the squared norm, and models averaged after the local step. As it gives both a window and a smoothing,
    the mean is computed from the oldest norm of the window at every step. The first step of a worker
    synchronises, and one after a norm of 0, since no change is known then. So does the arrival of a worker,
    which could not begin before. The workers' momentum is neither exchanged nor cleared, as in the code. Data
    injection: with k = alpha n sharing workers (rounded to the nearest whole number) and a batch of b, a
    worker draws b' = b/(1 + beta k) samples of its own and each of the k shares beta b' (rounded down), so
    that a batch is of b samples as before; a sharing worker, which receives from k - 1 only, draws more of
    its own. Shared samples are drawn from the shard of who shares them, and are the same for all who receive
    them in a step. In virtual time they travel over the slowest link among those concerned before the step
    begins; `bytes.data` counts them. On dask all data is everywhere, and nothing travels.

    Examples
    --------
    >>> policy = SelSync(delta=0.3, smoothing=1.0).worker_policy()
    >>> for norm in (4.0, 4.4, 4.2, 6.0):
    ...     _ = policy.after_step({"grad_norm_sq": norm})
    ...     print(policy.vote_value())
    1.0
    0.0
    0.0
    1.0
    """

    name = "selsync"
    source = SOURCE
    reads = ("grad_norm_sq",)
    pushes = "together"
    forgets_momentum = False

    delta: float = parameter(
        0.3, "relative change of a gradient's norm that triggers a synchronisation", source=SOURCE, ge=0
    )
    window: int = parameter(
        25, "steps in the average of the gradient norms", unit="steps", source=SOURCE, ge=1, le=10_000
    )
    smoothing: float = parameter(
        0.0, "weight of the latest norm in this average; 0: a hundredth per worker", source=SOURCE, ge=0, le=1
    )

    sharing_workers: float = parameter(
        0.0, "share of the workers that share samples with all other workers", source=SOURCE, ge=0, le=1
    )
    shared_fraction: float = parameter(
        0.0, "share of its batch that such a worker sends to the others", source=SOURCE, ge=0, le=1
    )

    _sharing: list[int] = PrivateAttr(default_factory=list)  # the workers drawn for the step that begins
    _drawn_for: list[int] = PrivateAttr(default_factory=list)  # workers released since they were drawn
    _flags: dict[str, bool] = PrivateAttr(default_factory=dict)  # of the votes that are not answered

    @property
    def shares_samples(self) -> bool:  # pyrefly: ignore[bad-override]
        """With data injection they do."""
        return bool(self.sharing_workers and self.shared_fraction)

    def worker_policy(self) -> WorkerPolicy:
        return Flags(delta=self.delta, window=self.window, smoothing=self.smoothing)

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the smoothing that depends on the number of workers, once, and the injection of each step."""
        orders: Orders = {}
        if not self.smoothing and view.workers[worker].status is Status.NEW:
            orders["smoothing"] = min(1.0, view.num_workers / 100)
        if self.sharing_workers and self.shared_fraction:
            self._draw_sharing(worker, view)
            batch_size = view.workers[worker].batch_size
            each = injected_samples(batch_size, self.shared_fraction, len(self._sharing))
            others = [other for other in self._sharing if other != worker]
            orders["injection"] = {"workers": others if each else [], "each": each}
        return orders

    def _draw_sharing(self, worker: int, view: ClusterView) -> None:
        """Draw the sharing workers at the first release of each step; all workers' steps begin together."""
        if worker in self._drawn_for or not self._drawn_for:
            count = floor(self.sharing_workers * view.num_active + 0.5)
            drawn = view.rng.choice(view.active, count, replace=False)
            self._sharing, self._drawn_for = sorted(int(one) for one in drawn), []
        self._drawn_for.append(worker)

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
