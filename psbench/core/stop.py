"""Rules for the end of a run."""

from __future__ import annotations

from typing import Any, Self

from pydantic import field_validator, model_validator

from psbench.core.specification import Specification, parameter
from psbench.core.target import Target, target_of
from psbench.errors import ParameterError


class Stop(Specification):
    """Rules for the end of a run: it ends at the first that is reached.

    Parameters
    ----------
    epochs, seconds, updates, target_accuracy, target, patience, tolerance : optional
        `target` is a bound of any metric: `{metric: f1, at_least: 0.9}`, `{metric: loss, at_most: 0.2}`;
        `target_accuracy` is short for that of the validation accuracy.
        `patience` counts evaluations in a row in which the validation loss, or the `patience_metric`, did not
        improve (see `evaluate_every`; Hermes counts aggregations). With a `tolerance` the run
        ends at the first update with ||w_new - w_old|| < tolerance max(||w_new||, 1).

    Source
    ------
    `tolerance`: Spark MLlib's GradientDescent, whose default is 0.001.
    """

    epochs: float | None = parameter(None, "passes over the training set", unit="epochs", gt=0)
    seconds: float | None = parameter(None, "time of the run: virtual or wall", unit="s", gt=0)
    updates: int | None = parameter(None, "versions of the model", unit="updates", gt=0)
    target_accuracy: float | None = parameter(None, "validation accuracy", gt=0, le=1)
    target: Target | None = parameter(None, "bound of a metric, as {metric: f1, at_least: 0.9}")
    patience: int | None = parameter(
        None, "evaluations without a better validation loss", unit="evaluations", gt=0
    )
    patience_metric: str | None = parameter(None, "the metric that must improve, instead of the loss")
    tolerance: float | None = parameter(
        None, "smallest change of the model by an update, relative to its norm if that is above 1", gt=0
    )

    @field_validator("target", mode="before")
    @classmethod
    def _target(cls, value: Any) -> Target | None:
        return target_of(value)

    @model_validator(mode="after")
    def _ends(self) -> Self:
        rules = [name for name in type(self).model_fields if name != "patience_metric"]
        if all(getattr(self, name) is None for name in rules):
            raise ParameterError(f"stop: give at least one of {', '.join(rules)}")
        if self.patience_metric is not None and self.patience is None:
            raise ParameterError(
                "stop.patience_metric: also set patience, the number of evaluations without improvement"
            )
        return self

    @property
    def reads_validation(self) -> str:
        """The rule that reads the validation set; empty if none does."""
        rules: dict[str, Any] = {"target_accuracy": self.target_accuracy}
        if self.watched.startswith("val_"):
            rules["patience"] = self.patience
        if self.target is not None and self.target.column.startswith("val_"):
            rules["target"] = self.target
        return next((f"stop.{name}" for name, value in rules.items() if value is not None), "")

    @property
    def watched(self) -> str:
        """The evaluated value that `patience` is about, as `val_loss`."""
        metric = self.patience_metric or "loss"
        return metric if metric.startswith(("val_", "train_")) else f"val_{metric}"

    @property
    def reads_accuracy(self) -> str:
        """The rule that reads an accuracy; empty if none does."""
        if self.target_accuracy is not None:
            return "stop.target_accuracy"
        if self.patience is not None and self.watched.endswith("_accuracy"):
            return "stop.patience_metric"
        return "stop.target" if self.target is not None and self.target.bare == "accuracy" else ""

    @property
    def aim(self) -> Target | None:
        """The target of the run: `target`, or the accuracy; None if neither is given."""
        return target_of(self.target_accuracy) if self.target is None else self.target
