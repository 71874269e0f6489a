"""The tables of the charts from the log's definition: a list of rows for each figure, as plain dicts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from oracles.fates import class_distance, pieces_of, shares_of_classes
from oracles.story import (
    PHASES,
    ROUNDING_S,
    Row,
    Span,
    end_of,
    idle_of,
    pushes_of,
    rows_of,
    sent,
    sent_beside,
    spans_of,
    stalenesses,
    starts_of,
    workers_of,
)
from oracles.summaries import (
    data_of,
    evaluations_of,
    interval,
    loads_of,
    reassignments_of,
    samples_until,
    switches_of,
    was_written,
)

from psbench.results.run import Run

Table = list[dict[str, Any]]
AXES = ("time_s", "epoch", "updates", "bytes")
#: pieces that a chart shows: spans of a timeline, bars of a histogram, versions of a sequence diagram
SPANS, BARS, VERSIONS = 400, 40, 5


def plain(value: Any) -> Any:
    """Return what is missing as None, and numbers as Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if value is None or value is pd.NA or value != value else value


def same(found: Sequence[dict[str, Any]], expected: Table, digits: float) -> None:
    """Compare rows in any order; columns that are not expected must be empty."""

    def key(row: dict[str, Any]) -> Any:
        texts = [
            str(row.get(name)) for name in ("label", "phase", "reason", "what", "part", "event", "series")
        ]
        numbers = [row.get(name) for name in ("worker", "server", "start_s", "from_s", "time_s", "value")]
        return [*texts, *(-1.0 if number is None else round(float(number), 5) for number in numbers)]

    found = sorted(({name: plain(v) for name, v in row.items()} for row in found), key=key)
    expected = sorted(expected, key=key)
    assert len(found) == len(expected)
    for ours, theirs in zip(expected, found, strict=True):
        for name, value in ours.items():
            other = theirs.get(name)
            if isinstance(value, float) and isinstance(other, float | int):
                least = 1e-12 if digits < 1e-6 else 1e-6
                assert math.isclose(value, other, rel_tol=digits, abs_tol=least), (name, ours, theirs)
            else:
                assert other == value, (name, ours, theirs)


# -------------------------------------------------------------------- curves


def evaluated(label: str, runs: Sequence[Run], value: str) -> Table:
    """Return the curve of a value: the mean at each evaluation that all seeds reached, and its interval."""
    of_each = [evaluations_of(rows_of(run.log)) for run in runs]
    found = []
    for point in range(min(map(len, of_each))):
        here = [each[point] for each in of_each]
        mean, half, _ = interval([row[value] for row in here])
        top = 1.0 if value.endswith("accuracy") else math.inf
        found.append(
            {"label": label, "n": len(runs)}
            | {name: fmean(row[name] for row in here) for name in AXES}
            | {value: mean}
            | {
                f"{value}_low": None if half is None else max(mean - half, 0.0),
                f"{value}_high": None if half is None else min(mean + half, top),
            }
        )
    return found


def trained(label: str, run: Run, epochs: float = 0.25) -> Table:
    """Return the training loss at each push: the mean over the samples pushed last, a quarter of an epoch."""
    rows, size = rows_of(run.log), len(data_of(run).train_y)
    pushed: list[tuple[float, float, int]] = []  # samples before it, with it, and its place
    found = []
    for place, row in enumerate(rows):
        if row.kind != "PUSH" or not math.isfinite(row.loss):
            continue
        before = pushed[-1][1] if pushed else 0.0
        pushed.append((before, before + row.samples, place))
        first = before + row.samples - epochs * size
        window = [rows[at] for begin, _, at in pushed if begin >= first] or [row]
        versions = [each.version for each in rows[:place] if each.kind == "APPLY"]
        found.append(
            {
                "label": label,
                "time_s": row.time_s,
                "epoch": samples_until(rows, place) / size,
                "updates": versions[-1] if versions else 0,
                "bytes": sum(each.bytes for each in rows[: place + 1]),
                "train_loss": sum(each.loss * each.samples for each in window)
                / sum(each.samples for each in window),
            }
        )
    return found


def switched(label: str, runs: Sequence[Run], x: str = "time_s") -> Table:
    """Return where each run switched; of one in several runs the first on an axis has the words."""
    found: Table = []
    for seed, run in enumerate(runs):
        rows, names = rows_of(run.log), [c.name for c in run.experiment.strategy.compositions]
        for number, switch in enumerate(switches_of(rows, len(data_of(run).train_y), names)):
            axes = {name: switch["version" if name == "updates" else name] for name in AXES}
            event = f"switch to {switch['to']}"
            found.append({"label": label} | axes | {"event": event, "seed": seed, "number": number})
    for mark in found:
        same = [row for row in found if (row["number"], row["event"]) == (mark["number"], mark["event"])]
        mark["is_repeated"] = mark is not min(same, key=lambda row: row[x])
    return [{name: value for name, value in mark.items() if name != "number"} for mark in found]


def throughput(run: Run, bins: int) -> Table:
    """Return the samples trained on per second in equal stretches of the run."""
    rows = rows_of(run.log)
    width = end_of(rows) / bins
    found = []
    for number in range(bins):
        low, high, is_last = number * width, (number + 1) * width, number == bins - 1
        samples = sum(
            row.samples
            for row in rows
            if row.kind in ("APPLY", "RELEASE") and low <= row.time_s and (row.time_s < high or is_last)
        )
        found.append({"time_s": (low + high) / 2, "samples_per_s": samples / width})
    return found


# -------------------------------------------------------------------- what workers did


def timeline(run: Run) -> Table:
    """Return the beginning of the timeline: what starts before the 401st span does, cut there."""
    return _piece(_drawn(run), 0.0)


def around(run: Run, at_s: float) -> Table:
    """Return the timeline from 200 spans before a time on."""
    spans = _drawn(run)
    before = sorted(span.start_s for span in spans if span.start_s < at_s)
    return _piece(spans, before[max(len(before) - SPANS // 2, 0)])


def _drawn(run: Run) -> list[Span]:
    rows = rows_of(run.log)
    return [*spans_of(rows), *sent_beside(rows)]


def _piece(spans: list[Span], start_s: float) -> Table:
    seen = [span for span in spans if span.end_s > start_s]
    starts = sorted(span.start_s for span in seen)
    stop = starts[SPANS] if len(starts) > SPANS else max(span.end_s for span in seen)
    return [
        {"worker": span.worker, "phase": span.phase, "reason": span.reason, "waited_for": span.whom}
        | {"start_s": max(span.start_s, start_s), "end_s": min(span.end_s, stop)}
        for span in seen
        if span.start_s < stop
    ]


def worker_time_use(run: Run) -> Table:
    """Return the share of each worker's time that it spent in each phase."""
    spans = spans_of(rows_of(run.log))
    found = []
    for worker in sorted({span.worker for span in spans}):
        own = [span for span in spans if span.worker == worker]
        for phase in PHASES:
            lasted = sum(span.lasted for span in own if span.phase == phase)
            if lasted > ROUNDING_S:
                share = lasted / sum(span.lasted for span in own)
                found.append({"worker": worker, "phase": phase, "fraction": share})
    return found


def worker_idle(run: Run) -> Table:
    """Return the share of its time that each worker waited, by reason; who never waited has a row of 0."""
    rows = rows_of(run.log)
    idle = idle_of(rows)
    found = [{"worker": w, "reason": why, "fraction": share} for (w, why), share in sorted(idle.items())]
    never = [worker for worker in workers_of(rows) if worker not in {w for w, _ in idle}]
    if found:
        found += [{"worker": worker, "reason": found[0]["reason"], "fraction": 0.0} for worker in never]
    return found


def over_time(run: Run, *series: str) -> Table:
    """Return the means of 100 to 200 equal intervals: workers at work, or bytes a second."""
    rows = rows_of(run.log)
    pieces: dict[str, list[tuple[float, float, float]]] = {name: [] for name in series}
    for span in spans_of(rows):
        name = {"compute": "computing", "send": "sending", "pull": "sending"}.get(span.phase)
        if name in pieces:
            pieces[name].append((span.start_s, span.end_s, span.lasted))
    for row in sent(rows, bool(run.meta["unanswered"])):
        if row.kind == "PUSH" and "up" in pieces:
            pieces["up"].append((max(row.time_s - row.send_s, 0.0), row.time_s, row.bytes))
        if row.kind == "RELEASE" and "down" in pieces:
            pieces["down"].append((row.time_s, row.time_s, row.bytes))
    end_s, width = end_of(sent(rows, bool(run.meta["unanswered"]))), 2.0**-20
    while 200 * width < end_s:
        width *= 2
    count = math.ceil(end_s / width)
    found: Table = []
    for name in series:
        for number in range(count):
            low, high = number * width, min((number + 1) * width, end_s)
            is_last = number == count - 1
            total = 0.0
            for start, stop, amount in pieces[name]:
                if stop > start:
                    total += amount * max(0.0, min(stop, high) - max(start, low)) / (stop - start)
                elif low <= start and (start < high or is_last):
                    total += amount
            found.append(
                {"time_s": (low + high) / 2, "width_s": high - low, "series": name}
                | {"value": total / (high - low)}
            )
    return found


def steps(run: Run) -> Table:
    """Return the mean milliseconds of reading and of computing a mini-batch."""
    return [
        {"worker": used["worker"], "part": part, "ms": 1000 * used[total] / used["steps"]}
        for used in run.meta["usage"]
        for part, total in (("reading", "read_s"), ("computing", "compute_s"))
        if used["steps"]
    ]


def shares(run: Run, label: str) -> Table:
    """Return each worker's share of the applied pushes."""
    rows = rows_of(run.log)
    applied = [row for row in rows if row.kind == "APPLY"]
    pushed = [row for row in rows if row.kind == "PUSH"]
    workers = workers_of(rows)
    return [
        {
            "label": label,
            "worker": worker,
            "pushes": sum(row.worker == worker for row in pushed),
            "applied": sum(row.worker == worker for row in applied),
            "samples": sum(row.samples for row in applied if row.worker == worker),
            "share": sum(row.worker == worker for row in applied) / len(applied),
            "equal": 1 / len(workers),
        }
        for worker in workers
    ]


#: the groups of ages, in versions: the first and the last of each
AGES = ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63))


def fate_of(piece: Any) -> str:
    """Return how a chart names what became of a piece of work."""
    if piece.age is None:
        return str(piece.fate)
    for low, high in AGES:
        if low <= piece.age <= high:
            return str(low) if low == high else f"{low}-{high}"
    return "64 and more"


def _place(fate: str) -> tuple[int, str]:
    """Return where a fate is in the stack: by age, then by reason."""
    first = fate.split("-")[0].split(" ")[0]
    return (int(first), "") if first.isdigit() else (1000, fate)


def worker_fates(run: Run) -> Table:
    """Return how many gradients of each worker came to what, by age or reason."""
    pieces = pieces_of(rows_of(run.log))
    found = []
    for worker in sorted({piece.worker for piece in pieces}):
        own = [fate_of(piece) for piece in pieces if piece.worker == worker]
        for fate in sorted({*own}, key=_place):
            row = {"worker": worker, "fate": fate, "gradients": own.count(fate)}
            found.append(row | {"share": own.count(fate) / len(pieces)})
    return found


def fates(label: str, runs: Sequence[Run]) -> Table:
    """Return how many gradients came to what, over all workers and seeds."""
    all_of_them = [fate_of(piece) for run in runs for piece in pieces_of(rows_of(run.log))]
    return [
        {"label": label, "fate": fate, "gradients": all_of_them.count(fate)}
        | {"share": all_of_them.count(fate) / len(all_of_them)}
        for fate in sorted({*all_of_them}, key=_place)
    ]


def classes(run: Run) -> Table:
    """Return the samples of each class in what was used."""
    pieces = pieces_of(rows_of(run.log))
    shares = shares_of_classes(run, pieces) or []
    labels = data_of(run).train_y.tolist()
    used = sum(piece.samples for piece in pieces if piece.fate == "used")
    return [
        {"group": name, "samples": used * share, "share": share}
        | {"whole": labels.count(number) / len(labels)}
        for number, (name, share) in enumerate(zip(run.meta["classes"], shares, strict=False))
    ]


def is_far(runs: Sequence[Run]) -> bool:
    """Return whether one of the runs has been trained on other classes than the data's by a percent."""
    return any((class_distance(run, pieces_of(rows_of(run.log))) or 0.0) >= 0.01 for run in runs)


def distances(run: Run, label: str) -> Table:
    """Return how far off the classes are after every so many gradients as there are workers."""
    rows = rows_of(run.log)
    found: Table = []
    if not run.meta["label_counts"]:
        return found
    count = version = 0
    for place, row in enumerate(rows):
        if row.kind == "APPLY":
            version = row.version
        if (row.kind == "APPLY" and row.loss == 0) or row.kind not in ("APPLY", "RELEASE") or not row.samples:
            continue
        count += 1
        if count % run.experiment.num_workers == 0:
            # what had become of it until then: pushes that are pending are not used
            far = class_distance(run, [p for p in pieces_of(rows[: place + 1]) if p.fate == "used"])
            axes = {"time_s": row.time_s, "epoch": samples_until(rows, place + 1) / run.meta["dataset_size"]}
            sent_until = sum(each.bytes for each in rows[: place + 1])
            axes |= {"updates": version, "bytes": sent_until}
            found.append({"label": label, **axes, "class_distance": far})
    return found


def counted(values: Sequence[int], label: str) -> Table:
    """Return how often each number occurs, in at most 40 bars of equally many numbers."""
    width = 1
    while width * BARS < max(values) + 1 and -(-(max(values) + 1) // width) > BARS:
        width += 1
    found = []
    for first in range(0, max(values) + 1, width):
        last = first + width - 1
        count = sum(first <= value <= last for value in values)
        found.append(
            {"label": label, "value": first, "last": last, "low": first - 0.5, "high": last + 0.5}
            | {"count": count, "share": count / len(values)}
        )
    return found


def leads(run: Run) -> list[int]:
    return [start.lead for start in starts_of(rows_of(run.log))]


def staleness(run: Run) -> list[int]:
    return stalenesses(rows_of(run.log))


def batch_sizes(run: Run) -> Table:
    """Return each worker's samples a step where it changes, and where it was seen first and last."""
    found = []
    rows = [row for row in rows_of(run.log) if row.kind == "PUSH"]
    for worker in sorted({row.worker for row in rows}):
        own = [row for row in rows if row.worker == worker]
        size = [row.samples / row.steps for row in own]
        for place, row in enumerate(own):
            if place in (0, len(own) - 1) or size[place] != size[place - 1]:
                found.append({"time_s": row.time_s, "worker": worker, "batch_size": size[place]})
    return found


def of_run(run: Run, label: str) -> dict[str, list[Table]]:
    """Return the tables of all figures of what a run's workers, servers and rules did."""
    rows = rows_of(run.log)
    names = [composition.name for composition in run.experiment.strategy.compositions]
    at = [switch["time_s"] for switch in switches_of(rows, run.meta["dataset_size"], names)]
    found = {
        "timeline": [timeline(run)],
        "switch": [around(run, time_s) for time_s in at],
        "time_use": [worker_time_use(run)],
        "idle": [worker_idle(run)],
        "utilisation": [over_time(run, "computing", "sending")],
        "traffic": [over_time(run, "up", "down")],
        "steps": [steps(run)],
        "share": [shares(run, label)],
        "contributions": [worker_fates(run)],
        "trained": [classes(run)],
        "class_distance": [distances(run, label)],
        "staleness": [counted(staleness(run), label)],
        "lead": [counted(leads(run), label)],
        "batch_size": [batch_sizes(run)],
        "rule": [rule(run)],
        "server_load": [loads(run)],
        "lost_updates": [overwritten(run)],
    }
    if not any(row["ms"] for row in found["steps"][0] if row["part"] == "reading"):
        del found["steps"]
    if len({row["fate"] for row in found["contributions"][0]}) == 1:
        del found["contributions"]
    if not is_far([run]):
        del found["trained"], found["class_distance"]
    for name in ("staleness", "lead"):  # one bar says nothing
        if len(found[name][0]) == 1:
            del found[name]
    sizes: dict[int, set[float]] = {}
    for row in found["batch_size"][0]:
        sizes.setdefault(row["worker"], set()).add(row["batch_size"])
    if all(len(own) == 1 for own in sizes.values()):
        del found["batch_size"]
    if not any(row["value"] is not None for row in found["rule"][0]):
        del found["rule"]
    says_none = {"idle"} if found["time_use"][0] else set[str]()  # that no worker waited
    return {name: tables for name, tables in found.items() if (tables and tables[0]) or name in says_none}


def overwritten(run: Run) -> Table:
    """Return the share of each update that is missing from what a worker was held for to write."""
    rows = rows_of(run.log)
    found: Table = []
    for place, row in enumerate(rows):
        if row.kind == "APPLY" and was_written(rows, place):
            lost = 1 - row.loss
            so_far = found[-1]["lost_so_far"] + lost if found else lost
            found.append({"time_s": row.time_s, "worker": row.worker, "push": row.id, "lost": lost})
            found[-1] |= {"lost_so_far": so_far, "written_so_far": len(found)}
    return found


# -------------------------------------------------------------------- rules, servers, labels


def rule(run: Run) -> Table:
    """Return what the switch rule noted, then the switches."""
    found: Table = []
    for row in rows_of(run.log):
        if row.kind == "NOTE" and row.text.startswith("rule "):
            said = dict(part.split("=") for part in row.text.split()[2:])
            value, threshold = float(said["value"]), float(said["threshold"])
            found.append({"epoch": int(said["epoch"]), "value": value, "threshold": threshold, "event": None})
    marks = switched("", [run])
    return found + [
        {"epoch": mark["epoch"], "value": None, "threshold": None, "event": mark["event"]} for mark in marks
    ]


def loads(run: Run) -> Table:
    """Return how busy each server was at each look, then the moves."""
    rows = rows_of(run.log)
    found: Table = [
        {"time_s": at, "server": str(server), "load_s": load, "event": None}
        | {"relative": load / fmean(busy) if any(busy) else 1.0}
        for at, busy in loads_of(rows)
        for server, load in enumerate(busy)
    ]
    return found + [
        {"time_s": move["time_s"], "server": None, "load_s": None, "relative": None}
        | {"event": f"{move['moved']:,} entries moved"}
        for move in reassignments_of(rows, 4)
    ]


def labels(run: Run, shards: Sequence[Sequence[int]]) -> Table:
    """Return how many samples of each class each worker's shard has."""
    data = data_of(run)
    classes = data.train_y.tolist()
    return [
        {"worker": worker, "class": name, "samples": sum(classes[at] == number for at in shard)}
        for worker, shard in enumerate(shards)
        for number, name in enumerate(run.meta["classes"])
    ]


def servers(ranges: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """Return how many entries each server holds."""
    return [sum(stop - start for start, stop in own) for own in ranges]


# -------------------------------------------------------------------- the sequence diagram


def sequence_end(run: Run) -> float:
    """Return where the diagram ends: a little after the fifth version."""
    made: dict[int, float] = {}
    for row in rows_of(run.log):
        if row.kind == "APPLY":
            made.setdefault(row.version, row.time_s)
    return 1.08 * max(list(made.values())[:VERSIONS])


def sequence(run: Run, end_s: float) -> Table:
    """Return bars and strokes: workers are lines 1, 2, ..., the server is line 0."""
    rows = rows_of(run.log)
    fates = {(push.row.worker, push.row.time_s): push for push in pushes_of(rows)}
    found: Table = []
    for span in spans_of(rows):
        if span.start_s >= end_s:
            continue
        line = span.worker + 1.0
        near = line - 0.26  # half a bar nearer to the server
        y, y2 = {"send": (near, 0.0), "pull": (0.0, near)}.get(span.phase, (line, line))
        what, note, push = span.phase, span.reason, fates.get((span.worker, span.end_s))
        if span.phase == "send":
            if push is None or push.fate == "buffered":
                note = "under way" if push is None else "buffered"
            elif push.fate == "discarded":
                what, note = "lost", "discarded"
            else:
                note = f"in version {push.version}, staleness {push.staleness}"
        found.append(
            {"what": what, "worker": span.worker, "from_s": span.start_s, "to_s": min(span.end_s, end_s)}
            | {"y": y, "y2": y2, "note": note, "label": None}
        )
    return found + _versions(rows, end_s)


def _versions(rows: list[Row], end_s: float) -> Table:
    made: dict[int, float] = {}
    for row in rows:
        if row.kind == "APPLY":
            made.setdefault(row.version, row.time_s)
    found, last = [], -math.inf
    for version, at in made.items():
        if at >= end_s:
            continue
        has_room = at - last >= 0.04 * end_s
        last = at if has_room else last
        found.append(
            {"what": "version", "worker": -1, "from_s": at, "to_s": at, "y": 0.0, "y2": 0.0}
            | {"note": f"w{version}", "label": f"w{version}" if has_room else ""}
        )
    return found


# -------------------------------------------------------------------- comparisons


def time_use(label: str, runs: Sequence[Run]) -> Table:
    """Return the share of all workers' time, over all seeds, in each phase."""
    spans = [span for run in runs for span in spans_of(rows_of(run.log))]
    whole = sum(span.lasted for span in spans)
    return [
        {"label": label, "phase": phase}
        | {"fraction": sum(span.lasted for span in spans if span.phase == phase) / whole}
        for phase in PHASES
    ]


def idles(groups: Mapping[str, Sequence[Run]]) -> Table:
    """Return the shares of all labels; one that never waited has a row of 0 for the first reason of all."""
    found = {label: idle(label, runs) for label, runs in groups.items()}
    first = [row["reason"] for rows in found.values() for row in rows][:1]
    for label, rows in found.items():
        if not rows:
            rows += [{"label": label, "reason": reason, "fraction": 0.0} for reason in first]
    return [row for rows in found.values() for row in rows]


def idle(label: str, runs: Sequence[Run]) -> Table:
    """Return the share of time spent waiting for each reason: the mean over workers, then over seeds.

    A seed in which nobody waited for a reason counts as 0.
    """
    of_each = []
    for run in runs:
        own: dict[str, float] = defaultdict(float)
        for (_, why), share in idle_of(rows_of(run.log)).items():
            own[why] += share / run.experiment.num_workers
        of_each.append(own)
    reasons = sorted({why for own in of_each for why in own})
    return [
        {"label": label, "reason": why, "fraction": fmean(own.get(why, 0.0) for own in of_each)}
        for why in reasons
    ]


def spread(label: str, values: Sequence[int]) -> Table:
    """Return what nine values in ten lie between (linearly interpolated), the mean and the largest."""
    ordered = sorted(values)

    def quantile(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = math.floor(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return [
        {"label": label, "low": quantile(0.05), "high": quantile(0.95)}
        | {"mean": fmean(ordered), "max": ordered[-1]}
    ]


def traffic(label: str, runs: Sequence[Run]) -> Table:
    """Return the bytes up and down, means over seeds."""
    answered = [sent(rows_of(run.log), bool(run.meta["unanswered"])) for run in runs]
    kinds = {"up": "PUSH", "down": "RELEASE"}
    return [
        {"label": label, "direction": way}
        | {"bytes": fmean(sum(row.bytes for row in rows if row.kind == kind) for rows in answered)}
        for way, kind in kinds.items()
    ]


def pareto(groups: dict[str, list[Run]]) -> Table:
    """Return what each spent and how low its loss is at the end, and whether no other beats it in both."""
    found: Table = []
    for label, runs in groups.items():
        last = [evaluations_of(rows_of(run.log))[-1] for run in runs]
        losses = [row["train_loss"] if row.get("val_loss") is None else row["val_loss"] for row in last]
        if all(loss is not None and math.isfinite(loss) for loss in losses):
            spent = sum(row["bytes"] for row in traffic(label, runs))
            silent = fmean(_silent_s(run) for run in runs)
            found.append({"label": label, "bytes": spent, "silent_s": silent, "loss": fmean(losses)})
    for row in found:
        for cost in ("bytes", "silent_s"):
            row[f"front_{cost}"] = not any(
                other[cost] <= row[cost]
                and other["loss"] <= row["loss"]
                and (other[cost] < row[cost] or other["loss"] < row["loss"])
                for other in found
            )
    return found


def _silent_s(run: Run) -> float:
    """Return for how long no worker computed, from when each span of computing begins and ends."""
    rows = rows_of(run.log)
    steps = [(span.start_s, span.end_s) for span in spans_of(rows) if span.phase == "compute"]
    times = sorted({time for step in steps for time in step})
    busy = sum(
        after - before
        for before, after in pairwise(times)
        if any(start <= before and after <= end for start, end in steps)
    )
    return end_of(rows) - busy
