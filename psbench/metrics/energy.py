"""Energy and cost of a run by machine, with the parts of waiting and of unused work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.arrays import Doubles
from psbench.core.log import EventLog, Kind
from psbench.metrics.contributions import is_used
from psbench.metrics.rows import Rows, end_of, pick, sent, workers_of
from psbench.metrics.table import table
from psbench.metrics.totals import SpanTotals

if TYPE_CHECKING:
    import pandas as pd

_HOUR_S = 3600.0
_JOULES, _COSTS = ("joules", "waiting_joules", "unused_joules"), ("cost", "waiting_cost", "unused_cost")
_COLUMNS = ("machine", "seconds", "busy_s", "waiting_s", "unused_s", *_JOULES, *_COSTS, "spot_cost")
#: numbers of a cluster of which one must be given for joules, and for costs
_POWERS = ("idle_watts", "busy_watts", "server_idle_watts", "server_busy_watts", "joules_per_byte")
_PRICES = ("price_per_hour", "server_price_per_hour")


def energy(log: EventLog, meta: Mapping[str, Any]) -> pd.DataFrame:
    """Return the energy and the cost of each machine of a run.

    Parameters
    ----------
    log : EventLog
    meta : mapping
        `costs` (the cluster's, `clusters.Costs`, with `servers` and their `service` times). Used if there:
        `time_s`, `unanswered`, `server_usage`.

    Returns
    -------
    DataFrame
        `machine` ("worker 0", "server 0"), `seconds` in which it was there, `busy_s`, `waiting_s` and
        `unused_s` of these, `joules` and `cost`, and for both the parts of waiting and of unused work.
        `spot_cost` has workers at their spot price; NaN without one. Without `costs` there is no row.

    Notes
    -----
    A worker is busy while it computes, on work that was cancelled, too. Unused is the work on gradients that
    were never used (see `contributions`), with the bytes of their pushes. A server is busy for its service
    times; live, for the CPU time of its process, which only the first server reports: others count as idle.
    """
    costs = meta.get("costs")
    if not costs:
        return table([], columns=_COLUMNS)
    workers, servers = _workers(log, meta, costs), _servers(log.rows(), meta, costs)
    return table({name: [*workers[name], *servers[name]] for name in _COLUMNS})


def energy_totals(log: EventLog, meta: Mapping[str, Any]) -> dict[str, float]:
    """Return the sums of `energy` over all machines as plain data; empty without costs.

    Joules are left out if the cluster has no watts, and costs without prices. `measured_joules` is there if
    machines of a live run have counted the energy of their processors (`meta["measured_joules"]`, by host).
    """
    if not meta.get("costs"):  # as in most runs
        return {}
    found = energy(log, meta)
    given = [
        *(_JOULES if _is_given(meta["costs"], _POWERS) else ()),
        *(_COSTS if _is_given(meta["costs"], _PRICES) else ()),
        *(("spot_cost",) if meta["costs"].get("spot_price_per_hour") is not None else ()),
    ]
    totals = {name: float(found[name].sum()) for name in given}
    measured = meta.get("measured_joules")
    return totals | ({"measured_joules": sum(measured.values())} if measured else {})


def _is_given(costs: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    return any(np.any(costs[name]) for name in names)


def _workers(log: EventLog, meta: Mapping[str, Any], costs: Mapping[str, Any]) -> dict[str, Any]:
    rows = log.rows()
    ids = workers_of(rows)
    totals = SpanTotals()
    totals.read(log, rows)
    spent = totals.phases_s()

    def seconds(*phases: str) -> Doubles:
        return np.array([sum(spent.get((worker, phase), 0.0) for phase in phases) for worker in ids])

    def each(name: str) -> Doubles:
        return np.array([costs[name][worker] for worker in ids], dtype=float)

    busy, waiting = seconds("compute", "cancelled"), seconds("wait")
    whole = busy + waiting + seconds("pull", "send")
    unused_rows = _unused_pushes(rows)
    unused = seconds("cancelled") + _by_worker(unused_rows, "compute_s")[ids]
    moved = _by_worker(
        pick(sent(rows, bool(meta.get("unanswered"))), Kind.PUSH, Kind.MIX, Kind.RELEASE), "bytes"
    )
    idle_watts, busy_watts, of_a_byte = each("idle_watts"), each("busy_watts"), costs["joules_per_byte"]
    price = each("price_per_hour") / _HOUR_S
    spot = costs.get("spot_price_per_hour")
    return {
        "machine": [f"worker {worker}" for worker in ids],
        **{"seconds": whole, "busy_s": busy, "waiting_s": waiting, "unused_s": unused},
        "joules": busy_watts * busy + idle_watts * (whole - busy) + of_a_byte * moved[ids],
        "waiting_joules": idle_watts * waiting,
        "unused_joules": busy_watts * unused + of_a_byte * _by_worker(unused_rows, "bytes")[ids],
        **{"cost": price * whole, "waiting_cost": price * waiting, "unused_cost": price * unused},
        "spot_cost": whole * (np.nan if spot is None else each("spot_price_per_hour") / _HOUR_S),
    }


def _unused_pushes(rows: Rows) -> Rows:
    """Return the rows of pushes that were discarded, applied with weight 0, or still buffered at the end."""
    push, apply = pick(rows, Kind.PUSH), pick(rows, Kind.APPLY)
    return push[~np.isin(push["id"], apply["id"][is_used(apply)])]


def _by_worker(rows: Rows, column: str) -> Doubles:
    """Return the sum of a column by worker."""
    return np.bincount(rows["worker"], weights=rows[column], minlength=1 << 16).astype(float)


def _servers(rows: Rows, meta: Mapping[str, Any], costs: Mapping[str, Any]) -> dict[str, Any]:
    count = costs.get("servers", 0)
    whole = max(end_of(rows), meta.get("time_s", 0.0))
    busy = np.minimum(_busy_servers(rows, meta, costs), whole)
    idle_watts, busy_watts = costs["server_idle_watts"], costs["server_busy_watts"]
    cost = np.full(count, costs["server_price_per_hour"] / _HOUR_S * whole)
    nothing = np.zeros(count)
    return {
        **dict.fromkeys(_COLUMNS, nothing),
        "machine": [f"server {server}" for server in range(count)],
        "seconds": np.full(count, whole),
        "busy_s": busy,
        "joules": busy_watts * busy + idle_watts * (whole - busy),
        **{"cost": cost, "spot_cost": cost},
    }


def _busy_servers(rows: Rows, meta: Mapping[str, Any], costs: Mapping[str, Any]) -> Doubles:
    """Return the seconds that each server was busy."""
    found = np.zeros(costs.get("servers", 0))
    if not len(found):
        return found
    for used in meta.get("server_usage", ()):
        if used["server"] < len(found):
            found[used["server"]] = used["cpu_s"]
    if service := costs.get("service"):
        rows = sent(rows, bool(meta.get("unanswered")))
        vectors = pick(rows, Kind.PUSH, Kind.RELEASE)
        vectors = vectors[vectors["bytes"] > 0]
        found += service["message_s"] * len(vectors)
        found += service["byte_s"] * float(vectors["bytes"].sum(dtype=np.int64)) / len(found)
        found[0] += service["decision_s"] * len(pick(rows, Kind.PUSH, Kind.VOTE, Kind.REPORT))
    return found
