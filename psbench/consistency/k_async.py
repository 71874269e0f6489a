"""k-ASP and k-batch-ASP: commit every k pushes, however stale; nothing is voided.

Dutta et al. call them K-async and K-batch-async.
"""

from __future__ import annotations

from typing import ClassVar

from psbench.consistency.k_sync import SOURCE, _at_most_n
from psbench.core.actions import Action, Commit, Hold, Release
from psbench.core.events import Push
from psbench.core.part import Consistency, parameter
from psbench.core.view import ClusterView


class KASP(Consistency):
    """Commit k pushes of k different workers, of any staleness; only the contributors pull and go on.

    Parameters
    ----------
    k : int, pushes, 1 <= k <= n

    Notes
    -----
    Reduces to: ASP when k = 1; BSP when k = n. Nothing is discarded.
    Our reading: a contributor waits for the commit that uses its push, since k *different* workers are
    asked for. With fewer than k workers left, all of them are enough.

    Source
    ------
    Dutta et al. (K-async); thesis 3.2.2, Table 3.2, Fig. 3.3; `protocols` 1.3.

    Examples
    --------
    >>> KASP(k=2).k
    2
    """

    name: ClassVar[str] = "k_asp"
    source: ClassVar[str] = SOURCE

    k: int = parameter(2, "pushes that complete a version", unit="pushes", source=SOURCE, ge=1)

    def check(self, num_workers: int, global_batch: int) -> None:
        """Require k different workers to exist."""
        _at_most_n(self, self.k, num_workers)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Hold the worker until k have pushed."""
        return self._commit(view) or [Hold(push.worker, "k pushes")]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Fewer than k may be left: then they are enough."""
        return self._commit(view)

    def _commit(self, view: ClusterView) -> list[Action]:
        if not view.pending or len(view.pending) < min(self.k, view.num_active):
            return []
        pushes = sorted(view.pending.values(), key=lambda push: push.worker)
        return [Commit(pushes), *[Release(worker) for worker in view.waiting]]


class KBatchASP(Consistency):
    """Commit every k pushes, of any staleness, possibly several of one worker; nobody ever waits.

    Parameters
    ----------
    k : int, pushes, >= 1

    Notes
    -----
    Reduces to: ASP when k = 1. A worker pulls the current version at once, which is the one it has if
    nothing was committed meanwhile. Nothing is discarded.

    Source
    ------
    Dutta et al. (K-batch-async), Lian et al. 2015; thesis 3.2.2, Table 3.2; `protocols` 1.3.

    Examples
    --------
    >>> KBatchASP(k=4).k
    4
    """

    name: ClassVar[str] = "k_batch_asp"
    source: ClassVar[str] = SOURCE
    waits_for = "none"

    k: int = parameter(2, "pushes that complete a version", unit="pushes", source=SOURCE, ge=1)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Go on at once; commit with every k-th push."""
        full: list[Action] = [Commit(list(view.pending.values()))] if len(view.pending) >= self.k else []
        return [*full, Release(push.worker)]
