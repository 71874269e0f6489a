"""Probabilistic Synchronous Parallel: a worker waits only for a few workers drawn at random."""

from __future__ import annotations

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Commit, Consistency, Hold, Push, Release, Status, parameter

SOURCE = "Wang et al. 2017 (PSP)"


class PSP(Consistency):
    """Commit each push at once; its worker waits while it leads one of `sample` drawn workers by too much.

    After each push the worker draws `sample` of the other workers and starts its next step when it leads none
    of them by more than `lead` steps. With lead 0 the paper calls the rule pBSP, otherwise pSSP.

    Notes
    -----
    Reduces to: ASP with sample = 0; SSP(lead) with sample = n - 1, and so BSP with lead = 0 besides (equal to
    rounding: pushes are summed one by one).
    Our reading: the workers are drawn once after each push, uniformly and without replacement, from the
    stream of the decisions, and are kept until they have caught up or left. With fewer workers than
    `sample`, all others are drawn.
    """

    name = "psp"
    source = SOURCE
    singly = True

    sample: int = parameter(
        2, "number of other workers that are sampled", unit="workers", source=SOURCE, ge=0
    )
    lead: int = parameter(
        0, "largest lead over them at the start of a step", unit="steps", source=SOURCE, ge=0
    )

    _drawn: dict[str, list[int]] = PrivateAttr(default_factory=dict)  # whom each waiting worker waits for

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Commit, draw, and release every waiting worker that is close enough to its drawn workers."""
        others = [worker for worker in view.active if worker != push.worker]
        count = min(self.sample, len(others))
        drawn = (
            view.rng.choice(len(others), count, replace=False) if 0 < count < len(others) else range(count)
        )
        self._drawn[str(push.worker)] = sorted(others[int(i)] for i in drawn)
        released = self._released(view)
        held: list[Action] = [] if Release(push.worker) in released else [Hold(push.worker, "drawn workers")]
        return [Commit([push]), *released, *held]

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        """Release a newcomer, and forget the workers it waited for before it left."""
        self._drawn.pop(str(worker), None)
        return [Release(worker)]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Release the workers that waited only for the one that has left."""
        return self._released(view)

    def _released(self, view: ClusterView) -> list[Action]:
        return [Release(worker) for worker in view.waiting if self._may_go_on(worker, view)]

    def _may_go_on(self, worker: int, view: ClusterView) -> bool:
        clock = view.workers[worker].clock
        drawn = (view.workers[other] for other in self._drawn.get(str(worker), []))
        return all(clock - other.clock <= self.lead for other in drawn if other.status is not Status.GONE)
