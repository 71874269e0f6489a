"""k-BSP, k-batch-BSP and backup workers: commit the first k pushes and discard the rest.

Dutta et al. call the first two K-sync and K-batch-sync.
"""

from __future__ import annotations

from typing import Literal

from psbench.core import ClusterView, Consistency, Push, parameter
from psbench.core.actions import Action, Cancel, Commit, Discard, Hold, Release
from psbench.errors import ParameterError

SOURCE = "Dutta et al., Slow and Stale Gradients Can Win the Race; thesis 3.2.2, Table 3.2, Fig. 3.3"


BACKUP_SOURCE = "Chen et al. 2016, Revisiting Distributed Synchronous SGD"


class _FirstPushes(Consistency):
    """Base of rules that commit after a number of pushes of the current version and restart all workers."""

    source = SOURCE
    cancels = True

    cancel: Literal["immediate", "on_arrival"] = parameter(
        "immediate",
        "stop late work at the commit, or drop its result when it arrives",
        source="our reading",
    )

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Drop a late push; count one in time."""
        if push.base_version < view.version:
            return [Discard(push, "late"), Release(push.worker)]
        return self._commit(view) or self._wait(push)

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Commit if the remaining pushes suffice: fewer than k workers may remain."""
        return self._commit(view)

    def _wait(self, push: Push) -> list[Action]:
        raise NotImplementedError

    def _needed(self, view: ClusterView) -> int:
        raise NotImplementedError

    def _commit(self, view: ClusterView) -> list[Action]:
        if not view.pending or len(view.pending) < self._needed(view):
            return []
        late = view.computing if self.cancel == "immediate" else []
        return [
            Commit(view.buffered()),
            *[Cancel(worker) for worker in late],
            *[Release(worker) for worker in sorted({*late, *view.waiting})],
        ]


class _FirstWorkers(_FirstPushes):
    """Base of rules over pushes of different workers: a worker that has pushed waits for the commit."""

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        return hold_if_pending(worker, view)

    def _wait(self, push: Push) -> list[Action]:
        return [Hold(push.worker, "k pushes")]


class KBSP(_FirstWorkers):
    """Commit the first k pushes of different workers, discard the others' work, and restart all workers.

    Notes
    -----
    Reduces to: BSP when k = n. k = 1 is not ASP: it voids the others' work.
    Staleness is 0 for every committed push. With fixed step times the slow workers may never be used:
    look at the share of applied pushes.
    Among n workers each update stops and restarts n - k of them; cancel = on_arrival sends these nothing.
    Our reading: with fewer than k workers left, all of them are enough.
    """

    name = "k_bsp"

    k: int = parameter(2, "pushes in a version", unit="pushes", source=SOURCE, ge=1)

    def check(self, num_workers: int, global_batch: int) -> None:
        _at_most_n(self, self.k, num_workers)

    def _needed(self, view: ClusterView) -> int:
        return min(self.k, view.num_active)


class BackupWorkers(_FirstWorkers):
    """Commit the first n - spares pushes of different workers, drop late pushes, and restart all workers.

    Parameters
    ----------
    spares : int, workers, 0 <= spares < n
        b of the paper: workers beyond those whose gradients make a version.
    cancel : "immediate" or "on_arrival"
        The paper drops a late gradient when it arrives; "immediate" also spares the worker the rest of it.

    Notes
    -----
    Reduces to: BSP when spares = 0; k-BSP with k = n - spares, which states the same rule by what is used
    instead of by what is spare.
    Our reading: a version needs N = n - spares gradients of the cluster as specified, so workers that fail
    use up the spares; with fewer than N left, all of them are enough and the mean is over those.
    """

    name = "backup_workers"
    source = BACKUP_SOURCE

    spares: int = parameter(
        1, "late workers that a version does not wait for", unit="workers", source=BACKUP_SOURCE, ge=0
    )
    cancel: Literal["immediate", "on_arrival"] = parameter(
        "on_arrival", "stop late work at the commit, or drop its result when it arrives", source=BACKUP_SOURCE
    )

    def check(self, num_workers: int, global_batch: int) -> None:
        """Require at least one worker that is not a spare."""
        if self.spares >= num_workers:
            raise ParameterError(
                f"{self.name}: {self.spares} of {num_workers} workers are spares, so a version would wait "
                "for no push; "
                f"give spares between 0 and {num_workers - 1}"
            )

    def _needed(self, view: ClusterView) -> int:
        return min(view.num_workers - self.spares, view.num_active)


class KBatchBSP(_FirstPushes):
    """Commit the first k mini-batches, possibly several of one worker; discard the rest; restart all.

    A worker that has pushed starts another mini-batch at once on the same version.

    Notes
    -----
    Staleness is 0 for every committed push. k = n is not BSP in general: a fast worker may fill two slots.
    It is with equal, constant speeds.
    """

    name = "k_batch_bsp"
    waits_for = "none"

    k: int = parameter(2, "pushes in a version", unit="pushes", source=SOURCE, ge=1)

    def _needed(self, view: ClusterView) -> int:
        return self.k

    def _wait(self, push: Push) -> list[Action]:
        return [Release(push.worker)]


def hold_if_pending(worker: int, view: ClusterView, reason: str = "k pushes") -> list[Action]:
    """Release a newcomer at once, unless its last push is still pending."""
    if any(push.worker == worker for push in view.pending.values()):
        return [Hold(worker, reason)]
    return [Release(worker)]


def _at_most_n(part: Consistency, k: int, num_workers: int) -> None:
    """Raise ParameterError if there are fewer than k workers."""
    if k > num_workers:
        raise ParameterError(
            f"{part.name}: k = {k} different workers, but the cluster has {num_workers}; "
            f"give k between 1 and {num_workers}"
        )
