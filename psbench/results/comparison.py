"""Compare strategies over seeds, with intervals, on an equal budget that is stated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from psbench.errors import ParameterError
from psbench.metrics import end_of, evaluations, interval, time_to_target

if TYPE_CHECKING:
    from rich.table import Table

    from psbench.charts import Sheet
    from psbench.experiment import Experiment
    from psbench.results.run import Run

#: columns of the table as text: heading, number format, factor and unit
COLUMNS: dict[str, tuple[str, str, float, str]] = {
    "strategy": ("strategy", "", 1, ""),
    "n": ("seeds", "d", 1, ""),
    "time_s": ("time (s)", ".4g", 1, ""),
    "speed_up": ("speed-up", ".2f", 1, " ×"),
    "val_accuracy": ("val. accuracy", ".1f", 100, " %"),
    "val_loss": ("val. loss", ".4g", 1, ""),
    "time_to_target_s": ("time to target (s)", ".3g", 1, ""),
    "updates": ("updates", ".0f", 1, ""),
    "staleness_mean": ("staleness mean", ".2f", 1, ""),
    "staleness_max": ("staleness max", ".0f", 1, ""),
    "clock_lead_max": ("clock lead max", ".0f", 1, ""),
    "idle_fraction": ("idle", ".1f", 100, " %"),
    "bytes": ("MB sent", ".4g", 1, ""),
    "switch_epoch": ("switch at epoch", ".1f", 1, ""),
}
#: columns that are a mean over seeds, and so have a `_ci` beside them: the half-width of their interval
_MEASURED = (
    *("time_s", "val_accuracy", "val_loss", "time_to_target_s", "updates", "staleness_mean"),
    "staleness_max",
    *("clock_lead_max", "idle_fraction", "bytes", "switch_epoch"),
)
#: whose interval is shown in the table as text; the data frame has all
_WITH_INTERVAL = ("time_s", "val_accuracy", "val_loss", "time_to_target_s", "switch_epoch")
#: what is waited for under these names is everybody: the usual yardstick
_YARDSTICKS = ("all_reduce", "bsp")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs grouped by strategy; the members of a group differ in their seed only.

    Attributes
    ----------
    groups : dict of label to list of Run
    baseline : str
        The label that speed-ups refer to.
    target : float or None
        Validation accuracy for the time to target.
    """

    groups: dict[str, list[Run]]
    baseline: str
    target: float | None

    @cached_property
    def summaries(self) -> dict[str, list[dict[str, Any]]]:
        """The summary of each run, in the order of `groups`."""
        return {label: [run.summary() for run in runs] for label, runs in self.groups.items()}

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for runs in self.groups.values() for run in runs]

    @property
    def strategies(self) -> dict[str, str]:
        """The strategy that each label stands for."""
        return {label: str(runs[0].meta.get("strategy") or label) for label, runs in self.groups.items()}

    @property
    def budget(self) -> str:
        """What every run was given, in words; says so if the budgets differ."""
        budgets = {json.dumps(_budget(run), sort_keys=True) for run in self.runs}
        if len(budgets) > 1:
            return "unequal budgets: " + "; ".join(
                f"{n}: {_words(_budget(r[0]))}" for n, r in self.groups.items()
            )
        words = _words(_budget(self.runs[0]))
        return f"equal budget: {words}" if len(self.groups) > 1 else words

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before believing a difference."""
        found = [] if "unequal" not in self.budget else [f"{self.budget}: compare with care"]
        if len(self.groups) > 1 and any(len(runs) < 3 for runs in self.groups.values()):
            found.append("fewer than three seeds: differences may be chance")
        if self.target is not None and all(
            summary["best_val_accuracy"] is None for each in self.summaries.values() for summary in each
        ):
            found.append("no run has a validation accuracy, so none can reach the target")
        for label, runs in self.groups.items():
            for run in runs:
                found += [
                    f"{label}, seed {run.meta.get('seed')}: {text}" for text in run.summary()["warnings"]
                ]
        return found

    def table(self) -> pd.DataFrame:
        """Return one row per strategy: means over seeds, `{column}_ci` the half-width of the 95 % interval.

        `speed_up` is missing where the backend or the cluster is not the baseline's.

        `_ci` is missing with one seed. Times are in seconds, `bytes` is in MB (1e6), fractions 0 to 1.
        """
        rows = [self._row(label, runs) for label, runs in self.groups.items()]
        frame = pd.DataFrame(rows)
        place = list(frame).index("time_s_ci") + 1
        own = frame.loc[frame["strategy"] == self.baseline, "time_s"].iloc[0]
        # seconds of another cluster, or of a wall clock, are not the baseline's seconds
        yardstick = _test_bed(self.groups[self.baseline][0])
        alike = [_test_bed(runs[0]) == yardstick for runs in self.groups.values()]
        frame.insert(place, "speed_up", (own / frame["time_s"]).where(alike))
        return frame

    def _row(self, label: str, runs: Sequence[Run]) -> dict[str, Any]:
        measured = [_measured(r, s, self.target) for r, s in zip(runs, self.summaries[label], strict=True)]
        row: dict[str, Any] = {"strategy": label, "n": len(runs)}
        for name in _MEASURED:
            values = [value for m in measured if (value := m[name]) is not None]
            # a mean over the seeds that got there would flatter: all or none
            mean, half = interval(values) if len(values) == len(runs) else (None, None)
            row |= {name: mean, f"{name}_ci": half}
        return row | {"lr_convention": runs[0].meta.get("lr_convention") or ""}

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows as text, without columns that are empty everywhere."""
        frame = self.table()
        names = [name for name in COLUMNS if frame[name].notna().any()]
        names = [name for name in names if name != "speed_up" or len(frame) > 1]
        if frame["val_accuracy"].notna().all():  # the loss is for what has no accuracy
            names = [name for name in names if name != "val_loss"]
        rows = [[_cell(record, name) for name in names] for record in frame.to_dict("records")]
        return [COLUMNS[name][0] for name in names], rows

    def text(self, width: int | None = None) -> str:
        """Return the table for a terminal, with the budget and the warnings below it.

        Parameters
        ----------
        width : int, characters, optional
            By default as wide as the terminal.
        """
        from rich.console import Console

        headings, rows = self.cells()
        console = Console(width=width, record=True, file=StringIO(), force_jupyter=False)
        table = _rich_table(headings, rows)
        wanted = console.measure(table, options=console.options.update(max_width=1000)).maximum
        if wanted > console.width:  # one column a strategy is narrower
            sides = [list(side) for side in zip(headings, *rows, strict=True)]
            table = _rich_table(sides[0], sides[1:])
        console.print(table)
        for line in self.remarks:
            console.print(line, highlight=False, style="dim")
        return console.export_text()

    @property
    def remarks(self) -> list[str]:
        """What the table's numbers mean, and the warnings."""
        lines = [self.budget]
        if len(self.groups) > 1:
            lines.append(f"speed-up against {self.baseline}")
        if any(len(runs) > 1 for runs in self.groups.values()):
            lines.append("± is the half-width of a 95 % interval over seeds (t distribution)")
        if self.target is not None:
            lines.append(f"target: validation accuracy {self.target:.4g}")
        rates = [rate for runs in self.groups.values() if (rate := runs[0].meta.get("lr_convention"))]
        # a switching strategy names those of its two strategies, so lines would repeat
        lines += [
            f"learning rate of {rate}" for rate in dict.fromkeys(r for x in rates for r in x.split("; "))
        ]
        return lines + [f"warning: {text}" for text in self.warnings]

    def chart(self, *names: str, x: str = "time_s", width: int = 640) -> Sheet:
        """Return the comparison's charts, as the report shows them; see `charts.run_chart`."""
        from psbench.charts import comparison_chart

        return comparison_chart(self.groups, self.strategies, *names, x=x, width=width)

    def report(self, path: str | Path) -> Path:
        """Write a report that opens without internet; see `report.write_report`."""
        from psbench.results.report import write_report

        return write_report(path, self)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data: table, budget, warnings and the summaries of all runs."""
        frame = self.table().astype(object)
        return {
            "budget": self.budget,
            "baseline": self.baseline,
            "target": self.target,
            "table": frame.where(frame.notna(), None).to_dict("records"),
            "warnings": self.warnings,
            "runs": self.summaries,
        }

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.groups)}: {len(self.runs)} runs>"

    def _repr_html_(self) -> str:
        from psbench.results.report import table_html

        return table_html(self)


def _rich_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def compare(
    runs: Iterable[Run | Experiment],
    *,
    seeds: int = 1,
    target: float | None = None,
    baseline: str | None = None,
    done: Callable[[Run], None] | None = None,
) -> Comparison:
    """Compare runs, or run experiments and compare them.

    Parameters
    ----------
    runs : iterable of Run or Experiment
        Runs that differ in their seed only are taken together. An experiment is run with `seeds` seeds,
        from its own on.
    seeds : int, >= 1
    target : float, optional
        Validation accuracy, 0 to 1, for the time to target; by default the highest that every run reached.
    baseline : str, optional
        Label that speed-ups refer to; by default the slowest of All-Reduce and BSP, or the first.
    done : callable, optional
        Called with each run as it ends.

    Raises
    ------
    ParameterError
        If there is nothing to compare, or no such baseline.
    """
    if seeds < 1:
        raise ParameterError(f"compare: seeds = {seeds}; give at least 1")
    finished = [run for item in runs for run in _finished(item, seeds, done)]
    if not finished:
        raise ParameterError("compare: nothing to compare; give at least one run or experiment")
    groups = _grouped(finished)
    if baseline is not None and baseline not in groups:
        raise ParameterError(f"compare: no run is called {baseline!r} (there are: {', '.join(groups)})")
    if target is None and len(groups) > 1:
        target = _common(finished)
    return Comparison(groups, baseline or _yardstick(groups), target)


def _finished(item: Run | Experiment, seeds: int, done: Callable[[Run], None] | None) -> list[Run]:
    """Return the run itself, or the runs of an experiment."""
    from psbench.experiment import Experiment
    from psbench.runs import run

    if not isinstance(item, Experiment):
        return [item]
    found = []
    for seed in range(item.seed, item.seed + seeds):
        found.append(run(item.but(seed=seed)))
        if done is not None:
            done(found[-1])
    return found


def _grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs by everything but their seed; call each by its name, and what tells equal names apart."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(json.dumps(_identity(run), sort_keys=True), []).append(run)
    groups = list(found.values())
    names = [str(group[0].meta.get("name") or group[0].meta.get("strategy") or "run") for group in groups]
    return {_label(i, names, groups): group for i, group in enumerate(groups)}


def _identity(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.experiment.spec().items() if name not in ("seed", "scheduler")}


def _label(place: int, names: list[str], groups: list[list[Run]]) -> str:
    """Return the strategy's name, followed by what differs if another group has the same."""
    rivals = [i for i, name in enumerate(names) if name == names[place]]
    if len(rivals) == 1:
        return names[place]
    flat = [dict(_leaves(_identity(groups[i][0]))) for i in rivals]
    own = flat[rivals.index(place)]
    keys = sorted(
        {key for leaves in flat for key in leaves if any(leaves.get(key) != own.get(key) for leaves in flat)}
    )
    keys = [key for key in keys if key != "name" and not key.endswith(".name")] or keys
    told = ", ".join(f"{key.removesuffix('.name').rpartition('.')[2]}={own.get(key)}" for key in keys[:3])
    return f"{names[place]} ({told})" if len(keys) <= 3 else f"{names[place]} #{rivals.index(place) + 1}"


def _leaves(value: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(below, f"{path}.{key}" if path else str(key))
    else:
        yield path, json.dumps(value) if isinstance(value, list) else value


def _yardstick(groups: Mapping[str, Sequence[Run]]) -> str:
    """Return the slowest All-Reduce or BSP run's label, or the first label."""
    waiting = [n for n, runs in groups.items() if runs[0].meta.get("strategy") in _YARDSTICKS]
    return max(
        waiting, key=lambda n: sum(end_of(r.log.rows()) for r in groups[n]), default=next(iter(groups))
    )


def _common(runs: Sequence[Run]) -> float | None:
    """Return the highest validation accuracy that every run reached, cut to three digits."""
    frames = [evaluations(run.log) for run in runs]
    if any("val_accuracy" not in frame or frame["val_accuracy"].isna().all() for frame in frames):
        return None
    return int(min(frame["val_accuracy"].max() for frame in frames) * 1000) / 1000


def _measured(run: Run, summary: Mapping[str, Any], target: float | None) -> dict[str, float | None]:
    """Return the numbers of one run that are averaged over seeds."""
    idle, switches = summary["idle_fraction"], summary["switches"]
    return {
        "time_s": summary["time_s"],
        "val_accuracy": summary["final"]["val_accuracy"],
        "val_loss": summary["final"]["val_loss"],
        "time_to_target_s": None if target is None else time_to_target(run.log, target),
        "updates": summary["updates"],
        "staleness_mean": summary["staleness"]["mean"],
        "staleness_max": summary["staleness"]["max"],
        "clock_lead_max": summary["clock_lead_max"],
        "idle_fraction": sum(idle) / len(idle) if idle else None,
        "bytes": sum(summary["bytes"].values()) / 1e6,
        "switch_epoch": switches[0]["epoch"] if switches else None,
    }


def _budget(run: Run) -> dict[str, Any]:
    spec = run.experiment.spec()
    return {"stop": spec["stop"], "batch_size": spec["batch_size"], "data": spec["data"]["name"]}


def _test_bed(run: Run) -> dict[str, Any]:
    spec = run.experiment.spec()
    return {"backend": spec["backend"], "cluster": spec["cluster"]}


def _words(budget: Mapping[str, Any]) -> str:
    stop = ", ".join(f"{name} {value:g}" for name, value in budget["stop"].items())
    return f"{stop} on {budget['data']}, global batch {budget['batch_size']}"


def _cell(record: Mapping[Any, Any], name: str) -> str:
    _, form, factor, unit = COLUMNS[name]
    value, half = record[name], record.get(f"{name}_ci")
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return "–"
    text = format(value * factor if factor != 1 else value, form)
    if name in _WITH_INTERVAL and half is not None and half == half:
        text += f" ± {half * factor:.2g}"
    return text + unit
