"""Compare strategies over seeds, with intervals, on an equal budget that is stated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from psbench.core.target import Aim, Target, target_of
from psbench.errors import ParameterError, UnknownName
from psbench.metrics import clock_of, end_of, evaluations
from psbench.results.compared import FEW, Compared
from psbench.results.equal import cut_equal
from psbench.results.explained import Explained
from psbench.results.groups import differences, group
from psbench.results.remarks import BEST, STOPPED_AT
from psbench.results.run import Run

if TYPE_CHECKING:
    from psbench.charts import Sheet
    from psbench.charts.display import Style, Width

#: strategies in which all workers wait for each other: the usual baselines
_BASELINES = ("all_reduce", "bsp")


class Comparison(Compared):
    """A comparison with its charts and its report."""

    def chart(
        self, *names: str, x: str | None = None, width: Width | None = None, style: Style = "screen"
    ) -> Sheet:
        """Return the comparison's charts, as the report shows them; see `charts.comparison_chart`.

        Without `x` curves are drawn against `axis`. Styles, widths and errors are those of `Run.chart`.
        """
        from psbench.charts import comparison_chart
        from psbench.charts.display import pixels_of, styled

        sheet = comparison_chart(self.groups, *names, x=x or self.axis, width=pixels_of(style, width))
        return styled(sheet, [text for text in self.warnings if not text.endswith(FEW)], style, width)

    def report(self, path: str | Path, why: Explained | None = None) -> Path:
        """Write a report that opens without internet; see `report.write_report`.

        Parameters
        ----------
        path : path
        why : Explained, optional
            An answer of `psbench.why`: the first section.
        """
        from psbench.results.page import write_page

        return write_page(Path(path), self, why)


def comparison_of(
    runs: Sequence[Run],
    *,
    target: Aim = None,
    baseline: str | None = None,
    test: bool = False,
    equal: str | None = None,
) -> Comparison:
    """Return the comparison of runs that are over; see `psbench.compare`.

    Raises
    ------
    ParameterError
        If there is nothing to compare, too few seeds to `test`, or nothing `equal`.
    UnknownName
        If there is no such baseline.
    """
    if not runs:
        raise ParameterError("compare: nothing to compare; give at least one run or experiment")
    amount, early = "", list[str]()
    if equal is not None:
        runs, amount, early = cut_equal(runs, equal)
    found = group(runs)
    groups = found.runs
    if baseline is not None and baseline not in groups:
        raise UnknownName("baseline", baseline, groups)
    aim, source = target_of(target), ""
    if aim is None and len(groups) > 1 and "data" not in differences(groups):
        aim, source = _common(runs)
    wanted = aim.bound if aim is not None and aim.is_accuracy else aim
    comparison = Comparison(
        groups,
        baseline or _baseline(groups),
        wanted,
        found.notes,
        test,
        amount,
        early,
        target_source=source,
    )
    if equal is not None:
        comparison = replace(comparison, axis=equal)
    if test:
        comparison.tests()  # refuses what cannot be tested
    return comparison


def _baseline(groups: Mapping[str, Sequence[Run]]) -> str:
    """Return the label of the slowest All-Reduce or BSP on a common clock, or the first label."""
    waiting = [label for label, runs in groups.items() if runs[0].meta.get("strategy") in _BASELINES]
    clocks = {label: clock_of(groups[label][0].meta) for label in waiting}
    alike = [label for label in waiting if clocks[label] == clocks[waiting[0]]]
    return max(alike, key=lambda label: _mean_time(groups[label]), default=next(iter(groups)))


def _mean_time(runs: Sequence[Run]) -> float:
    return sum(end_of(run.log.rows()) for run in runs) / len(runs)


def _common(runs: Sequence[Run]) -> tuple[Target | None, str]:
    """Return the target that all were given, or the highest accuracy that all reached, to three digits.

    With it comes where it is from, in words.
    """
    given = runs[0].experiment.stop.aim
    if given is not None and all(run.experiment.stop.aim == given for run in runs):
        return given, STOPPED_AT
    frames = [evaluations(run.log) for run in runs]
    if any("val_accuracy" not in frame or frame["val_accuracy"].isna().all() for frame in frames):
        return None, ""
    best = min(frame["val_accuracy"].max() for frame in frames)
    return target_of(int(best * 1000) / 1000), BEST
