"""Predicted strategies: their bands, their ranking, and ties."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from psbench.percents import exact_percent, percent
from psbench.twin.measures import Band, Measures

#: bands of an epoch that a cluster's watts and prices give, with their headings
_PRICED = {"epoch_joules": "J an epoch", "epoch_cost": "cost of an epoch"}


@dataclass(frozen=True)
class Predicted:
    """One strategy: its name, its runs' measures, and bands of seconds.

    Attributes
    ----------
    update_s, epoch_s : Band
        Seconds of an update, and of as many samples as there are data.
    target_s : Band or None
        Seconds to the target; None without one, or if a seed does not reach it.
    epoch_joules, epoch_cost : Band or None
        Of as many samples as there are data; None if the cluster has no watts, or no prices.
    value : anything
        Along a curve, what `setting` was set to.
    """

    name: str
    setting: str
    runs: Sequence[Measures]
    update_s: Band
    epoch_s: Band
    target_s: Band | None
    value: Any = None
    epoch_joules: Band | None = None
    epoch_cost: Band | None = None

    @property
    def title(self) -> str:
        """The name with its setting."""
        return f"{self.name} {self.setting}".strip()

    @property
    def idle(self) -> float:
        """Mean share of their time that workers waited, over the runs; 0 to 1."""
        return math.fsum(each.idle for each in self.runs) / len(self.runs)

    @property
    def unused(self) -> float:
        """Mean share of the finished gradients that are never used, over the runs; 0 to 1."""
        return math.fsum(each.unused for each in self.runs) / len(self.runs)

    @property
    def starved(self) -> Sequence[str]:
        """The starved workers of the first run, one per line."""
        return self.runs[0].starved

    @property
    def judged_by(self) -> Band:
        """The band that determines the ranking: time to the target, or else per epoch."""
        return self.target_s or self.epoch_s


@dataclass(frozen=True, repr=False)
class Predictions:
    """Strategies on one profile, fastest first (along a curve: in its order)."""

    rows: Sequence[Predicted]
    target: float | None
    seeds: int
    over: str = ""

    @property
    def is_curve(self) -> bool:
        """Return True if the rows are values of a setting, `over`, instead of strategies."""
        return bool(self.over)

    def ties(self) -> list[tuple[str, str]]:
        """Return adjacent rows of the ranking with overlapping bands."""
        pairs = pairwise(sorted(self._ranked, key=lambda row: row.judged_by.mean))
        return [(a.title, b.title) for a, b in pairs if a.judged_by.overlaps(b.judged_by)]

    def best(self) -> tuple[str, list[str]]:
        """Return the fastest row, and the rows whose bands overlap with it."""
        first = min(self._ranked, key=lambda row: row.judged_by.mean)
        same = [
            each for each in self._ranked if each is not first and each.judged_by.overlaps(first.judged_by)
        ]
        return first.title, [each.title for each in same]

    @property
    def _ranked(self) -> Sequence[Predicted]:
        """The rows with a prediction that reached the target, if there is one; all if none did."""
        reached = [row for row in self.rows if self.target is None or row.target_s is not None]
        return [row for row in reached if row.judged_by.is_prediction] or reached or self.rows

    @property
    def width(self) -> float:
        """The median width of the bands that determine the ranking, as a share of their means."""
        return statistics.median(row.judged_by.width for row in self.rows)

    @property
    def to_target(self) -> str:
        """The heading of the seconds to the target; empty without one."""
        return "" if self.target is None else f"s to {exact_percent(self.target)}"

    @property
    def priced(self) -> dict[str, str]:
        """The bands of energy and cost by name, with their headings, if the cluster has watts, or prices."""
        given = [name for name in _PRICED if all(getattr(row, name) is not None for row in self.rows)]
        return {name: _PRICED[name] for name in given}

    def plain(self) -> list[dict[str, Any]]:
        """Return a row for each strategy as plain data."""
        return [
            {
                **{"strategy": row.name, "setting": row.setting, "idle": row.idle, "unused": row.unused},
                **{name: _band(getattr(row, name)) for name in ("update_s", "epoch_s", "target_s")},
                **{name: _band(getattr(row, name)) for name in self.priced},
                "staleness_mean": sum(float(each.staleness.mean()) for each in row.runs) / len(row.runs),
            }
            for row in self.rows
        ]

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """Return a table, and a list of ties."""
        asked = self.target is not None
        head = f"{'strategy':<34}{'s an update':>26}{'s an epoch':>26}{'waiting':>9}{'unused':>8}"
        head += "".join(f"{heading:>26}" for heading in self.priced.values())
        lines = [head + (f"{self.to_target:>26}" if asked else "")]
        for row in self.rows:
            cells = [row.update_s, row.epoch_s]
            line = f"{row.title:<34}" + "".join(f"{cell!s:>26}" for cell in cells)
            line += f"{percent(row.idle, 1):>9}{percent(row.unused, 1):>8}"
            line += "".join(f"{getattr(row, name)!s:>26}" for name in self.priced)
            lines.append(line + (f"{_shown(row.target_s):>26}" if asked else ""))
        lines += [f"{row.title}: {text}" for row in self.rows for text in row.starved]
        lines += [
            f"no prediction for {row.title}: its band begins at 0, as its runs differ too much"
            for row in self.rows
            if not row.judged_by.is_prediction
        ]
        width = percent(self.width)
        lines.append(
            f"in brackets: 90 % interval for another run, over {self.seeds} seeds; "
            f"median width {width} of the mean"
        )
        if self.is_curve:
            best, same = self.best()
            return "\n".join(
                [*lines, f"fastest: {best}", f"not distinguishable: {', '.join(same) or 'none'}"]
            )
        lines += [f"not distinguishable: {first} and {second}" for first, second in self.ties()]
        return "\n".join(lines)


def _shown(band: Band | None) -> str:
    return "not reached" if band is None else str(band)


def _band(band: Band | None) -> dict[str, float] | None:
    return None if band is None else {"mean": band.mean, "low": band.low, "high": band.high}
