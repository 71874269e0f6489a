"""Tables for the charts, made from runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from psbench import metrics
from psbench.charts.contributions import age_group, in_order
from psbench.charts.curves import AXES
from psbench.metrics.record import RunRecord

EVALUATED = ("val_accuracy", "train_accuracy", "val_loss", "train_loss", "consensus_distance")


def label_of(run: RunRecord) -> str:
    """Return the label of a single run in charts: its strategy."""
    return str(run.meta.get("strategy") or "run")


def evaluation_table(run: RunRecord, label: str, seed: int = 0) -> pd.DataFrame:
    frame = metrics.evaluations(run.log)
    frame = frame.assign(label=label, seed=seed, point=np.arange(len(frame)))
    return frame[["label", "seed", "point", *AXES, *evaluated_columns(frame)]]


def evaluated_columns(frame: pd.DataFrame) -> list[str]:
    """Return the evaluated values that a table has: psbench's own first, then the user's metrics."""
    own = [name for name in frame if str(name).startswith(("val_", "train_")) and name not in EVALUATED]
    return [*(name for name in EVALUATED if name in frame), *map(str, own)]


def training_table(run: RunRecord, label: str) -> pd.DataFrame:
    frame = metrics.training_loss(run.log, run.meta["dataset_size"])
    frame.insert(0, "label", label)
    return frame


def switch_table(run: RunRecord, label: str) -> pd.DataFrame:
    """Return a run's switches as rows that mark an event: `label`, the axes, `event`."""
    found = metrics.switches(run.log, run.meta["dataset_size"], run.meta.get("compositions", ()))
    return pd.DataFrame([mark_of(switch, label) for switch in found], columns=["label", *AXES, "event"])


def mark_of(switch: Mapping[str, Any], label: str) -> dict[str, Any]:
    axes = {name: switch["version" if name == "updates" else name] for name in AXES}
    return {"label": label, **axes, "event": f"switch to {switch['to']}"}


def time_use_table(runs: Iterable[RunRecord], **row: object) -> pd.DataFrame:
    """Return the share of time in each phase over all workers and runs: `phase`, `fraction`, and `row`."""
    seconds = dict.fromkeys(metrics.PHASES, 0.0)
    for run in runs:
        for (_, phase), lasted in metrics.time_use(run.log).items():
            seconds[phase] += lasted
    whole = sum(seconds.values()) or 1.0  # a run that is cut before its first step has no time to share
    return pd.DataFrame(
        [{**row, "phase": phase, "fraction": lasted / whole} for phase, lasted in seconds.items()]
    )


def step_table(run: RunRecord) -> pd.DataFrame:
    """Return the times of a mini-batch: `worker`, `part` ("reading" or "computing"), `ms`, `cpu` (0 to 1)."""
    rows = [
        {"worker": used["worker"], "part": part, "ms": used[name], "cpu": used["cpu"]}
        for used in metrics.usage(run.meta)
        for part, name in (("reading", "read_ms"), ("computing", "compute_ms"))
        if used["steps"]
    ]
    return pd.DataFrame(rows, columns=["worker", "part", "ms", "cpu"])


def stacked(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all parts; empty parts are left out, as they would change the columns' types."""
    return pd.concat([part for part in parts if len(part)] or parts[:1])


def idle_table(groups: Mapping[str, Sequence[RunRecord]]) -> pd.DataFrame:
    """Return the mean share of time spent waiting, by reason: `label`, `reason`, `fraction`.

    Labels whose runs never waited have a row of 0, if any label's did.
    """
    parts = [_waits(runs, label) for label, runs in groups.items()]
    reason = next((part["reason"].iloc[0] for part in parts if len(part)), None)
    if reason is None:
        return parts[0]
    none = {"reason": [reason], "fraction": [0.0]}
    return pd.concat(
        [
            part if len(part) else pd.DataFrame({"label": [label], **none})
            for label, part in zip(groups, parts, strict=True)
        ]
    )


def _waits(runs: Sequence[RunRecord], label: str) -> pd.DataFrame:
    parts = [
        metrics.idle(run.log).groupby("reason")["fraction"].sum() / run.meta["num_workers"] for run in runs
    ]
    mean = pd.concat(parts).groupby(level=0).sum() / len(runs)
    return pd.DataFrame({"label": label, "reason": mean.index, "fraction": mean.to_numpy()})


def spread_table(values: pd.Series[int], label: str) -> pd.DataFrame:
    """Return the 5th and 95th percentile, mean and largest value: `label`, `low`, `high`, `mean`, `max`."""
    low, high = (float(values.quantile(q)) for q in (0.05, 0.95))
    row = {"label": label, "low": low, "high": high, "mean": float(values.mean()), "max": int(values.max())}
    return pd.DataFrame([row])


def contribution_table(runs: Sequence[RunRecord], label: str) -> pd.DataFrame:
    """Return gradients by fate: `label`, `fate` (an age, or a reason), `gradients`, `share`."""
    found: dict[str, int] = {}
    for run in runs:
        frame = metrics.contributions(run.log)
        for fate, age, gradients in frame[["fate", "age", "gradients"]].itertuples(index=False):
            key = fate if pd.isna(age) else age_group(age)
            found[key] = found.get(key, 0) + gradients
    fates, total = in_order(list(found)), max(sum(found.values()), 1)
    rows = [(label, fate, found[fate], found[fate] / total) for fate in fates]
    return pd.DataFrame(rows, columns=["label", "fate", "gradients", "share"])


def distance_table(run: RunRecord, label: str) -> pd.DataFrame:
    """Return the distance of the classes trained on from the data: `label`, the axes, `class_distance`."""
    frame = metrics.group_distance(run.log, run.meta)
    frame.insert(0, "label", label)
    return frame


def sent_bytes(run: RunRecord) -> dict[str, int]:
    return metrics.total_bytes(run.log, bool(run.meta.get("unanswered")))


def traffic_table(runs: Sequence[RunRecord], label: str) -> pd.DataFrame:
    """Return the mean bytes that runs sent: `label`, `direction` ("up" and "down"), `bytes`."""
    mean = pd.DataFrame([sent_bytes(run) for run in runs]).mean()
    return pd.DataFrame({"label": label, "direction": mean.index, "bytes": mean.to_numpy()})


def server_tables(run: RunRecord) -> dict[str, pd.DataFrame]:
    """Return each server's contents by composition: `server`, `quantity`, `count`, `share`, `equal`.

    Only for compositions with more than one server; `equal` is one over the servers.
    """
    return {balance["composition"]: _server_table(balance) for balance in run.meta.get("servers", ())}


def load_table(run: RunRecord) -> pd.DataFrame:
    """Return the servers' load: `time_s`, `server`, `relative`, `load_s`; moves: `time_s`, `event`.

    Empty unless the servers were looked at.
    """
    seen = metrics.server_loads(run.log)[["time_s", "server", "relative", "load_s"]].assign(event=None)
    seen["server"] = seen["server"].astype(str)
    moves = metrics.reassignments(run.log)
    marks = pd.DataFrame(
        [{"time_s": move["time_s"], "event": f"{move['moved']:,} entries moved"} for move in moves]
    )
    return pd.concat([seen.astype(object), marks.astype(object)], ignore_index=True)


def _server_table(balance: Mapping[str, Any]) -> pd.DataFrame:
    rows = [
        {"server": server, "quantity": quantity, "count": count}
        | {"share": count / sum(counts), "equal": 1 / len(counts)}
        for quantity, counts in balance.items()
        if quantity in balance["imbalance"]
        for server, count in enumerate(counts)
    ]
    return pd.DataFrame(rows)


def label_table(meta: Mapping[str, Any]) -> pd.DataFrame | None:
    """Return the samples of each class by worker: `worker`, `class`, `samples`; None if not recorded."""
    counts = meta.get("label_counts")
    if not counts:
        return None
    rows = [(w, c, n) for w, row in enumerate(counts) for c, n in zip(meta["classes"], row, strict=True)]
    return pd.DataFrame(rows, columns=["worker", "class", "samples"])
