"""Measures of a run for comparison with published numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.core.log import Kind
from psbench.core.selection import GROUP_ERROR
from psbench.metrics import chunks, evaluations, staleness
from psbench.metrics.rows import finite, pick
from psbench_papers.estimates import RunMeasure

if TYPE_CHECKING:
    from psbench.results.run import Run

#: measures that a run may never reach, and the measure of how far it was given
TARGETS = {
    "time_to_target_s": "time_s",
    "epochs_to_target": "epochs",
    "updates_to_target": "updates",
    "pushes_to_target": "pushes",
}
#: measures of how good a model is
QUALITY = (
    *("val_accuracy", "best_val_accuracy", "train_accuracy"),
    *("val_loss", "train_loss", "val_perplexity", "last_neighbourhood_accuracy"),
)
#: points of a learning curve that are kept
_POINTS = 60


def measure(
    run: Run, summary: Mapping[str, Any], target_of: str, target: float | None
) -> dict[str, float | None]:
    """Return all measures of a run by name; None if undefined or never reached.

    `summary` is the run's own.

    Returns
    -------
    dict
        Those of the summary: `time_s`, `epochs`, `mini_batches`, `steps`, `updates`, the final
        `val_accuracy`, `train_accuracy`, `val_loss`, `train_loss`, and `independence` (mean WI). Derived:
        `val_perplexity`, e to the loss; `best_val_accuracy`; `step_s`, seconds of a worker's step;
        `round_s`, of an update; `steps_per_s`; `busy` and `computing`, mean share of the time that workers
        do not wait, and compute; `mb_per_s`, sent and received by a worker; `pushes`; `staleness_mean`,
        `staleness_max`; `switch_epoch`; `chunk_s`, median seconds of a chunk; `chunk_batch`, median
        mini-batch in chunks; `chunk_slowest`, of the second half of the chunks: the slowest worker's median
        seconds over the median of all; `last_neighbourhood_accuracy`, at the end, on the selection's last
        neighbourhood (of data `mixture` the rare cloud); `time_to_target_s`, `epochs_to_target`,
        `updates_to_target`, `pushes_to_target`.
    """
    workers = summary["workers"]
    time_s, steps, loss = summary["time_s"], summary["steps"], summary["final"].get("val_loss")
    found: dict[str, float | None] = {
        **{name: summary[name] for name in ("time_s", "epochs", "mini_batches", "steps", "updates")},
        **summary["final"],
        "val_perplexity": None if loss is None else math.exp(min(loss, 700.0)),
        "best_val_accuracy": summary["best_val_accuracy"],
        "independence": summary.get("independence", 1.0),
        "staleness_mean": summary["staleness"]["mean"],
        "staleness_max": summary["staleness"]["max"],
        "step_s": workers * time_s / steps if steps else None,
        "round_s": time_s / summary["updates"] if summary["updates"] else None,
        "steps_per_s": steps / time_s if time_s else None,
        "busy": 1.0 - float(np.mean(summary["idle_fraction"])),
        "mb_per_s": _sent(summary) / 1e6 / workers / time_s if time_s else None,
        "computing": _computing(run) / workers / time_s if time_s else None,
        "pushes": float(len(pick(run.log.rows(), Kind.PUSH))),
        "switch_epoch": summary["switches"][0]["epoch"] if summary["switches"] else None,
        **_chunks(run),
        "last_neighbourhood_accuracy": _last_neighbourhood(run),
        **_to_target(run, target_of, target),
    }
    return {name: finite(value) for name, value in found.items()}


def measured(values: dict[str, Any], name: str) -> RunMeasure:
    """Return a stored measure of a run.

    Examples
    --------
    >>> measured({"time_to_target_s": None, "time_s": 40.0}, "time_to_target_s")
    RunMeasure(value=None, given=40.0)
    """
    found = values.get(name)
    if name in TARGETS:
        return RunMeasure(found, values[TARGETS[name]])
    return RunMeasure(math.nan if found is None else float(found))


def curve(run: Run) -> dict[str, list[float | None]]:
    """Return the evaluations of a run, thinned evenly, as columns."""
    frame = evaluations(run.log)
    step = max(1, math.ceil(len(frame) / _POINTS))
    kept = frame.iloc[sorted({*range(0, len(frame), step), len(frame) - 1} - {-1})]
    names = ("epoch", "time_s", "updates", "train_loss", "train_accuracy", "val_loss", "val_accuracy")
    return {
        name: [_rounded(value) for value in kept[name].tolist()]
        for name in names
        if name in kept and kept[name].notna().any()
    }


def staleness_counts(run: Run) -> list[int]:
    """Return the number of pushes of each staleness, from 0 on."""
    found = staleness(run.log)["staleness"].to_numpy(dtype=np.int64)
    return [int(count) for count in np.bincount(found)] if len(found) else []


def _sent(summary: Mapping[str, Any]) -> float:
    return float(sum(value for name, value in summary["bytes"].items() if name in ("up", "down")))


def _computing(run: Run) -> float:
    """Return the total computing seconds of all workers' pushes and votes."""
    rows = pick(run.log.rows(), Kind.PUSH, Kind.VOTE)
    return float(rows["compute_s"].sum(dtype=np.float64))


def _chunks(run: Run) -> dict[str, float | None]:
    found = chunks(run.log)
    if not len(found):
        return {"chunk_s": None, "chunk_batch": None, "chunk_slowest": None}
    late = found.iloc[len(found) // 2 :].groupby("worker")["compute_s"].median()
    trained = pick(run.log.rows(), Kind.PUSH)
    sizes = trained["samples"] / np.maximum(trained["steps"], 1)
    batch = float(np.median(sizes)) if len(sizes) else None  # no worker pushed
    return {
        "chunk_s": float(found["compute_s"].median()),
        "chunk_batch": batch,
        "chunk_slowest": float(late.max() / late.median()),
    }


def _last_neighbourhood(run: Run) -> float | None:
    done = run.log.evaluations()
    errors = {
        int(name.removeprefix(GROUP_ERROR)): value
        for name, value in (done[-1] if done else {}).items()
        if name.startswith(GROUP_ERROR)
    }
    return 1.0 - errors[max(errors)] if errors else None


def _to_target(run: Run, target_of: str, target: float | None) -> dict[str, float | None]:
    frame = evaluations(run.log)
    if target is None or target_of not in frame:
        return {}
    values = frame[target_of]
    reached = frame[values <= target if target_of.endswith("loss") else values >= target]
    if not len(reached):
        return dict.fromkeys(TARGETS)
    first = reached.iloc[0]
    pushes = pick(run.log.rows(), Kind.PUSH)["time_s"]
    return {
        "time_to_target_s": first["time_s"],
        "epochs_to_target": first["epoch"],
        "updates_to_target": float(first["updates"]),
        "pushes_to_target": float(np.count_nonzero(pushes <= first["time_s"])),
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
