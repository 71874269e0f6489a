"""The table of a comparison: means over seeds with their intervals, as a data frame and as text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from psbench.core.target import Target
from psbench.metrics import clock_of, interval, standard_deviation, time_to_target
from psbench.metrics.contributions import unused_share
from psbench.percents import UNIT
from psbench.results.groups import differences
from psbench.results.run import Run
from psbench.results.text import two_digits

#: columns of the table as text: heading, number format, factor and unit
COLUMNS: dict[str, tuple[str, str, float, str]] = {
    "strategy": ("strategy", "", 1, ""),
    "n": ("seeds", "d", 1, ""),
    "time_s": ("time (s)", ".4g", 1, ""),
    "virtual_time_s": ("virtual time (s)", ".4g", 1, ""),
    "wall_time_s": ("wall time (s)", ".4g", 1, ""),
    "speed_up": ("speed-up", ".2f", 1, "\u00a0×"),
    "val_accuracy": ("val. accuracy", ".1f", 100, UNIT),
    "train_accuracy": ("train. accuracy", ".1f", 100, UNIT),
    "val_loss": ("val. loss", ".4g", 1, ""),
    "time_to_target_s": ("time to target (s)", ".3g", 1, ""),
    "virtual_time_to_target_s": ("virtual time to target (s)", ".3g", 1, ""),
    "wall_time_to_target_s": ("wall time to target (s)", ".3g", 1, ""),
    "epochs": ("epochs trained", ".4g", 1, ""),
    "updates": ("updates", ".0f", 1, ""),
    "staleness_mean": ("staleness mean", ".2f", 1, ""),
    "staleness_max": ("staleness max", ".0f", 1, ""),
    "clock_lead_max": ("clock lead max", ".0f", 1, ""),
    "idle_fraction": ("waiting", ".1f", 100, UNIT),
    "unused": ("unused", ".1f", 100, UNIT),
    "class_distance": ("class distance", ".1f", 100, UNIT),
    "bytes": ("MB sent", ".4g", 1, ""),
    "joules": ("energy (J)", ".4g", 1, ""),
    "cost": ("cost", ".4g", 1, ""),
    "spot_cost": ("spot cost", ".4g", 1, ""),
    "switch_epoch": ("switch at epoch", ".1f", 1, ""),
}
#: columns that a report folds away, and those that it folds away one by one until the others fit on a screen
FOLDED = frozenset({"train_accuracy", "val_loss", "updates", "staleness_max", "clock_lead_max"})
FOLDED_NEXT = (
    *("class_distance", "spot_cost", "epochs", "unused", "bytes", "switch_epoch", "cost", "joules", "n"),
)
#: columns that are shown where a row has at least so much: of most comparisons they say nothing
_SHOWN_FROM = {"unused": 1e-9, "class_distance": 0.01}
#: the same, with what sweeps show beside them
SHOWN = COLUMNS | {
    "best_val_accuracy": ("best accuracy", ".1f", 100, UNIT),
    "train_loss": ("train. loss", ".4g", 1, ""),
    "megabytes": ("MB sent", ".4g", 1, ""),
    "wall_s": ("took (s)", ".2g", 1, ""),
}
#: seconds, which are split where runs are on several clocks
_SECONDS = ("time_s", "time_to_target_s", "time_to_target_at_least_s")
#: whose interval is shown in the table as text; the data frame has all
_WITH_INTERVAL = (
    *(name for name in COLUMNS if name.endswith("_s")),
    *("val_accuracy", "train_accuracy", "val_loss", "switch_epoch"),
)


def table_of(
    groups: Mapping[str, Sequence[Run]],
    summaries: Mapping[str, Sequence[Mapping[str, Any]]],
    baseline: str,
    target: Target | None,
    without_speed_up: Collection[str],
) -> pd.DataFrame:
    """Return one row for each group; see `Comparison.table`."""
    frame = pd.DataFrame([_row(label, runs, summaries[label], target) for label, runs in groups.items()])
    own = frame.loc[frame["strategy"] == baseline, "time_s"].iloc[0]
    alike = [label not in without_speed_up for label in groups]
    frame.insert(list(frame).index("time_s_sd") + 1, "speed_up", (own / frame["time_s"]).where(alike))
    for place, (name, values) in enumerate(differences(groups).items()):
        frame.insert(2 + place, name, [values[label] for label in groups])
    return _split(frame, [clock_of(runs[0].meta) for runs in groups.values()])


def _row(
    label: str, runs: Sequence[Run], summaries: Sequence[Mapping[str, Any]], target: Target | None
) -> dict[str, Any]:
    numbers = [numbers_of_run(run, summary, target) for run, summary in zip(runs, summaries, strict=True)]
    row: dict[str, Any] = {"strategy": label, "n": len(runs)}
    for name in numbers[0]:
        values = [value for m in numbers if (value := m[name]) is not None]
        # a mean over the seeds that got there would flatter: all or none
        complete = values if len(values) == len(runs) else []
        mean, half = interval(complete) if complete else (None, None)
        row |= {name: mean, f"{name}_ci": half, f"{name}_sd": standard_deviation(complete)}
    times = [] if target is None else [each["time_to_target_s"] for each in numbers]
    row |= censored("time_to_target", times, [each["time_s"] for each in numbers])
    return row | {"lr_convention": runs[0].meta.get("lr_convention") or ""}


def censored(
    name: str, times: Sequence[float | None], ends: Sequence[float | None]
) -> dict[str, float | int | None]:
    """Return the number of seeds that reached the target and, if some did not, a lower bound of the mean.

    A seed that did not is censored at its end: it would have taken longer than it ran. So the mean over all
    seeds is at least that of the times of those that did and of the ends of the others.

    >>> censored("t", [2.0, None], [9.0, 10.0]), censored("t", [2.0], [9.0])
    ({'t_reached': 1, 't_at_least_s': 6.0}, {'t_reached': 1, 't_at_least_s': None})
    >>> censored("t", [2.0, None], [9.0, None])  # the second has no end either
    {'t_reached': 1, 't_at_least_s': None}
    """
    known = [end if time is None else time for time, end in zip(times, ends, strict=False)]
    reached = sum(time is not None for time in times)
    complete = reached == len(times) or None in known
    least = None if complete else sum(each for each in known if each is not None) / len(known)
    return {f"{name}_reached": reached if times else None, f"{name}_at_least_s": least}


def numbers_of_run(run: Run, summary: Mapping[str, Any], target: Target | None) -> dict[str, float | None]:
    """Return the numbers of one run that are averaged over seeds."""
    idle, switches, final = summary["idle_fraction"], summary["switches"], summary["final"]
    return {
        "time_s": summary["time_s"],
        "val_accuracy": final["val_accuracy"],
        "train_accuracy": final["train_accuracy"],
        "val_loss": final["val_loss"],
        **{name: final.get(name) for name in run.meta.get("metrics", ())},
        "time_to_target_s": None if target is None else time_to_target(run.log, target),
        "epochs": summary["epochs"],
        "updates": summary["updates"],
        "staleness_mean": summary["staleness"]["mean"],
        "staleness_max": summary["staleness"]["max"],
        "clock_lead_max": summary["clock_lead_max"],
        "idle_fraction": sum(idle) / len(idle) if idle else None,
        "unused": unused_share(summary["contributions"]),
        "class_distance": summary["contributions"]["class_distance"],
        "bytes": sum(summary["bytes"].values()) / 1e6,
        **summary.get("energy", {}),
        "switch_epoch": switches[0]["epoch"] if switches else None,
    }


def _split(frame: pd.DataFrame, clocks: Sequence[str]) -> pd.DataFrame:
    """Give each clock its own columns if there are several: a column has seconds of one clock."""
    if len(set(clocks)) == 1:
        return frame
    names = []
    for name in frame:
        bare = str(name).removesuffix("_ci").removesuffix("_sd")
        if bare not in _SECONDS:
            names.append(name)
            continue
        for clock in sorted(set(clocks)):
            own = f"{clock}_{name}"
            frame[own] = frame[name].where(pd.Series([c == clock for c in clocks]))
            names.append(own)
    return frame[names]


def text_cells(frame: pd.DataFrame, differing: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows as text, without columns that are empty everywhere."""
    records = frame.to_dict("records")
    known = [name for name in COLUMNS if name in frame]
    names = [name for name in known if any(as_text(record, name) != _NONE for record in records)]
    names = [name for name in names if name != "speed_up" or len(frame) > 1]
    names = [name for name in names if name not in _SHOWN_FROM or frame[name].max() >= _SHOWN_FROM[name]]
    if frame["val_accuracy"].notna().all():  # the loss is for what has no accuracy
        names = [name for name in names if name != "val_loss"]
    place = next((at for at, name in enumerate(names) if name.startswith("time_to")), len(names))
    names[place:place] = [name for name in own_metrics(frame) if frame[name].notna().any()]
    names = ["strategy", *differing, *names[1:]]
    headings = [
        COLUMNS[name][0] if name in COLUMNS else name.removeprefix("val_").replace("_", " ") for name in names
    ]
    return headings, [[as_text(record, name) for name in names] for record in records]


def own_metrics(frame: pd.DataFrame) -> list[str]:
    """Return the columns of a table that are the experiments' own metrics."""
    derived = ("_ci", "_sd")
    return [
        str(name)
        for name in frame
        if str(name).startswith("val_") and name not in COLUMNS and not str(name).endswith(derived)
    ]


def as_text(record: Mapping[Any, Any], name: str, *, deviation: bool = True) -> str:
    """Return a result as text, with its interval over seeds; the mean has the digits of the interval.

    Parameters
    ----------
    record : mapping
        A row of the table of a comparison or a sweep, which have `{name}_ci` and `{name}_sd`.
    name : str
        The result.
    deviation : bool
        Whether the standard deviation follows in brackets; without it no interval of 0 is shown.

    Examples
    --------
    >>> as_text({"time_s": 2.5, "time_s_ci": 0.5, "time_s_sd": 0.2}, "time_s")
    '2.50 ± 0.50 (0.20)'
    >>> as_text({"n": 3, "time_to_target_reached": 1, "time_to_target_at_least_s": 9.0}, "time_to_target_s")
    '1 of 3, ≥ 9'
    """
    value = record.get(name)
    if isinstance(value, str):
        return value
    _, form, factor, unit = SHOWN.get(name, (name, ".4g", 1, ""))
    if value is None or not _is_known(value):
        least = record.get(f"{name.removesuffix('_s')}_at_least_s")
        if not _is_known(least):
            return _NONE
        return f"{record['time_to_target_reached']:g} of {record['n']}, ≥ {least:{form}}"
    text = format(value * factor, form)
    half, spread = record.get(f"{name}_ci"), record.get(f"{name}_sd")
    own = name.startswith("val_") and name not in SHOWN
    if not _is_known(half) or (deviation and not _is_known(spread)):
        return text + unit
    shown = _spread(half, value, factor)
    if deviation and (own or name in _WITH_INTERVAL):
        text = f"{_to_digits_of(shown, text, value * factor)} ± {shown} ({_spread(spread, value, factor)})"
    elif not deviation and shown != "0":
        text = f"{_to_digits_of(shown, text, value * factor)} ± {shown}"
    return text + unit


#: what stands where there is nothing
_NONE = "–"
#: parts of a value below which its spread is that of floating-point sums
_NOISE = 1e-12


def _is_known(value: Any) -> bool:
    return value is not None and value == value and value != float("inf")


def _to_digits_of(half: str, text: str, mean: float) -> str:
    """Return a mean with the digits of its interval: further ones are not known."""
    if half == "0" or "e" in half:
        return text
    return f"{mean:.{len(half.partition('.')[2])}f}"


def _spread(spread: Any, value: Any, factor: float) -> str:
    return "0" if spread <= _NOISE * abs(value) else two_digits(spread * factor)
