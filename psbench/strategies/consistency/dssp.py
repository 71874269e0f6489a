"""Dynamic SSP: the staleness bound is chosen again whenever the fastest worker reaches it."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from pydantic import PrivateAttr, model_validator

from psbench.core import Action, ClusterView, Status, parameter
from psbench.errors import ParameterError
from psbench.strategies.consistency.ssp import ClockBound

SOURCE = "Zhao et al. 2019, DSSP"


class DSSP(ClockBound):
    """SSP with the bound `lower`; the fastest worker may be granted a larger lead, up to `upper`.

    When the fastest worker would be held, the server predicts its next pushes and those of the slowest from
    the intervals between their last two, and grants it the steps after which its push falls closest to one
    of the slowest: stopped there, it waits least.

    Parameters
    ----------
    lower, upper : int, steps, 0 <= lower <= upper
        s_L and s_U: the range of the staleness bound. At most upper - lower steps are granted at a time.

    Notes
    -----
    Reduces to: SSP(lower) when lower = upper; nearly so when all are equally fast.
    Our reading: a grant of r lets r further steps run, the one that starts now among them. As published,
    grants can follow upon grants beyond `upper`, whose regret bound assumes they cannot; `clamp` sees to it.
    Without two pushes of both workers nothing is predicted and nothing granted. Of several fastest workers
    each may ask; of several slowest the one whose next push is predicted last counts, since it frees the
    others. A grant ends with its worker's stay in the cluster.
    """

    name = "dssp"
    source = SOURCE

    lower: int = parameter(
        3,
        "lead at which the fastest worker stops or is granted more steps",
        unit="steps",
        source=SOURCE,
        ge=0,
    )
    # the predicted pushes are as many as this range is wide
    upper: int = parameter(15, "largest lead after a grant", unit="steps", source=SOURCE, ge=0, le=10_000)
    metric: Literal["distance", "wait"] = parameter(
        "distance",
        "quantity that a grant minimises: distance to a push of the slowest worker, or wait for it",
        source=SOURCE,
    )
    clamp: bool = parameter(True, "never exceed `upper`", source="our reading")

    _grants: dict[str, int] = PrivateAttr(default_factory=dict)  # steps still granted, by worker

    @model_validator(mode="after")
    def _is_range(self) -> Self:
        if self.lower > self.upper:
            raise ParameterError(f"{self.name}: lower = {self.lower} is above upper = {self.upper}")
        return self

    @property
    def bound(self) -> int:
        """The lower end of the range."""
        return self.lower

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        """Drop the steps granted before the worker left."""
        self._grants.pop(str(worker), None)
        return super().on_join(worker, view)

    def _may_go_on(self, worker: int, view: ClusterView) -> bool:
        left = self._grants.pop(str(worker), 0)
        if not left and self._within(worker, view):
            return True
        left = left or self._granted(worker, view)
        if left > 1:
            self._grants[str(worker)] = left - 1
        return left > 0

    def _granted(self, worker: int, view: ClusterView) -> int:
        if view.workers[worker].clock < max(view.clock_counts):
            return 0
        steps = self._predicted(worker, view)
        if not self.clamp:
            return steps
        return max(0, min(steps, self.upper - view.clock_lead(worker) + 1))

    def _predicted(self, worker: int, view: ClusterView) -> int:
        slowest = [w for w in view.workers.values() if w.clock == view.min_clock and w.status != Status.GONE]
        own = view.workers[worker]
        theirs = [(w.last_push_s, w.last_push_s - w.previous_push_s) for w in slowest]
        if not np.isfinite([own.previous_push_s, *(interval for _, interval in theirs)]).all():
            return 0
        pushes = (own.last_push_s, own.last_push_s - own.previous_push_s)
        return best_stop(pushes, max(theirs, key=sum), self.upper - self.lower, self.metric)


def best_stop(
    fast: tuple[float, float], slow: tuple[float, float], most: int, metric: Literal["distance", "wait"]
) -> int:
    """Return the number of further steps after which the fast worker should stop.

    Parameters
    ----------
    fast, slow : (float, float), seconds
        Time of the last push, and the interval between the last two.
    most : int, steps
        The largest answer, and the number of the slow worker's pushes beyond the next that are looked at.
    metric : "distance" or "wait"
        The distance to the nearest predicted push of the slow worker, or the time until its next one.

    Examples
    --------
    >>> best_stop((10, 1), (9.5, 3.5), most=4, metric="distance")
    3
    """
    steps = np.arange(most + 1)
    stops, pushes = fast[0] + steps * fast[1], slow[0] + (steps + 1) * slow[1]
    after = np.searchsorted(pushes, stops)  # the first push of the slow worker that is not before the stop
    cost = np.append(pushes, np.inf)[after] - stops
    if metric == "distance":
        cost = np.minimum(cost, stops - np.append(-np.inf, pushes)[after])
    return int(cost.argmin())  # the first of several
