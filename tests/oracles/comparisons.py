"""The numbers of comparisons and sweeps from the log's definition."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from oracles.fates import class_distance, pieces_of
from oracles.story import idle_of, rows_of, stalenesses, starts_of, workers_of
from oracles.summaries import (
    chunks_begun,
    evaluations_of,
    interval,
    samples_until,
    sent,
    switches_of,
    time_to,
)

from psbench.results.run import Run

#: columns of the table of a comparison that are means over seeds
MEANS = (
    *("time_s", "val_accuracy", "train_accuracy", "val_loss", "time_to_target_s", "epochs", "updates"),
    *("staleness_mean", "staleness_max", "clock_lead_max", "idle_fraction", "unused", "class_distance"),
    *("bytes", "switch_epoch"),
)
#: of a sweep, how far training got: what a run that diverged does not say
QUALITY = ("val_accuracy", "best_val_accuracy", "train_accuracy", "val_loss", "train_loss")


def numbers_of(run: Run, target: float | None) -> dict[str, float | None]:
    """Return the numbers of one run; None for what it has not."""
    rows = rows_of(run.log)
    evaluated, stale, idle = evaluations_of(rows), stalenesses(rows), idle_of(rows)
    size, names = run.meta["dataset_size"], [c.name for c in run.experiment.strategy.compositions]
    switches = switches_of(rows, size, names)
    last = evaluated[-1] if evaluated else {}
    best = [row["val_accuracy"] for row in evaluated if "val_accuracy" in row]
    answered = sent(rows, bool(run.meta["unanswered"]))
    data_bytes = sum(chunks_begun(answered)) * run.meta["sample_bytes"]
    pieces = pieces_of(rows)
    lost = sum(piece.fate != "used" for piece in pieces)
    return {
        "time_s": max(rows[-1].time_s, run.meta["time_s"]),
        **{name: last.get(name) for name in ("val_accuracy", "train_accuracy", "val_loss", "train_loss")},
        "best_val_accuracy": max(best, default=None),
        "time_to_target_s": None if target is None else time_to(rows, target),
        "epochs": samples_until(rows, len(rows)) / size,
        "updates": max((row.version for row in rows if row.kind == "APPLY"), default=0),
        "staleness_mean": fmean(stale) if stale else None,
        "staleness_max": max(stale, default=None),
        "clock_lead_max": max((start.lead for start in starts_of(rows)), default=0),
        "idle_fraction": sum(idle.values()) / len(workers_of(rows)),
        "unused": lost / len(pieces) if pieces else None,
        "class_distance": class_distance(run, pieces),
        "bytes": (sum(row.bytes for row in answered) + data_bytes) / 1e6,
        "switch_epoch": switches[0]["epoch"] if switches else None,
    }


def mean(values: Sequence[float | None]) -> tuple[float | None, float | None, float | None]:
    """Return mean, half-width and deviation of all seeds; nothing if one has no such number."""
    known = [value for value in values if value is not None]
    return interval(known) if len(known) == len(values) else (None, None, None)


def common_target(runs: Sequence[Run]) -> float | None:
    """Return the highest validation accuracy that every run reached, cut to three digits."""
    best = [numbers_of(run, None)["best_val_accuracy"] for run in runs]
    known = [value for value in best if value is not None]
    return math.floor(min(known) * 1000) / 1000 if len(known) == len(best) else None


def table_of(groups: Mapping[str, Sequence[Run]], baseline: str, target: float | None) -> dict[str, Any]:
    """Return by label the row of the table: `n`, the means with `_ci` and `_sd`, and the speed-up."""
    found = {}
    for label, runs in groups.items():
        row: dict[str, Any] = {"n": len(runs)}
        numbers = [numbers_of(run, target) for run in runs]
        for name in MEANS:
            row[name], row[f"{name}_ci"], row[f"{name}_sd"] = mean([each[name] for each in numbers])
        found[label] = row
    for label, runs in groups.items():
        pair = [*runs, *groups[baseline]]
        alike = len({json.dumps(_given(run), sort_keys=True) for run in pair}) == 1
        alike = alike and all(run.meta["status"] == "finished" for run in pair)
        alike = alike and not any(numbers_of(run, None)["time_s"] >= _seconds(run) for run in pair)
        ratio = found[baseline]["time_s"] / found[label]["time_s"]
        found[label]["speed_up"] = ratio if alike else None
    return found


def _given(run: Run) -> list[Any]:
    """Return the test bed and the budget."""
    spec = run.experiment.spec()
    return [spec[name] for name in ("backend", "cluster", "data", "model", "stop", "batch_size")]


def _seconds(run: Run) -> float:
    return math.inf if run.experiment.stop.seconds is None else run.experiment.stop.seconds


def slowest(groups: Mapping[str, Sequence[Run]], names: Sequence[str]) -> str:
    """Return the label, of some strategies, whose runs take longest in the mean."""
    known = [label for label, runs in groups.items() if runs[0].experiment.strategy.name in names]
    return max(known, key=lambda label: fmean(rows_of(run.log)[-1].time_s for run in groups[label]))


# -------------------------------------------------------------------- sweeps


def sweep_numbers(run: Run, target: float | None) -> dict[str, float | None]:
    """Return a row of the frame of a sweep; a run that diverged says nothing of how far training got."""
    found = numbers_of(run, target)
    if run.meta["status"] == "diverged":
        found |= dict.fromkeys(QUALITY)
    if target is not None and found["time_to_target_s"] is None:
        found["time_to_target_s"] = math.inf
    return found | {"megabytes": found["bytes"], "wall_s": run.meta["wall_s"]}


def half_reached(runs: Sequence[Run]) -> float:
    """Return the accuracy that half of the runs reached, cut to three digits."""
    best = sorted(numbers_of(run, None)["best_val_accuracy"] or 0.0 for run in runs)
    return math.floor(best[(len(best) - 1) // 2] * 1000) / 1000


def means_of(runs: Mapping[Any, Sequence[Run | None]], value: str, target: float | None) -> dict[Any, float]:
    """Return the mean of a result of each setting all of whose runs ended as they should; None has failed."""
    means = {}
    for setting, seeds in runs.items():
        whole = [run for run in seeds if run is not None and run.meta["status"] == "finished"]
        values = [sweep_numbers(run, target)[value] for run in whole]
        known = [number for number in values if number is not None]
        if len(known) == len(seeds):
            means[setting] = fmean(known)
    return means
