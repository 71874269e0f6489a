"""Direction of evaluated values: whether a higher or a lower one is better."""

from __future__ import annotations

from collections.abc import Mapping

from psbench.core.target import Target
from psbench.errors import ParameterError, UnknownName
from psbench.optimization.scores import Metric


def check_target(target: Target, metrics: Mapping[str, Metric], asked_by: str) -> None:
    """Reject a target without a metric, or in the wrong direction.

    Raises
    ------
    UnknownName, ParameterError
        Naming `asked_by`.
    """
    lower = _declared(target.column, metrics, asked_by)
    if lower is None or target.bare == "accuracy" or lower == (target.at_least is None):
        return
    raise ParameterError(
        f"{asked_by}: {target.metric!r} is better if it is {'lower' if lower else 'higher'}; give "
        f"{'at_most' if lower else 'at_least'}"
    )


def is_lower_better(metric: str, metrics: Mapping[str, Metric], asked_by: str) -> bool:
    """Return whether lower values of a metric are better.

    Parameters
    ----------
    metric : str
        As `loss`, `val_loss`, `train_loss` or `f1`.
    metrics : mapping
        Those of the experiment, beside loss and accuracy.
    asked_by : str
        What errors name, as "stop.patience_metric".

    Raises
    ------
    UnknownName
        If it is not evaluated.
    ParameterError
        If the metric does not say so.
    """
    column = metric if metric.startswith(("val_", "train_")) else f"val_{metric}"
    found = _declared(column, metrics, asked_by)
    if found is None:
        raise ParameterError(
            f"{asked_by}: is a large {metric.removeprefix('val_')!r} good or bad? Declare it with the "
            "metric: {function: ..., better: higher}"
        )
    return found


def _declared(column: str, metrics: Mapping[str, Metric], asked_by: str) -> bool | None:
    """Return whether lower evaluated values are better; None if undeclared."""
    bare = column.partition("_")[2]
    own_columns = [metric.column(name).removeprefix("val_") for name, metric in metrics.items()]
    known = ["accuracy", "loss", "train_accuracy", "train_loss", *own_columns]
    if column.removeprefix("val_") not in known:
        raise UnknownName(f"metric of {asked_by}", column.removeprefix("val_"), known)
    own = metrics.get(bare)
    if bare in ("loss", "accuracy") or own is None:
        return bare == "loss"
    return own.lower_is_better
