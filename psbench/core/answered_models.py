"""Base classes of aggregations that answer pushes with another model than the evaluated one."""

from __future__ import annotations

from psbench.core.aggregation import Aggregation
from psbench.core.arithmetic import State, Vector, WorkerStep
from psbench.core.needs import Need
from psbench.core.own_steps import OwnSteps


class AnsweredModels(Aggregation):
    """Base of aggregations that answer a push with another model, such as the region's."""

    reply = "answer"
    needs = (
        Need(
            "communication",
            lambda m: isinstance(m, AnsweredSteps),
            "{part} answers with a model, which workers under {other} would interpret as a gradient",
        ),
    )


class AnsweredSteps(OwnSteps):
    """A worker takes local steps and continues from the answer to its push, which is a model."""

    needs = (
        Need(
            "aggregation",
            lambda a: isinstance(a, AnsweredModels),
            "{part} continues from the model in the reply to a push, but {other} replies without one",
        ),
    )

    def receive(self, w: Vector, answer: Vector, state: State, own: WorkerStep) -> None:
        self.begin(w, answer, state, own)
