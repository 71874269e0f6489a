"""Probabilistic Synchronous Parallel: a worker waits only for a few workers drawn at random."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Commit, Consistency, Hold, Push, Release, Status, parameter
from psbench.core.view import WAITING

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
    _drawn_by: dict[int, set[int]] = PrivateAttr(default_factory=dict)  # the same, by whom it waits for

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Commit, draw, and release every waiting worker that is close enough to its drawn workers.

        Only a worker that has drawn this one can be closer than before.
        """
        here, worker = view.active, push.worker
        place, others = bisect_left(here, worker), len(here) - 1
        count = min(self.sample, others)
        drawn = view.rng.choice(others, count, replace=False) if 0 < count < others else range(count)
        self._draw(worker, sorted(here[int(i) + (int(i) >= place)] for i in drawn))
        close = sorted({worker, *self._drawn_by.get(worker, ())})
        waiting = [each for each in close if view.workers[each].status in WAITING]
        released = [Release(each) for each in waiting if self._may_go_on(each, view)]
        held: list[Action] = [] if Release(worker) in released else [Hold(worker, "drawn workers")]
        return [Commit([push]), *released, *held]

    def _draw(self, worker: int, drawn: list[int]) -> None:
        for other in self._drawn.pop(str(worker), []):
            self._drawn_by[other].discard(worker)
        if drawn:
            self._drawn[str(worker)] = drawn
        for other in drawn:
            self._drawn_by.setdefault(other, set()).add(worker)

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        """Release a newcomer, and forget the workers it waited for before it left."""
        self._draw(worker, [])
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

    def state_dict(self) -> dict[str, Any]:
        """Return the workers that each waiting worker has drawn."""
        return {"_drawn": {worker: [*drawn] for worker, drawn in self._drawn.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._drawn, self._drawn_by = {}, {}
        for worker, drawn in state["_drawn"].items():
            self._draw(int(worker), [*drawn])
