"""Malenia SGD: gradients of one version, until the harmonic mean of the workers' counts is large enough."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

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

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Discard a late push; otherwise commit if the version is complete, or let the worker continue."""
        if push.base_version < view.version:
            return [Discard(push, "late"), Release(push.worker)]
        return self._commit(view) or [Release(push.worker)]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Commit if the pushes of the workers that are left are enough."""
        return self._commit(view)

    def _commit(self, view: ClusterView) -> list[Action]:
        counts = Counter(push.worker for push in view.pending.values())
        workers = {*counts, *view.active}
        if not counts or any(worker not in counts for worker in workers):
            return []
        # n / sum(1/B_i) >= S/n, exactly: at equality a rounded sum would depend on the order of the workers
        if len(workers) ** 2 < self.total * sum(Fraction(1, count) for count in counts.values()):
            return []
        late = view.computing
        restarted = sorted({*late, *view.waiting})
        return [Commit(view.buffered()), *map(Cancel, late), *map(Release, restarted)]
