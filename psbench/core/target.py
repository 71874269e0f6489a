"""The target of a run: a value of some metric, from below or from above."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self, TypeAlias

from pydantic import model_validator

from psbench.core.specification import Specification, parameter
from psbench.errors import ParameterError, in_short
from psbench.percents import exact_percent

_WORDS = {"val": "validation", "train": "training"}
_TEXT = re.compile(r"\s*([A-Za-z]\w*)\s*(>=|<=)\s*([-+\d.eE]+)\s*")


class Target(Specification):
    r"""A bound of a metric that is evaluated along a run.

    Parameters
    ----------
    metric : str
        "accuracy" or "loss", of the validation set; "train_accuracy", "train_loss"; or the name of one of the
        experiment's `metrics`.
    at_least, at_most : float
        One of them.

    Examples
    --------
    >>> str(Target(metric="f1", at_least=0.9)), str(target_of(0.974)), str(target_of("loss <= 0.2"))
    ('f1 at least 0.9', 'validation accuracy 97.4\xa0%', 'validation loss at most 0.2')
    """

    metric: str = parameter("accuracy", "evaluated metric", min_length=1)
    at_least: float | None = parameter(None, "reached from below")
    at_most: float | None = parameter(None, "reached from above")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ParameterError(f"target: give either at_least or at_most for {self.metric!r}")
        if self.column.endswith("accuracy") and not (self.at_least and 0 < self.at_least <= 1):
            raise ParameterError(
                f"target: an accuracy needs an at_least above 0 and up to 1, got {self._bound}"
            )
        return self

    @property
    def column(self) -> str:
        """The evaluated value, as `val_f1`."""
        whole = self.metric.startswith(("val_", "train_"))
        return self.metric if whole else f"val_{self.metric}"

    @property
    def bare(self) -> str:
        """The metric without the set that it is evaluated on: `f1`."""
        return self.column.partition("_")[2]

    @property
    def bound(self) -> float:
        """The value to be reached."""
        return float(self.at_most if self.at_least is None else self.at_least)  # pyrefly: ignore[bad-argument-type]

    @property
    def called(self) -> str:
        """The metric in words."""
        of, _, bare = self.column.partition("_")
        return f"{_WORDS[of]} {bare}" if bare in ("accuracy", "loss") else bare.replace("_", " ")

    @property
    def is_accuracy(self) -> bool:
        """Return True if the target is a validation accuracy, which a plain number as a target means."""
        return self.column == "val_accuracy"

    def reached(self, value: float | None) -> bool:
        """Return whether an evaluated value reaches the target; missing values do not."""
        if value is None:
            return False
        return value <= self.bound if self.at_least is None else value >= self.bound

    @property
    def _bound(self) -> str:
        return f"at_most = {self.at_most}" if self.at_least is None else f"at_least = {self.at_least}"

    def __str__(self) -> str:
        side = "" if self.is_accuracy else "at most " if self.at_least is None else "at least "
        bound = exact_percent(self.bound) if self.bare == "accuracy" else f"{self.bound:.4g}"
        return f"{self.called} {side}{bound}"


#: what means a target: a validation accuracy, a text such as "f1 >= 0.9", a mapping, or one
Aim: TypeAlias = float | str | Mapping[str, Any] | Target | None


def target_of(value: Any) -> Target | None:
    """Return a target from one, a validation accuracy, a mapping, or a text such as "f1 >= 0.9".

    Raises
    ------
    ParameterError
    """
    if value is None or isinstance(value, Target):
        return value
    if isinstance(value, str) and (found := _TEXT.fullmatch(value)):
        side = "at_least" if found[2] == ">=" else "at_most"
        return Target(metric=found[1], **{side: _number(value, found[3])})
    if isinstance(value, str) and re.fullmatch(r"[\d.]+", value):
        value = _number(value, value)
    if isinstance(value, Mapping):
        return Target(**value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
        return Target.model_construct(metric="accuracy", at_least=float(value), at_most=None)
    raise ParameterError(
        f"target: expected a validation accuracy from 0 to 1, {{metric: f1, at_least: 0.9}} or 'f1 >= 0.9', "
        f"got {in_short(value)}"
    )


def plain_target(target: Target) -> float | dict[str, Any]:
    """Return a target as files hold it: a number, if it is a validation accuracy."""
    return target.bound if target.is_accuracy else target.model_dump(exclude_none=True)


def _number(text: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise ParameterError(f"target: {number!r} in {text!r} is not a number") from None
