"""Stale Synchronous Parallel: the fastest worker may lead the slowest by a bounded number of steps."""

from __future__ import annotations

from psbench.core import Action, ClusterView, Commit, Consistency, Hold, Push, Release, parameter


class ClockBound(Consistency):
    """Base of SSP and DSSP: each push is committed at once, and a worker that leads by too much waits."""

    singly = True

    @property
    def bound(self) -> int:
        """Largest lead at which a worker may start a step, and at which a waiting one is released."""
        raise NotImplementedError

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Commit; release or hold this worker, and release others if the slowest has advanced."""
        may = self._may_go_on(push.worker, view)
        actions: list[Action] = [Commit([push])]
        if view.min_clock_rose:
            waiting = [w for w in view.waiting if (may if w == push.worker else self._within(w, view))]
            actions += [Release(worker) for worker in waiting]
        elif may:
            actions.append(Release(push.worker))
        if not may:
            actions.append(Hold(push.worker, "staleness bound"))
        return actions

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Release workers within the bound: the slowest worker may have left."""
        return [Release(w) for w in view.waiting if self._within(w, view)]

    def _within(self, worker: int, view: ClusterView) -> bool:
        return view.clock_lead(worker) <= self.bound

    def _may_go_on(self, worker: int, view: ClusterView) -> bool:
        return self._within(worker, view)


class SSP(ClockBound):
    """Commit each push at once; let a worker start a step if it leads by at most `staleness_bound`.

    Notes
    -----
    Reduces to: BSP when staleness_bound = 0 (equal to rounding: pushes are summed one by one); ASP when it
    is never reached.
    Our reading: the bound applies when a step starts. A held worker that has just finished may show a lead
    of one more (thesis Fig. 3.4 blocks there too). A worker that leaves no longer counts as the slowest.
    """

    name = "ssp"
    source = "Ho et al. 2013, sec. 3; thesis 3.2.2"

    staleness_bound: int = parameter(
        3,
        "largest lead over the slowest worker at the start of a step",
        unit="steps",
        source="Ho et al. 2013",
        ge=0,
    )

    @property
    def bound(self) -> int:
        return self.staleness_bound
