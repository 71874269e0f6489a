"""Bulk Synchronous Parallel: a barrier after every step."""

from __future__ import annotations

from psbench.core import Action, ClusterView, Commit, Consistency, Hold, Push, Release


class BSP(Consistency):
    """Commit when every worker has pushed, then release all workers.

    No worker computes while the barrier opens, so every push was computed on the current version: staleness
    is 0. A worker that leaves is no longer waited for; a push it had sent still counts; one that joins
    while the barrier fills begins when it opens.

    Notes
    -----
    Reduces to: mini-batch SGD on the union of the workers' batches.
    """

    name = "bsp"
    source = "Valiant 1990; thesis 2.1.2, 3.2.2"
    barrier = True
    waits_for = "all"

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Hold the worker until the barrier is full."""
        return self._open(view) or [Hold(push.worker, "barrier")]

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        """Hold a newcomer until the barrier opens."""
        return self._open(view) or [Hold(worker, "barrier")]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Wait no longer for a worker that has gone."""
        return self._open(view)

    def _open(self, view: ClusterView) -> list[Action]:
        if view.num_under_way:
            return []
        commit: list[Action] = [Commit(view.buffered())] if view.pending else []
        return commit + [Release(worker) for worker in view.waiting]
