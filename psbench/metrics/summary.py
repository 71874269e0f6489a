"""Summary of a run: a few dozen plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from psbench.core.log import EventLog, Kind
from psbench.core.target import Target, target_of
from psbench.metrics.chunks import sent_chunks
from psbench.metrics.clocks import Clocks, leads
from psbench.metrics.contributions import counted, starved_workers, totals
from psbench.metrics.curves import evaluated_values, last_training_loss, time_to_target
from psbench.metrics.energy import energy_totals
from psbench.metrics.independence import mean_independence
from psbench.metrics.lost_updates import lost_columns
from psbench.metrics.pushes import Staleness, applied_columns
from psbench.metrics.rows import Rows, end_of, finite, kept_steps, pick, trained, workers_of
from psbench.metrics.servers import reassignments
from psbench.metrics.switches import switches
from psbench.metrics.totals import idle_fraction
from psbench.metrics.traffic import conservation, messages, total_bytes
from psbench.metrics.trained_groups import class_distance
from psbench.metrics.votes import local_steps_ratio
from psbench.metrics.warnings import never_switched, resumed_midway, whole_rates

#: time and values of each evaluation
_Evaluated: TypeAlias = Sequence[tuple[float, Mapping[str, float]]]


def summarise(log: EventLog, meta: Mapping[str, Any], target: float | Target | None = None) -> dict[str, Any]:
    """Return the summary of a run as plain data, without NaN or NumPy types.

    Parameters
    ----------
    log : EventLog
    meta : mapping
        What the log does not say. Needed: `dataset_size`. Used if there: `name`, `strategy`, `seed`,
        `backend`, `num_workers`, `status`, `reason`, `compositions` (their names, for the switches),
        `lost_workers`, `lr_convention`, `params_digest`, `versions`, `time_s`, `wall_s`, `target_accuracy`,
        `servers`, `entry_bytes`, `sample_bytes`, `usage`, `unanswered`, `global_batch`, `costs`,
        `server_usage`; for the warnings, `rules`, `planned_epochs` and `whole_rate` (`metrics.warnings`).
    target : float or Target, optional
        Validation accuracy, 0 to 1, or a bound of another metric, for `time_to_target_s`; if not given the
        run's own, `meta["target"]` or `meta["target_accuracy"]`. `target` is there only if it is no accuracy.

    Returns
    -------
    dict
        From `meta`: `name`, `backend`, `strategy`, `seed`, `status`, `reason`, `workers` (how many),
        `global_batch`, `wall_s`, `lost_workers`, `incidents`, `lr_convention`, `params_digest`, `versions`
        (of the software), and `target_accuracy` or `target`. `digest` is that of the log.
        `epochs` is samples trained on over the size of the data, `steps` the mini-batches in all pushes and
        those kept after a vote, `mini_batches` the samples trained on in global batches (what the thesis
        counts: a synchronous update is one, an asynchronous one of n workers the n-th part),
        `local_steps` is there only where workers vote (`local_steps_ratio`), `updates` is the number of
        versions (without a server, of all workers together), `time_s` the time at the end, `idle_fraction`
        and `share_of_applied` are lists by worker id. `pushes` counts those `committed`, `discarded` and
        `buffered` at the end, `cancelled` the steps made void before they became a push.
        `final` has the last losses and accuracies, `best_val_accuracy` is the highest accuracy, and
        `time_to_target_s` the time when the target was reached (None: never). `staleness` has the mean and
        maximum over applied pushes, `clock_lead_max` is the largest lead over the slowest worker. `bytes` and
        `messages` are totals by direction, `switches` lists the changes of composition, and `warnings` has
        sentences for the reader. `contributions` has how many gradients were `used`, and how many were
        `unused`, by reason (`metrics.contributions`), and the `class_distance` of what was trained on from
        the data (`metrics.group_distance`; None where classes are not known).
        `lost_updates` is there only where workers write into shared memory: how many updates were `written`,
        how many were `lost`, counted by the share of their entries, and, simulated, how many were `hit`. Live
        this is from `meta["lost_updates"]`, as the processes have counted it.
        `independence` (mean WI) is there only where a worker does more than a step between two requests.
        `servers` is there only with more than one server: for each composition with several its name, what
        each server holds at the start, and the imbalance of it (`Placement.balance`); `reassignments` only
        if parameters moved between servers (`metrics.reassignments`).
        `bytes` and `messages` have `data` only where workers are sent chunks of data (simulated; on dask
        every worker has all data from the start): the chunks begun, see `metrics.chunks_sent`.
        `energy` is there only if the cluster has `costs`: the sums of `metrics.energy` over all machines,
        with joules if it has watts, and with costs if it has prices.
        `usage` is there where the backend tells it: by worker its `steps`, the mean `read_ms` and
        `compute_ms` of a step, and `cpu`, the share of a core that its process took (live only; above 1 with
        threads).
    """
    rows = log.rows()
    kept = conservation(log)
    shares = applied_columns(rows)["share"]
    evaluated = evaluated_values(log, rows)
    counts = counted(log)
    given = meta.get("target") or meta.get("target_accuracy") if target is None else target
    aim = target_of(given)
    unanswered = bool(meta.get("unanswered"))
    samples = float(trained(rows)["samples"].sum(dtype=np.int64))
    batch = meta.get("global_batch")
    summary: dict[str, Any] = {
        **{name: meta.get(name) for name in ("name", "backend", "strategy", "seed", "status", "reason")},
        "workers": meta.get("num_workers", len(shares)),
        "epochs": samples / meta["dataset_size"],
        "global_batch": batch,
        "mini_batches": samples / batch if batch else None,
        "steps": int(pick(rows, Kind.PUSH)["steps"].sum(dtype=np.int64)) + kept_steps(rows),
        "updates": updates(rows),
        "cancelled": kept.pop("cancelled"),
        "pushes": kept,
        "time_s": max(end_of(rows), meta.get("time_s", 0.0)),
        "wall_s": meta.get("wall_s"),
        "final": _final(rows, meta, evaluated),
        "best_val_accuracy": _best(evaluated),
        "target_accuracy": aim.bound if aim is not None and aim.is_accuracy else meta.get("target_accuracy"),
        **({} if aim is None or aim.is_accuracy else {"target": aim.model_dump(exclude_none=True)}),
        "time_to_target_s": None if aim is None else time_to_target(log, aim),
        "staleness": _staleness(rows),
        "clock_lead_max": int(leads(rows, Clocks()).max(initial=0)),
        "bytes": total_bytes(log, unanswered),
        "messages": messages(log, unanswered),
        "idle_fraction": list(idle_fraction(log).values()),
        "share_of_applied": [finite(share) for share in shares],
        "contributions": totals(counts) | {"class_distance": class_distance(log, meta)},
        "switches": switches(log, meta["dataset_size"], meta.get("compositions", ())),
        "lost_workers": list(meta.get("lost_workers", ())),
        "incidents": list(meta.get("incidents", ())),
        "lr_convention": meta.get("lr_convention"),
        "digest": log.digest(),
        "params_digest": meta.get("params_digest"),
        "versions": dict(meta.get("versions", {})),
    }
    data = [samples for _, _, samples in sent_chunks(log, unanswered)]
    if data and meta.get("backend") == "simulated" and "sample_bytes" in meta:
        summary["bytes"]["data"] = sum(data) * meta["sample_bytes"]
        summary["messages"]["data"] = len(data)
    lost = lost_columns(log)["lost"]
    if len(lost):
        found = {"written": len(lost), "hit": int((lost > 0).sum()), "lost": float(lost.sum())}
        summary["lost_updates"] = found
    elif meta.get("lost_updates"):
        summary["lost_updates"] = dict(meta["lost_updates"])
    voted = local_steps_ratio(log)
    summary |= {} if voted is None else {"local_steps": voted}
    own = mean_independence(log)
    summary |= {} if own is None else {"independence": own}
    servers = [dict(balance) for balance in meta.get("servers", ())]
    summary |= {"servers": servers} if servers else {}
    moved = reassignments(log, meta.get("entry_bytes", 4))
    summary |= {"reassignments": moved} if moved else {}
    spent = energy_totals(log, meta)
    summary |= {"energy": spent} if spent else {}
    used = usage(meta)
    summary |= {"usage": used} if used else {}
    warnings = [*never_switched(log, meta), *whole_rates(log, meta), *resumed_midway(log)]
    warnings += [*starved_workers(counts, workers_of(rows)), *_warnings(summary)]
    return summary | {"warnings": warnings}


def updates(rows: Rows) -> int:
    """Return the number of versions; without a server, the total over workers."""
    applied = pick(rows, Kind.APPLY)
    if (rows["kind"] == Kind.MIX).any():
        return len(applied)
    return int(applied["version"][-1]) if len(applied) else 0


def usage(meta: Mapping[str, Any]) -> list[dict[str, float | int | None]]:
    """Return the time of a mini-batch per worker; see `summarise`. Empty if the backend does not report it.

    Examples
    --------
    >>> usage({})
    []
    """
    return [_usage(worker) for worker in meta.get("usage", ())]


def _usage(worker: Mapping[str, Any]) -> dict[str, float | int | None]:
    """Return a worker's means from its totals.

    >>> _usage({"worker": 1, "steps": 4, "read_s": 0.002, "compute_s": 0.01, "cpu_s": 0.5, "wall_s": 2.0})
    {'worker': 1, 'steps': 4, 'read_ms': 0.5, 'compute_ms': 2.5, 'cpu': 0.25}
    """
    steps, wall_s = worker["steps"], worker.get("wall_s")
    return {
        "worker": worker["worker"],
        "steps": steps,
        "read_ms": 1e3 * worker["read_s"] / steps if steps else None,
        "compute_ms": 1e3 * worker["compute_s"] / steps if steps else None,
        "cpu": worker["cpu_s"] / wall_s if wall_s else None,
    }


def _final(rows: Rows, meta: Mapping[str, Any], evaluated: _Evaluated) -> dict[str, float | None]:
    """Return the last evaluated values; without evaluations, the training loss of the last pushes."""
    names = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", *meta.get("metrics", ()))
    last = evaluated[-1][1] if evaluated else {}
    final = {name: finite(last.get(name)) for name in names}
    if final["train_loss"] is None:
        final["train_loss"] = finite(last_training_loss(rows, meta["dataset_size"]))
    return final


def _best(evaluated: _Evaluated) -> float | None:
    found = (finite(values.get("val_accuracy")) for _, values in evaluated)
    return max((value for value in found if value is not None), default=None)


def _staleness(rows: Rows) -> dict[str, float | int | None]:
    found = Staleness().read(rows)
    return (
        {"mean": float(found.mean()), "max": int(found.max())} if len(found) else {"mean": None, "max": None}
    )


def _warnings(summary: Mapping[str, Any]) -> list[str]:
    warnings = []
    if summary["status"] == "diverged":
        warnings.append(f"the run diverged: {summary['reason']}")
    if summary["status"] == "stopped":
        warnings.append(f"stopped before its end, after {summary['epochs']:.3g} epochs: {summary['reason']}")
    if summary["lost_workers"]:
        lost = ", ".join(str(worker) for worker in summary["lost_workers"])
        several = len(summary["lost_workers"]) > 1
        warnings.append(f"lost during the run: worker{'s' if several else ''} {lost}")
    if left := summary["pushes"]["buffered"]:
        pushes = "1 push was" if left == 1 else f"{left} pushes were"
        warnings.append(f"{pushes} still buffered at the end and changed nothing")
    return [*warnings, *summary["incidents"]]
