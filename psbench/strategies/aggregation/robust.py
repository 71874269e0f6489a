"""Robust aggregation by entry: a few faulty workers cannot move the model arbitrarily."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter
from psbench.core.rounding import floor

SOURCE = "Yin et al. 2018"


class _Robust(Aggregation):
    """Step along the `centre` of the rows; every push has the same weight."""

    weighs_samples = False
    withstands_nan = True

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Give all pushes the same weight."""
        return [Apply(pushes, [1.0 / len(pushes)] * len(pushes))]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        rows = step.stack(pushes).sort(dim=0).values
        step.move(self.centre(rows))

    def centre(self, rows: Vector) -> Vector:
        """Return one row from sorted columns, (pushes, entries)."""
        raise NotImplementedError


class Median(_Robust):
    """Step along the median of each entry (the mean of the middle two for an even number).

    Notes
    -----
    Reduces to: the mean with one or two pushes. Withstands fewer than half of the pushes being anything, NaN
    too. An honest minority is not heard either: with non-IID data the median is biased.
    """

    name = "median"
    source = "Yin et al. 2018, Alg. 1, option I"

    def centre(self, rows: Vector) -> Vector:
        """Return the row in the middle."""
        count = len(rows)
        if count % 2:
            return rows[count // 2]
        return (rows[count // 2 - 1] + rows[count // 2]) / 2


class TrimmedMean(_Robust):
    """Step along the trimmed mean of each entry, without its largest and smallest values.

    Notes
    -----
    Reduces to: the plain mean with 0; the median with as much as can be trimmed. Withstands as many wrong
    pushes as are trimmed at one end.
    """

    name = "trimmed_mean"
    source = "Yin et al. 2018, Alg. 1, option II"

    trim: float = parameter(0.2, "share removed at either end", source=SOURCE, ge=0, lt=0.5)

    def centre(self, rows: Vector) -> Vector:
        left_out = floor(self.trim * len(rows))
        return rows[left_out : len(rows) - left_out].mean(dim=0)
