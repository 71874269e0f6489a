"""Compares what the engine answers and shows with what the model expects."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

from psbench.core.actions import Action
from psbench.core.log import EventLog, Kind
from psbench.core.view import ClusterView, Status
from psbench.testing.model.cluster import COUNTED, LEFT, PRESENT, Cluster
from psbench.testing.model.record import Row

#: the columns of a row after its kind and worker, but for the text
_COLUMNS = ("id", "version", "samples", "steps", "bytes", "compute_s", "send_s", "loss")
_counted, _present = attrgetter(*COUNTED), attrgetter(*PRESENT)


def unequal_answers(expected: Sequence[Action], found: Sequence[Action]) -> str:
    """Return the first action that is not the one expected; empty if there is none."""
    for wanted, seen in zip(expected, found, strict=False):
        if not equal(wanted, seen):
            return f"{seen}, but by the rules it is {wanted}"
    if len(found) > len(expected):
        return f"{found[len(expected)]}, which by the rules is not due"
    return f"no {expected[len(found)]}, which by the rules is due" if len(found) < len(expected) else ""


def unequal_rows(expected: Sequence[Row], log: EventLog, start: int) -> str:
    """Return the first row of the log, from `start`, that is not the one expected; empty if there is none."""
    found = log.tuples(start)
    for wanted, (time_s, kind, worker, *columns, number) in zip(expected, found, strict=False):
        text = log.text(number)
        seen = Row(Kind(kind), time_s, worker, text, dict(zip(_COLUMNS, columns, strict=True)))
        same = (seen.kind, seen.time_s, seen.worker) == (wanted.kind, wanted.time_s, wanted.worker)
        same = same and text == (wanted.text if isinstance(wanted.text, str) else _json(wanted.text))
        own = [wanted.columns.get(name, 0) for name in _COLUMNS]
        if not same or not all(map(_nearly, own, columns)):
            return f"the log has {seen}, but by the rules it is {wanted}"
    if len(found) != len(expected):
        return f"the log has {len(found)} rows of this event, but by the rules it is {len(expected)}"
    return ""


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _nearly(one: float, other: float) -> bool:
    """Return whether two columns are equal as 32-bit floats."""
    return one == other or (one != one and other != other) or math.isclose(one, other, rel_tol=1e-6)


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal, floats but for rounding."""
    if one is other or one == other:
        return True
    if isinstance(one, float) or isinstance(other, float):
        both_nan = one != one and other != other
        return both_nan or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    if is_dataclass(one):
        if type(one) is not type(other):
            return False
        return all(equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return False


def unequal_views(cluster: Cluster, view: ClusterView) -> str:
    """Return the first thing that the engine's view shows otherwise; empty if there is none."""
    for name, shown, own in zip(COUNTED, _counted(view), _counted(cluster), strict=True):
        if shown != own:
            return f"view.{name} is {shown}, but counting gives {own}"
    if list(view.pending) != list(cluster.pending):
        return f"view.pending is {list(view.pending)}, but pushes {list(cluster.pending)} are pending"
    if view.workers.keys() != cluster.workers.keys():
        return f"view.workers are {list(view.workers)}, but {list(cluster.workers)} have come"
    for worker, member in cluster.workers.items():
        if _present(member) == _present(view.workers[worker]):
            continue
        for name in PRESENT if member.status is not Status.GONE else LEFT:
            shown, own = getattr(view.workers[worker], name), getattr(member, name)
            if shown != own and not (shown != shown and own != own):
                return f"worker {worker}: view.{name} is {shown!r}, but by the rules it is {own!r}"
    if view.clock_counts != cluster.clock_counts:
        return f"view.clock_counts is {view.clock_counts}, but counting gives {cluster.clock_counts}"
    same = view.ranges is cluster.ranges or list(map(list, view.ranges)) == list(map(list, cluster.ranges))
    return "" if same else "view.ranges is not what was assigned last"
