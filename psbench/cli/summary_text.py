"""A run's summary as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from psbench.percents import spaced


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return the summary as text, one line per measurement; omit missing ones."""
    lines = [(label, text) for label, text in _lines(summary) if text]
    width = max(len(label) for label, _ in lines)
    return spaced("\n".join(f"{label:<{width}}  {text}" for label, text in lines))


def _lines(s: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    pushes, final, staleness = s["pushes"], s["final"], s["staleness"]
    yield "run", f"{s['name']}, seed {s['seed']}, {s['backend']}, {s['workers']} workers"
    yield "ended", f"{s['status']}: {s['reason']}"
    yield "time", f"{s['time_s']:.4g} s" + (" (virtual)" if s["backend"] == "simulated" else "")
    yield "epochs", f"{s['epochs']:.4g}, {s['updates']} updates, {s['steps']} steps"
    if s.get("mini_batches") is not None:
        yield "mini-batches", f"{s['mini_batches']:.10g} of {s['global_batch']} samples"
    yield "pushes", ", ".join(f"{count} {what}" for what, count in pushes.items() if count) or "none"
    yield "validation", _joined(loss=(final["val_loss"], ".4g"), accuracy=(final["val_accuracy"], ".1%"))
    yield "training", _joined(loss=(final["train_loss"], ".4g"), accuracy=(final["train_accuracy"], ".1%"))
    yield "to target", "" if s["time_to_target_s"] is None else f"{s['time_to_target_s']:.4g} s"
    yield "staleness", _joined(mean=(staleness["mean"], ".3g"), largest=(staleness["max"], "d"))
    yield "waiting", _listed(s["idle_fraction"], ".0%")
    yield from _used(s.get("usage", ()))
    lost = s.get("lost_updates")
    yield "overwritten", "" if lost is None else f"{lost['lost']:.4g} of {lost['written']} updates lost"
    own = s.get("independence")
    yield "independence", "" if own is None else f"{own:.3g} iterations per request for the model"
    data = f", {s['bytes']['data'] / 1e6:.4g} MB of data" if "data" in s["bytes"] else ""
    yield "sent", f"{s['bytes']['up'] / 1e6:.4g} MB up, {s['bytes']['down'] / 1e6:.4g} MB down{data}"
    yield from _spent(s.get("energy", {}))
    for balance in s.get("servers", ()):
        yield "servers", _held(balance)
    for move in s.get("reassignments", ()):
        yield "re-assigned", _moved(move)
    for change in s["switches"]:
        where = f"at epoch {change['epoch']:.3g}, {change['time_s']:.4g} s: {change['reason']}"
        yield "switch", f"{change['from']} to {change['to']} {where}"
    yield "learning rate", s["lr_convention"] or ""
    yield "digest", s["digest"][:16]
    for warning in s["warnings"]:
        yield "warning", warning


def _joined(**values: tuple[float | None, str]) -> str:
    return ", ".join(f"{name} {value:{form}}" for name, (value, form) in values.items() if value is not None)


def _used(usage: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the times of each worker's step; reading only if there is any.

    >>> dict(_used([{"read_ms": 0.25, "compute_ms": 2.5, "cpu": 0.91}]))
    {'reading': '0.25 ms a step', 'computing': '2.5 ms a step', 'CPU': '91%'}
    """
    for label, name, form, unit in (
        ("reading", "read_ms", ".3g", " ms a step"),
        ("computing", "compute_ms", ".3g", " ms a step"),
        ("CPU", "cpu", ".0%", ""),
    ):
        values = [worker[name] for worker in usage if worker[name] is not None]
        yield label, f"{_listed(values, form)}{unit}" if any(values) else ""


def _spent(found: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield the energy and the cost of a run.

    >>> dict(_spent({"joules": 1500.0, "waiting_joules": 300.0, "unused_joules": 0.0, "spot_cost": 0.25}))
    {'energy': '1500 J: 300 J of waiting, 0 J of unused work', 'cost': '0.25 at spot prices'}
    """
    if "joules" in found:
        whole, waiting, unused = (found[name] for name in ("joules", "waiting_joules", "unused_joules"))
        yield "energy", f"{whole:.4g} J: {waiting:.4g} J of waiting, {unused:.4g} J of unused work"
    if "measured_joules" in found:
        yield "measured", f"{found['measured_joules']:.4g} J by the processors' counters"
    spot = [f"{found['spot_cost']:.4g} at spot prices"] if "spot_cost" in found else []
    if "cost" in found:
        whole, waiting, unused = (found[name] for name in ("cost", "waiting_cost", "unused_cost"))
        spot = [f"{whole:.4g}: {waiting:.4g} of waiting, {unused:.4g} of unused work", *spot]
    yield "cost", "; ".join(spot)


def _held(balance: Mapping[str, Any]) -> str:
    """Return the servers' contents as text.

    >>> _held({"entries": [300, 100], "imbalance": {"entries": 1.5}})
    '300, 100 entries; the fullest has 1.5 times its share'
    """
    shown = _listed(balance["entries"])
    return f"{shown} entries; the fullest has {balance['imbalance']['entries']:.3g} times its share"


def _moved(move: Mapping[str, Any]) -> str:
    """Return a move between servers as text, with its effect on the load.

    >>> imbalance = {"before": 1.98, "after": 1.01}
    >>> _moved({"time_s": 2.5, "moved": 40, "bytes": 320, "entries": [60, 40], "imbalance": imbalance})
    '40 entries (0.32 kB) at 2.5 s, now 60, 40; the busiest server worked 1.98 times the mean, then 1.01'
    """
    before, after = move["imbalance"]["before"], move["imbalance"]["after"]
    worked = "" if before is None else f"; the busiest server worked {before:.3g} times the mean"
    then = "" if after is None else f", then {after:.3g}"
    moved = f"{move['moved']} entries ({move['bytes'] / 1e3:.4g} kB) at {move['time_s']:.4g} s"
    return f"{moved}, now {_listed(move['entries'])}{worked}{then}"


def _listed(values: Sequence[float], form: str = "") -> str:
    """Return the first twelve values, and the number of the others."""
    more = f" and {len(values) - 12} more" if len(values) > 12 else ""
    return ", ".join(f"{value:{form}}" for value in values[:12]) + more
