"""`Run.summary()` from the log's definition, field by field."""

from __future__ import annotations

import hashlib
import json
import struct
from statistics import fmean, stdev
from typing import Any

import torch
from oracles.fates import class_distance, pieces_of, starved
from oracles.story import (
    Row,
    end_of,
    idle_of,
    lost_with_their_workers,
    pushes_of,
    rows_of,
    sent,
    stalenesses,
    starts_of,
    workers_of,
)
from torch.nn import functional

from psbench.core.log import EventLog
from psbench.results.run import Run
from psbench.seeds import Streams

#: of Student's t distribution, by the number of values: tables of any textbook, level 95 %, two-sided
T_95 = {2: 12.706204736, 3: 4.302652730, 4: 3.182446305, 5: 2.776445105, 6: 2.570581836}


QUALITY = ("train_loss", "train_accuracy", "val_loss", "val_accuracy")


def interval(values: list[float]) -> tuple[float, float | None, float | None]:
    """Return mean, half-width of the 95 % interval, and standard deviation; of one value the mean alone."""
    if len(values) < 2:
        return values[0], None, None
    sd = stdev(values)
    return fmean(values), T_95[len(values)] * sd / len(values) ** 0.5, sd


def digest_of(log: EventLog) -> str:
    """Return the SHA-256 of the packed rows, 47 bytes each, and of the texts as JSON."""
    content = hashlib.sha256()
    for row in log.rows().tolist():
        content.update(struct.pack("<dBHiiiIIfffI", *row))
    content.update(json.dumps(list(log.texts), separators=(",", ":")).encode())
    return content.hexdigest()


def samples_until(rows: list[Row], end: int) -> int:
    """Return the samples trained on in the first rows: in versions, and kept after votes."""
    return sum(row.samples for row in rows[:end] if row.kind in ("APPLY", "RELEASE"))


def evaluations_of(rows: list[Row]) -> list[dict[str, Any]]:
    """Return the evaluations: where on each axis, and the values."""
    found = []
    without_server = any(row.kind == "MIX" for row in rows)
    for place, row in enumerate(rows):
        if row.kind != "EVALUATED":
            continue
        version, end = 0, 0
        for at, each in enumerate(rows[:place]):
            if each.kind == "APPLY":
                version = version + 1 if without_server else each.version
            if each.kind in ("APPLY", "MIX", "VOTE") and version <= row.version:
                end = at + 1  # its model is made; replies with it come later, if at all
        sent_until = sum(each.bytes for each in rows[:end])
        axes = {"epoch": row.id, "time_s": row.time_s, "updates": row.version, "bytes": sent_until}
        found.append(axes | row.facts)
    return found


def time_to(rows: list[Row], target: float) -> float | None:
    """Return when a validation accuracy was reached first."""
    for row in evaluations_of(rows):
        if row.get("val_accuracy", -1.0) >= target:
            return row["time_s"]
    return None


def switches_of(rows: list[Row], size: int, names: list[str]) -> list[dict[str, Any]]:
    found = []
    for place, row in enumerate(rows):
        if row.kind == "HANDOVER":
            found.append(
                {
                    "epoch": samples_until(rows, place) / size,
                    "time_s": row.time_s,
                    "version": row.version,
                    "bytes": sum(each.bytes for each in rows[:place]),
                    "from": names[row.steps],
                    "to": names[row.id],
                    "reason": row.text,
                    "cost_s": row.compute_s,
                }
            )
    return found


def loads_of(rows: list[Row]) -> list[tuple[float, list[float]]]:
    """Return the seconds that each server was busy, at each look at the servers."""
    found = []
    for row in rows:
        if row.kind == "MEASURED" and "server_load:0" in row.facts:
            facts = row.facts
            found.append((row.time_s, [facts[f"server_load:{i}"] for i in range(len(facts))]))
    return found


def imbalance(loads: list[float]) -> float:
    """Return the busiest server's load over the mean; 1 if none was busy."""
    return max(loads) / fmean(loads) if any(loads) else 1.0


def reassignments_of(rows: list[Row], entry_bytes: int) -> list[dict[str, Any]]:
    looks = loads_of(rows)
    found = []
    for row in rows:
        if row.kind == "REASSIGN":
            before = [loads for at, loads in looks if at <= row.time_s]
            after = [loads for at, loads in looks if at > row.time_s]
            found.append(
                {
                    "time_s": row.time_s,
                    "version": row.version,
                    "moved": row.facts["moved"],
                    "bytes": row.facts["moved"] * entry_bytes,
                    "entries": [sum(stop - start for start, stop in own) for own in row.facts["ranges"]],
                    "imbalance": {
                        "before": imbalance(before[-1]) if before else None,
                        "after": imbalance(after[0]) if after else None,
                    },
                }
            )
    return found


def chunks_begun(rows: list[Row]) -> list[int]:
    """Return the samples of each chunk of data that workers began.

    A worker begins one with every release that is no order to push, and after every report.
    """
    found = []
    for row in rows:
        if row.kind == "RELEASE" and row.id == 0 and row.text:
            shared = row.facts.get("injection")
            samples = len(shared["workers"]) * shared["each"] if shared else row.facts.get("samples")
            found += [samples] if samples else []
        elif row.kind == "REPORT" and "next_samples" in row.facts:
            found.append(row.facts["next_samples"])
    return found


def independence_of(rows: list[Row]) -> dict[int, float]:
    """Return each worker's iterations for each push: chunks for those that train on chunks, else steps."""
    by_chunks = any(row.kind == "REPORT" and "chunk_steps" in row.facts for row in rows)
    found = {}
    for worker in workers_of(rows):
        own = [row for row in rows if row.worker == worker]
        pushes = [row for row in own if row.kind == "PUSH"]
        if by_chunks:
            done = len(pushes) + sum(row.kind == "REPORT" and "chunk_steps" in row.facts for row in own)
        else:
            done = sum(row.steps for row in pushes)
            done += sum(row.kind == "RELEASE" and row.samples > 0 for row in own)
        if pushes:
            found[worker] = done / len(pushes)
    return found


def data_of(run: Run) -> Any:
    return run.experiment.data.load(Streams(run.experiment.seed))


def quality_of(run: Run) -> dict[str, float]:
    """Return loss and accuracy of the run's own model, one sample at a time, on all samples."""
    data, module = data_of(run), run.model()
    found = {}
    for which, inputs, targets in (
        ("train", data.train_x, data.train_y),
        ("val", data.val_x, data.val_y),
    ):
        losses, right = [], 0
        with torch.inference_mode():
            for x, y in zip(inputs, targets, strict=True):
                outputs = module(x[None])
                losses.append(float(functional.cross_entropy(outputs, y[None])))
                right += int(outputs.argmax()) == int(y)
        found[f"{which}_loss"], found[f"{which}_accuracy"] = fmean(losses), right / len(losses)
    return found


def was_written(rows: list[Row], place: int) -> bool:
    """Return whether a worker was held to write what is applied."""
    held = [row for row in rows[:place] if (row.kind, row.worker) == ("HOLD", rows[place].worker)]
    return bool(held) and held[-1].text == "writing"


def summary_of(run: Run) -> dict[str, Any]:
    """Return what `run.summary()` must be, but for what only the backend knows (see `facts_of`)."""
    rows, experiment = rows_of(run.log), run.experiment
    data = data_of(run)
    size, workers = len(data.train_y), workers_of(rows)
    applied = [row for row in rows if row.kind == "APPLY"]
    pushed = [row for row in rows if row.kind == "PUSH"]
    kept = [row for row in rows if row.kind == "RELEASE" and row.samples > 0]
    fates = [push.fate for push in pushes_of(rows)]
    stale, evaluated = stalenesses(rows), evaluations_of(rows)
    samples = samples_until(rows, len(rows))
    idle = idle_of(rows)
    answered = sent(rows, bool(run.meta["unanswered"]))
    accuracies = [row["val_accuracy"] for row in evaluated if "val_accuracy" in row]
    target = experiment.stop.target_accuracy
    found: dict[str, Any] = {
        "backend": experiment.backend,
        "strategy": experiment.strategy.name,
        "seed": experiment.seed,
        "workers": experiment.num_workers,
        "epochs": samples / size,
        "global_batch": experiment.batch_size,
        "mini_batches": samples / experiment.batch_size,
        "steps": sum(row.steps for row in pushed) + len(kept),
        "updates": applied[-1].version if applied else 0,
        "cancelled": sum(row.kind == "CANCEL" for row in rows) + lost_with_their_workers(rows),
        "pushes": {fate: fates.count(fate) for fate in ("committed", "discarded", "buffered")},
        "time_s": max(end_of(rows), run.meta["time_s"]),
        "final": {name: evaluated[-1].get(name) if evaluated else None for name in QUALITY},
        "best_val_accuracy": max(accuracies, default=None),
        "target_accuracy": target,
        "time_to_target_s": None if target is None else time_to(rows, target),
        "staleness": {"mean": fmean(stale), "max": max(stale)} if stale else {"mean": None, "max": None},
        "clock_lead_max": max((start.lead for start in starts_of(rows)), default=0),
        "bytes": {
            "up": sum(row.bytes for row in pushed),
            "down": sum(row.bytes for row in answered if row.kind == "RELEASE"),
        },
        "messages": {
            kind.lower(): sum(row.kind == kind for row in answered)
            for kind in ("PUSH", "VOTE", "REPORT", "RELEASE", "TELL", "VOID")
        },
        "idle_fraction": [sum(share for (w, _), share in idle.items() if w == worker) for worker in workers],
        "share_of_applied": [
            sum(row.worker == worker for row in applied) / len(applied) if applied else None
            for worker in workers
        ],
        "contributions": _contributions(run, rows),
        "switches": switches_of(rows, size, [c.name for c in experiment.strategy.compositions]),
        "digest": digest_of(run.log),
    }
    if chunks := chunks_begun(answered):
        found["bytes"]["data"] = sum(chunks) * data.train_x[0].numpy().nbytes
        found["messages"]["data"] = len(chunks)
    writes = [place for place, row in enumerate(rows) if row.kind == "APPLY" and was_written(rows, place)]
    if lost := [1 - rows[place].loss for place in writes]:
        found["lost_updates"] = {
            "written": len(lost),
            "hit": sum(share > 0 for share in lost),
            "lost": sum(lost),
        }
    if any(row.kind == "VOTE" for row in rows):
        found["local_steps"] = _votes(rows, len(kept))
    ratios = independence_of(rows)
    if any(ratio != 1 for ratio in ratios.values()):
        found["independence"] = fmean(ratios.values())
    if moved := reassignments_of(rows, run.meta["entry_bytes"]):
        found["reassignments"] = moved
    return found


def _contributions(run: Run, rows: list[Row]) -> dict[str, Any]:
    pieces = pieces_of(rows)
    lost = [piece.fate for piece in pieces if piece.fate != "used"]
    return {
        "used": len(pieces) - len(lost),
        "unused": {fate: lost.count(fate) for fate in lost},
        "class_distance": class_distance(run, pieces),
    }


def _votes(rows: list[Row], local: int) -> dict[str, Any]:
    synchronous = sum(row.kind == "RELEASE" and row.id == 1 for row in rows)
    return {
        "local": local,
        "synchronous": synchronous,
        "lssr": local / (local + synchronous) if local + synchronous else 0.0,
        "saving": (local + synchronous) / synchronous if synchronous else None,
    }


def warnings_of(run: Run) -> list[str]:
    """Return what a reader is warned of, but for switch rules and incidents."""
    rows = rows_of(run.log)
    found = at_whole_rates(run) + resumed(rows) + starved(rows)
    if run.meta["status"] == "diverged":
        found.append(f"the run diverged: {run.meta['reason']}")
    lost = lost_workers(rows)
    plural = "s" if len(lost) > 1 else ""
    found += [f"lost during the run: worker{plural} {', '.join(map(str, lost))}"] if lost else []
    left = [push for push in pushes_of(rows) if push.fate == "buffered"]
    if left:
        noun = ("push was", "pushes were")[len(left) > 1]
        found.append(f"{len(left)} {noun} still buffered at the end and changed nothing")
    return found


def resumed(rows: list[Any]) -> list[str]:
    """Return what a reader is told of each resume that found workers in the middle of steps."""
    found = []
    for at, row in enumerate(rows):
        if row.kind != "RESUME":
            continue
        again = json.loads(row.text).get("again", [])
        void = []
        for later in rows[at + 1 :]:
            if later.kind != "CANCEL":
                break
            void.append(later.worker)
        parts = []
        for workers, did in (
            (again, "repeated their steps since their last message"),
            (void, "restarted from the common model, without their own"),
        ):
            if workers:
                names = ", ".join(map(str, workers)) if len(workers) < 9 else f"{len(workers)} of them"
                parts.append(f"workers ({names}) {did}")
        if parts:
            when = f"resumed at {row.time_s:.4g} s in the middle of steps"
            found.append(
                f"{when}, so it is not bit for bit equal to an uninterrupted run: {'; '.join(parts)}"
            )
    return found


def at_whole_rates(run: Run) -> list[str]:
    """Return which compositions move the model as far with one push as a barrier with all."""
    whole = [each.whole_rate for each in run.experiment.strategy.compositions]
    made: list[dict[int, list[int]]] = [{} for _ in whole]  # by version, the workers whose pushes made it
    in_force = 0
    for row in rows_of(run.log):
        if row.kind == "HANDOVER":
            in_force = row.id
        if row.kind == "APPLY":
            made[in_force].setdefault(row.version, []).append(row.worker)
    return [
        f"every update of {run.experiment.strategy.compositions[place].name} has one push, at the full "
        "learning rate: the pushes of n workers move the model n times as far as one update of a barrier; "
        "use lr_scaling: by_share"
        for place, versions in enumerate(made)
        if whole[place]
        and all(len(workers) == 1 for workers in versions.values())
        and len({worker for workers in versions.values() for worker in workers}) > 1
    ]


def lost_workers(rows: list[Row]) -> list[int]:
    """Return the workers that left, or were dropped, and did not come back."""
    there: dict[int, bool] = {}
    for row in rows:
        if row.kind in ("JOIN", "READMIT", "LEAVE", "DROP"):
            there[row.worker] = row.kind in ("JOIN", "READMIT")
    return sorted(worker for worker, is_there in there.items() if not is_there)
