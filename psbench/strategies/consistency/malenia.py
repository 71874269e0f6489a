"""Malenia SGD: gradients of one version, until the harmonic mean of the workers' counts is large enough."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from pydantic import PrivateAttr

from psbench.core import Action, Cancel, ClusterView, Commit, Consistency, Discard, Push, Release, parameter

SOURCE = "Tyurin and Richtarik 2023"


class Malenia(Consistency):
    """Commit the current version's pushes once (1/n sum 1/B_i)^-1 >= S/n; cancel other work; restart all.

    B_i is the number of worker i's pushes of the current version and n the number of workers. A worker that
    has pushed starts another mini-batch at once on the same version. The count is a harmonic mean, so every
    worker must push at least once: workers may hold different data.

    Notes
    -----
    Reduces to: BSP when every B_i is 1, as with S <= n and equal, constant speeds. Rennala SGD
    (`k_batch_bsp`) counts pushes of any workers, which suits workers with like data.
    Our reading: n are the active workers and those whose pushes are pending; a worker that leaves without a
    push is not waited for. The aggregation `worker_means` takes the mean of the workers' means.
    """

    name = "malenia"
    source = f"{SOURCE}, Malenia SGD"
    cancels = True
    waits_for = "none"

    total: int = parameter(
        8, "S: pushes of a version if all workers are equally fast", unit="pushes", source=SOURCE, ge=1
    )

    _counts: dict[int, int] = PrivateAttr(default_factory=dict)  # stored pushes by worker
    _inverse: Fraction = PrivateAttr(Fraction(0))  # the sum of the inverse counts
    _counted: int = PrivateAttr(-1)  # the version for which these are counted

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Discard a late push; otherwise commit if the version is complete, or let the worker continue."""
        if push.base_version < view.version:
            return [Discard(push, "late"), Release(push.worker)]
        if self._counted == view.version:
            self._count(push.worker)
        return self._commit(view) or [Release(push.worker)]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Commit if the pushes of the workers that are left are enough."""
        return self._commit(view)

    def _count(self, worker: int) -> None:
        count = self._counts[worker] = self._counts.get(worker, 0) + 1
        self._inverse += Fraction(1, count) - (Fraction(1, count - 1) if count > 1 else 0)

    def _commit(self, view: ClusterView) -> list[Action]:
        if self._counted != view.version:
            self._counted, self._counts, self._inverse = view.version, {}, Fraction(0)
            for push in view.pending.values():
                self._count(push.worker)
        # n / sum(1/B_i) >= S/n, exactly: at equality a rounded sum would depend on the order of the workers
        counts = self._counts
        if not counts or len(counts) < view.num_active or len(counts) ** 2 < self.total * self._inverse:
            return []
        if any(worker not in counts for worker in view.active):
            return []
        late = view.computing
        restarted = sorted({*late, *view.waiting})
        return [Commit(view.buffered()), *map(Cancel, late), *map(Release, restarted)]

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the view has the pushes that are counted."""
        return {}
