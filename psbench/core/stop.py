"""When a run ends."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ValidationError, model_validator

from psbench.core.specification import Specification, explain, parameter
from psbench.errors import ParameterError


class Stop(Specification):
    """When a run ends: at the first of these that is reached.

    Parameters
    ----------
    epochs, seconds, updates, target_accuracy, patience, tolerance : optional
        `patience` counts evaluations in a row in which the validation loss did not improve (see
        `evaluate_every`; Hermes counts aggregations). With a `tolerance` the run
        ends at the first update with ||w_new - w_old|| < tolerance max(||w_new||, 1).

    Source
    ------
    `tolerance`: Spark MLlib's GradientDescent, whose default is 0.001.
    """

    epochs: float | None = parameter(None, "passes over the training set", unit="epochs", gt=0)
    seconds: float | None = parameter(None, "time of the run: virtual or wall", unit="s", gt=0)
    updates: int | None = parameter(None, "versions of the model", unit="updates", gt=0)
    target_accuracy: float | None = parameter(None, "validation accuracy", gt=0, le=1)
    patience: int | None = parameter(
        None, "evaluations without a better validation loss", unit="evaluations", gt=0
    )
    tolerance: float | None = parameter(
        None, "movement of the model by an update, relative to its norm if that is above 1", gt=0
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain(error, type(self), "stop") from None

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ParameterError(f"stop: give at least one of {', '.join(type(self).model_fields)}")
        return self

    @property
    def reads_validation(self) -> str:
        """The rule that reads the validation set; empty if none does."""
        rules = ("target_accuracy", "patience")
        return next((f"stop.{name}" for name in rules if getattr(self, name) is not None), "")
