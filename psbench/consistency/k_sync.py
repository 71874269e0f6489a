"""k-BSP and k-batch-BSP: commit on the first k pushes and void the rest.

Dutta et al. call them K-sync and K-batch-sync.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from psbench.core.actions import Action, Cancel, Commit, Discard, Hold, Release
from psbench.core.events import Push
from psbench.core.part import Consistency, parameter
from psbench.core.view import ClusterView
from psbench.errors import ParameterError

SOURCE = "Dutta et al., Slow and Stale Gradients Can Win the Race; thesis 3.2.2, Table 3.2"


class _KSync(Consistency):
    """What the two share: after k pushes of the current version, commit and restart everybody."""

    source: ClassVar[str] = SOURCE

    k: int = parameter(2, "pushes that complete a version", unit="pushes", source=SOURCE, ge=1)
    cancel: Literal["immediate", "on_arrival"] = parameter(
        "immediate", "stop late work at the commit, or drop its result when it arrives", source="protocols 1.3 (c)"
    )

    @property
    def cancels(self) -> bool:
        """Late work is voided."""
        return True

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Drop a late push; count one in time."""
        if push.base_version < view.version:
            return [Discard(push, "late"), Release(push.worker)]
        return self._commit(view) or self._wait(push)

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Fewer than k may be left: then they are enough."""
        return self._commit(view)

    def _wait(self, push: Push) -> list[Action]:
        raise NotImplementedError

    def _needed(self, view: ClusterView) -> int:
        return self.k

    def _commit(self, view: ClusterView) -> list[Action]:
        if not view.pending or len(view.pending) < self._needed(view):
            return []
        late = view.computing if self.cancel == "immediate" else []
        return [
            Commit(list(view.pending.values())),
            *[Cancel(worker) for worker in late],
            *[Release(worker) for worker in sorted({*late, *view.waiting})],
        ]


class KBSP(_KSync):
    """Commit the first k pushes, of k different workers; void the work of the other n - k; restart all.

    Parameters
    ----------
    k : int, pushes, 1 <= k <= n
    cancel : "immediate" or "on_arrival"
        Whether late work stops at the commit, or runs out and is dropped on arrival.

    Notes
    -----
    Reduces to: BSP when k = n. k = 1 is not ASP: it voids the others' work.
    Staleness is 0 for every committed push. With fixed step times the slow workers may never be used:
    look at the share of applied pushes.
    Our reading: with fewer than k workers left, all of them are enough.

    Source
    ------
    Dutta et al. (K-sync); thesis 3.2.2, Table 3.2, Fig. 3.3; `protocols` 1.3.

    Examples
    --------
    >>> KBSP(k=2).k
    2
    """

    name: ClassVar[str] = "k_bsp"

    def check(self, num_workers: int, global_batch: int) -> None:
        """k different workers must exist."""
        _at_most_n(self, self.k, num_workers)

    def _needed(self, view: ClusterView) -> int:
        return min(self.k, view.num_active)

    def _wait(self, push: Push) -> list[Action]:
        return [Hold(push.worker, "k pushes")]


class KBatchBSP(_KSync):
    """Commit the first k mini-batches, possibly several of one worker; void the rest; restart all.

    A worker that has pushed starts another mini-batch at once on the same version.

    Parameters
    ----------
    k : int, pushes, >= 1
    cancel : "immediate" or "on_arrival"

    Notes
    -----
    Staleness is 0 for every committed push. k = n is not BSP in general: a fast worker may fill two slots.
    It is with equal, constant speeds.

    Source
    ------
    Dutta et al. (K-batch-sync); thesis 3.2.2, Table 3.2, Fig. 3.3; `protocols` 1.3.

    Examples
    --------
    >>> KBatchBSP(k=3).k
    3
    """

    name: ClassVar[str] = "k_batch_bsp"
    waits_for = "none"

    def _wait(self, push: Push) -> list[Action]:
        return [Release(push.worker)]


def _at_most_n(part: Consistency, k: int, num_workers: int) -> None:
    if k > num_workers:
        raise ParameterError(
            f"{part.name}: k = {k} different workers, but the cluster has {num_workers}; "
            f"give k between 1 and {num_workers}"
        )
