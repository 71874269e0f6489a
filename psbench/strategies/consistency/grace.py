"""ASP with a grace period: pushes within it are applied together, then all workers are released."""

from __future__ import annotations

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Commit, Consistency, Hold, Push, Release, SetTimer, parameter
from psbench.strategies.consistency.k_sync import hold_if_pending

SOURCE = "Liu et al. 2024 (Async Local-SGD)"
_KEY = "grace"


class Grace(Consistency):
    """Wait `grace_s` after a first push, then commit the pending pushes one by one.

    Workers that finish almost together so begin their next steps from one model.

    Notes
    -----
    Reduces to: ASP with a grace of 0.
    Our reading: a push that arrives at the very end of the period is of the next one if the timer came first;
    before a switch the period ends at once.
    """

    name = "grace"
    source = "Liu et al. 2024 (Async Local-SGD), sec. 3"
    singly = True

    grace_s: float = parameter(
        0.0, "time that the first push waits for other pushes; 0: no wait", unit="s", source=SOURCE, ge=0
    )

    _waiting: bool = PrivateAttr(False)  # whether a period is under way

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Commit at once without a grace period; else wait for its end."""
        if not self.grace_s:
            return [Commit([push]), Release(push.worker)]
        begins = [] if self._waiting else [SetTimer(view.now + self.grace_s, _KEY)]
        self._waiting = True
        return [*begins, Hold(push.worker, "grace period")]

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        """Commit the pending pushes in order of arrival, and release all waiting workers."""
        if key != _KEY:
            return []
        self._waiting = False
        return [*self.on_drained(view), *(Release(worker) for worker in view.waiting)]

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        """Release at once, unless an earlier push of the worker is still pending."""
        return hold_if_pending(worker, view, "grace period")

    def on_drained(self, view: ClusterView) -> list[Action]:
        """Commit each push alone, in the order of arrival."""
        return [Commit([push]) for push in view.pending.values()]
