"""Base classes of aggregations whose workers correct their steps by control variates."""

from __future__ import annotations

from psbench.core.aggregation import Aggregation
from psbench.core.needs import Need
from psbench.core.own_steps import OwnSteps


class ControlledModels(Aggregation):
    """A push carries a model and its worker's control variate; an answer, a model and the global one."""

    payload = "parameters"
    carries = ("control",)
    sends = ("control",)
    needs = (
        Need(
            "communication",
            lambda m: isinstance(m, CorrectedSteps),
            "{part} needs the control variates of workers, but {other} sends none",
        ),
    )


class CorrectedSteps(OwnSteps):
    """A worker corrects its steps by the global control variate (`own.answer["control"]`) minus its own."""

    needs = (
        Need(
            "aggregation",
            lambda a: isinstance(a, ControlledModels),
            "{part} corrects its steps by a global control variate, but {other} sends none",
        ),
    )
