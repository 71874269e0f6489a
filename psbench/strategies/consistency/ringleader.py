"""Ringleader ASGD: rounds in which every worker's arriving gradient makes one version."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Commit, Consistency, Push, Release

SOURCE = "Maranjyan and Richtarik 2026 (Ringleader ASGD)"


class Ringleader(Consistency):
    """Collect until every worker has pushed; then make one version per worker, as its next push arrives.

    No worker waits. Collecting: pushes are kept, and their workers go on from the version that there is. With
    the push of the last worker the first version of a round is made, of all that was kept, and sent to that
    worker. In the round: the first push of every other worker makes a version of its own, which it is sent.
    The push of a worker that was served already is kept for the next round, and the worker goes on. When all
    are served the next round is collected.

    Notes
    -----
    Reduces to: SGD with one worker. Each push is part of one commit, so that nothing is discarded, and the
    gradients of aggregation `gradient_table` are at most 2n - 2 versions old.
    Our reading: the paper has no workers that come and go. A round does without one that is lost; what it had
    pushed counts. One that comes is waited for when the next round is collected.

    Examples
    --------
    >>> from psbench.core.view import Status, WorkerView
    >>> view = ClusterView(2, 1, 1, num_active=2, num_computing=1)
    >>> view.workers = {i: WorkerView(i, Status.COMPUTING) for i in range(2)}
    >>> view.pending = {0: Push(0, 0, 1, 0, samples=8)}
    >>> [type(action).__name__ for action in Ringleader().on_push(view.pending[0], view)]
    ['Release']
    >>> view.pending[1] = Push(1, 1, 1, 0, samples=8)
    >>> [type(action).__name__ for action in Ringleader().on_push(view.pending[1], view)]
    ['Commit', 'Release']
    """

    name = "ringleader"
    source = "Maranjyan and Richtarik 2026 (Ringleader ASGD), Alg. 1"
    waits_for = "none"

    _unserved: list[int] = PrivateAttr(default_factory=list)  # of the round; empty while one is collected
    _collected: set[int] | None = PrivateAttr(None)  # whose pushes are stored; None: not counted yet

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Make a version if the push completes a collection, or is its worker's first one of the round."""
        worker, commit = push.worker, list[Action]()
        if not self._unserved:
            commit = self._begin_round(view, served=worker)
        elif self._serve(worker):
            commit = [Commit([push])]
        return [*commit, Release(worker)]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Release the others; begin a round if only the lost worker was missing."""
        self._serve(worker)
        return [] if self._unserved else self._begin_round(view)

    def _serve(self, worker: int) -> bool:
        """Remove a worker from those of the round, which are in order; return whether it was among them."""
        place = bisect_left(self._unserved, worker)
        if place == len(self._unserved) or self._unserved[place] != worker:
            return False
        del self._unserved[place]
        return True

    def _begin_round(self, view: ClusterView, served: int = -1) -> list[Action]:
        """Commit the stored pushes if every worker has pushed; release a worker that has just joined."""
        if self._collected is None:
            self._collected = {push.worker for push in view.pending.values()}
        elif served >= 0:
            self._collected.add(served)
        active = view.active if len(self._collected) >= view.num_active else []
        if not active or not self._collected.issuperset(active):
            return []
        self._unserved, self._collected = [worker for worker in active if worker != served], None
        return [Commit(view.buffered())]

    def state_dict(self) -> dict[str, Any]:
        """Return the workers of the round; the view has the pushes that are stored."""
        return {"_unserved": [*self._unserved]}
