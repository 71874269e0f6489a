"""What of a run is compared with a published number is what plain loops over its log give."""

from __future__ import annotations

import math
from statistics import fmean, median

import pytest
from oracles.small_runs import NAMES
from oracles.story import Row, end_of, idle_of, rows_of, stalenesses, workers_of
from oracles.summaries import QUALITY, evaluations_of, independence_of, samples_until, sent

from psbench.results.run import Run
from psbench_papers.measures import curve, measure, staleness_counts


def expected_of(run: Run, target_of: str, target: float) -> dict[str, float | None]:
    """Return all measures but those of chunks."""
    rows = rows_of(run.log)
    meta, workers, time_s = run.meta, run.experiment.num_workers, max(end_of(rows), run.meta["time_s"])
    evaluated, stale = evaluations_of(rows), stalenesses(rows)
    last = evaluated[-1] if evaluated else {}
    best = [row["val_accuracy"] for row in evaluated if "val_accuracy" in row]
    samples = samples_until(rows, len(rows))
    pushes = [row for row in rows if row.kind == "PUSH"]
    steps = sum(row.steps for row in pushes)
    steps += sum(row.kind == "RELEASE" and row.samples > 0 for row in rows)
    updates = max((row.version for row in rows if row.kind == "APPLY"), default=0)
    idle, ratios = idle_of(rows), independence_of(rows)
    switches = [place for place, row in enumerate(rows) if row.kind == "HANDOVER"]
    answered = sent(rows, bool(meta["unanswered"]))
    computed = sum(row.compute_s for row in rows if row.kind in ("PUSH", "VOTE"))
    reached = [
        row
        for row in evaluated
        if target_of in row
        and (row[target_of] <= target if target_of.endswith("loss") else row[target_of] >= target)
    ]
    has_target = any(target_of in row for row in evaluated)

    def pushed_until(time_s: float) -> int:
        return sum(row.time_s <= time_s for row in pushes)

    return {
        **{name: last.get(name) for name in QUALITY},
        "time_s": time_s,
        "epochs": samples / meta["dataset_size"],
        "mini_batches": samples / run.experiment.batch_size,
        "steps": steps,
        "updates": updates,
        "val_perplexity": None if last.get("val_loss") is None else math.exp(last["val_loss"]),
        "best_val_accuracy": max(best, default=None),
        "last_neighbourhood_accuracy": last_neighbourhood_of(last),
        "independence": fmean(ratios.values()) if ratios else 1.0,
        "staleness_mean": fmean(stale) if stale else None,
        "staleness_max": max(stale, default=None),
        "step_s": workers * time_s / steps,
        "round_s": time_s / updates,
        "steps_per_s": steps / time_s,
        "busy": 1 - sum(idle.values()) / len(workers_of(rows)),
        "mb_per_s": sum(row.bytes for row in answered) / 1e6 / workers / time_s,
        "computing": computed / workers / time_s,
        "pushes": len(pushes),
        "switch_epoch": samples_until(rows, switches[0]) / meta["dataset_size"] if switches else None,
    } | (
        {
            "time_to_target_s": reached[0]["time_s"] if reached else None,
            "epochs_to_target": reached[0]["epoch"] if reached else None,
            "updates_to_target": reached[0]["updates"] if reached else None,
            "pushes_to_target": sum(row.time_s <= reached[0]["time_s"] for row in pushes)
            if reached
            else None,
        }
        if has_target
        else {}
    )


@pytest.mark.by_day(24)
@pytest.mark.parametrize(("target_of", "target"), [("val_accuracy", 0.9), ("train_loss", 0.4)])
@pytest.mark.parametrize("name", NAMES)
def test_measures_of_a_run(runs: dict[str, list[Run]], name: str, target_of: str, target: float) -> None:
    for run in runs[name]:
        found = measure(run, run.summary(), target_of, target)
        expected = expected_of(run, target_of, target)
        chunks = {name: found.pop(name) for name in ("chunk_s", "chunk_batch", "chunk_slowest")}
        assert found.keys() == expected.keys()
        for field, value in expected.items():
            known = value is not None and math.isfinite(value)
            assert found[field] == (pytest.approx(value, rel=1e-6, abs=1e-9) if known else None), field
        assert chunks == chunks_of(rows_of(run.log))


@pytest.mark.parametrize("target_of", ["val_accuracy", "train_loss"])
def test_a_target_is_reached_where_a_value_is_just_that(runs: dict[str, list[Run]], target_of: str) -> None:
    run = runs["barrier"][0]
    evaluated = evaluations_of(rows_of(run.log))
    best = (min if target_of.endswith("loss") else max)(evaluated, key=lambda row: row[target_of])
    found = measure(run, run.summary(), target_of, best[target_of])
    assert found["epochs_to_target"] == pytest.approx(best["epoch"])


def last_neighbourhood_of(evaluated: dict[str, float]) -> float | None:
    """Return the accuracy at the last of the neighbourhoods, whose errors an evaluation may have."""
    errors = {
        int(name.split(":")[1]): value
        for name, value in evaluated.items()
        if name.startswith("neighbourhood_error:")
    }
    return 1 - errors[max(errors)] if errors else None


def chunks_of(rows: list[Row]) -> dict[str, float | None]:
    """Return the median seconds of a chunk, the median batch in chunks, and how much the slowest lags."""
    lasted: list[tuple[int, float]] = []
    reported: dict[int, float] = {}  # seconds since a worker's last push
    for row in rows:
        if row.kind in ("JOIN", "LEAVE", "DROP", "CANCEL"):
            reported.pop(row.worker, None)
        if row.kind == "REPORT" and "chunk_steps" in row.facts:
            lasted.append((row.worker, row.facts["compute_s"] - reported.get(row.worker, 0.0)))
            reported[row.worker] = row.facts["compute_s"]
        if row.kind == "PUSH" and "test_loss" in row.facts:
            lasted.append((row.worker, row.facts["compute_s"] - reported.pop(row.worker, 0.0)))
    sizes = [row.samples / row.steps for row in rows if row.kind == "PUSH"]
    if not lasted:
        return {"chunk_s": None, "chunk_batch": None, "chunk_slowest": None}
    late = lasted[len(lasted) // 2 :]
    each = [median(s for worker, s in late if worker == one) for one in {worker for worker, _ in late}]
    return {
        "chunk_s": pytest.approx(median(s for _, s in lasted)),
        "chunk_batch": median(sizes),
        "chunk_slowest": pytest.approx(max(each) / median(each)),
    }


@pytest.mark.parametrize("name", NAMES)
def test_curve_and_staleness_of_a_run(runs: dict[str, list[Run]], name: str) -> None:
    run = runs[name][0]
    rows = rows_of(run.log)
    evaluated, stale = evaluations_of(rows), stalenesses(rows)
    counted = [stale.count(value) for value in range(max(stale) + 1)] if stale else []
    assert staleness_counts(run) == counted
    found = curve(run)
    names = ("epoch", "time_s", "updates", *QUALITY)
    assert {*found} == {name for name in names if any(name in row for row in evaluated)}
    for field, values in found.items():
        assert values == pytest.approx([row[field] for row in evaluated], rel=1e-4)


def test_a_long_curve_keeps_sixty_points_and_its_end(runs: dict[str, list[Run]]) -> None:
    import psbench as ps
    from psbench.testing import toy_experiment

    run = ps.run(toy_experiment(stop={"epochs": 130}))
    points = curve(run)["time_s"]
    times = [row["time_s"] for row in evaluations_of(rows_of(run.log))]
    assert len(times) == 131
    assert points == pytest.approx([*times[::3], times[-1]], rel=1e-4)
