"""Tables for the charts, made from runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from psbench import metrics
from psbench.charts.curves import AXES
from psbench.charts.source import RunRecord
from psbench.core.log import EventLog

EVALUATED = ("val_accuracy", "train_accuracy", "val_loss", "train_loss")


def label_of(run: RunRecord) -> str:
    """Return what a single run's lines are called: its strategy."""
    return str(run.meta.get("strategy") or "run")


def evaluation_table(run: RunRecord, label: str, seed: int = 0) -> pd.DataFrame:
    """Return a run's evaluations: `label`, `seed`, `point` (0, 1, ...), the axes, and the values."""
    frame = metrics.evaluations(run.log)
    frame.insert(0, "label", label)
    frame.insert(1, "seed", seed)
    frame.insert(2, "point", np.arange(len(frame)))
    kept = [n for n in ("label", "seed", "point", *AXES) if n in frame]
    return frame[[*kept, *evaluated(frame)]]


def evaluated(frame: pd.DataFrame) -> list[str]:
    """Return the evaluated values that a table has: psbench's own first, then a person's metrics."""
    own = [name for name in frame if str(name).startswith("val_") and name not in EVALUATED]
    return [*(name for name in EVALUATED if name in frame), *map(str, own)]


def training_table(run: RunRecord, label: str) -> pd.DataFrame:
    """Return a run's smoothed training loss: `label`, the axes, and `train_loss`."""
    frame = metrics.training_loss(run.log, run.meta["dataset_size"])
    frame.insert(0, "label", label)
    return frame


def switch_table(run: RunRecord, label: str) -> pd.DataFrame:
    """Return a run's switches as rows that mark an event: `label`, the axes, `event`."""
    found = metrics.switches(run.log, run.meta["dataset_size"], run.meta.get("compositions", ()))
    sent = _bytes_at(run, [switch["time_s"] for switch in found])
    rows = [
        {"label": label, "time_s": s["time_s"], "epoch": s["epoch"], "updates": s["version"], "bytes": b}
        | {"event": f"switch to {s['to']}"}
        for s, b in zip(found, sent, strict=True)
    ]
    return pd.DataFrame(rows, columns=["label", *AXES, "event"])


def time_use_table(runs: Iterable[RunRecord], **row: object) -> pd.DataFrame:
    """Return the share of time in each phase over all workers and runs: `phase`, `fraction`, and `row`."""
    spans = pd.concat([metrics.timeline(run.log) for run in runs])
    lasted = (spans["end_s"] - spans["start_s"]).groupby(spans["phase"], observed=False).sum()
    return pd.DataFrame(
        {**row, "phase": lasted.index.astype(str), "fraction": lasted.to_numpy() / lasted.sum()}
    )


def worker_time_table(spans: pd.DataFrame) -> pd.DataFrame:
    """Return the share of time in each phase by worker: `worker`, `phase`, `fraction`."""
    lasted = (spans["end_s"] - spans["start_s"]).groupby([spans["worker"], spans["phase"].astype(str)]).sum()
    share = lasted / lasted.groupby(level="worker").transform("sum")
    return share.rename("fraction").reset_index()


def step_table(run: RunRecord) -> pd.DataFrame:
    """Return what a mini-batch takes: `worker`, `part` ("reading" or "computing"), `ms`, `cpu` (0 to 1)."""
    rows = [
        {"worker": used["worker"], "part": part, "ms": used[name], "cpu": used["cpu"]}
        for used in metrics.usage(run.meta)
        for part, name in (("reading", "read_ms"), ("computing", "compute_ms"))
        if used["steps"]
    ]
    return pd.DataFrame(rows, columns=["worker", "part", "ms", "cpu"])


def waiting_table(log: EventLog, spans: pd.DataFrame) -> pd.DataFrame:
    """Return the share of time each worker waited, by reason: `worker`, `reason`, `fraction`.

    A worker that never waited has a row with 0, so that it is seen not to; empty if none did.
    """
    found = metrics.idle(log, spans)[["worker", "reason", "fraction"]]
    never = sorted(set(spans["worker"]) - set(found["worker"])) if len(found) else []
    rest = pd.DataFrame({"worker": never, "reason": found["reason"].head(1).tolist() * len(never)})
    parts = [found, rest.assign(fraction=0.0)] if never else [found]
    return pd.concat(parts, ignore_index=True).sort_values(["worker", "reason"], ignore_index=True)


def idle_table(runs: Sequence[RunRecord], label: str) -> pd.DataFrame:
    """Return the mean share of time spent waiting, by reason: `label`, `reason`, `fraction`."""
    parts = [
        metrics.idle(run.log).groupby("reason")["fraction"].sum() / run.meta["num_workers"] for run in runs
    ]
    mean = pd.concat(parts).groupby(level=0).sum() / len(runs)
    return pd.DataFrame({"label": label, "reason": mean.index, "fraction": mean.to_numpy()})


def share_table(run: RunRecord, label: str) -> pd.DataFrame:
    """Return the share of applied pushes: `label`, `worker`, `applied`, `share`, `equal`."""
    frame = metrics.share_of_applied(run.log)
    frame.insert(0, "label", label)
    frame["equal"] = 1 / max(len(frame), 1)
    return frame


def spread_table(values: pd.Series[int], label: str) -> pd.DataFrame:
    """Return the 5th and 95th percentile, mean and largest value: `label`, `low`, `high`, `mean`, `max`."""
    low, high = (float(values.quantile(q)) for q in (0.05, 0.95))
    row = {"label": label, "low": low, "high": high, "mean": float(values.mean()), "max": int(values.max())}
    return pd.DataFrame([row])


def rule_table(run: RunRecord) -> pd.DataFrame:
    """Return what the switch rule saw, and the switches: `epoch`, `value`, `threshold`, `event`."""
    seen = metrics.rule_values(run.log)[["epoch", "value", "threshold"]].assign(event=None)
    marks = switch_table(run, "")[["epoch", "event"]]
    return pd.concat([seen.astype(object), marks.astype(object)], ignore_index=True)


def server_tables(run: RunRecord) -> dict[str, pd.DataFrame]:
    """Return by composition what each server holds: `server`, `quantity`, `count`, `share`, `equal`.

    Only for compositions with more than one server; `equal` is one over the servers.
    """
    return {balance["composition"]: _server_table(balance) for balance in run.meta.get("servers", ())}


def load_table(run: RunRecord) -> pd.DataFrame:
    """Return how busy servers were: `time_s`, `server`, `relative`, `load_s`, and moves as `time_s`, `event`.

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


def label_table(run: RunRecord) -> pd.DataFrame | None:
    """Return the samples of each class by worker: `worker`, `class`, `samples`; None if not recorded."""
    return label_table_of(run.meta)


def label_table_of(meta: Mapping[str, Any]) -> pd.DataFrame | None:
    """Return `label_table` from the facts of a run."""
    counts = meta.get("label_counts")
    if not counts:
        return None
    rows = [(w, c, n) for w, row in enumerate(counts) for c, n in zip(meta["classes"], row, strict=True)]
    return pd.DataFrame(rows, columns=["worker", "class", "samples"])


def _bytes_at(run: RunRecord, times: Sequence[float]) -> list[int]:
    rows = run.log.rows()
    sent = np.append(0, np.cumsum(rows["bytes"], dtype=np.int64))
    return [int(sent[np.searchsorted(rows["time_s"], at, side="right")]) for at in times]
