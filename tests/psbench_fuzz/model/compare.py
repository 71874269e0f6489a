"""Comparison of the engine's answers and view with the model's."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import repeat
from operator import attrgetter
from typing import Any

from psbench.core import Action, ClusterView, EventLog, Kind, Status
from psbench_fuzz.model.record import Row
from psbench_fuzz.model.view import COUNTED, LEFT, PRESENT, ModelCluster

#: the columns of a row after its kind and worker, but for the text
_COLUMNS = ("id", "version", "samples", "steps", "bytes", "compute_s", "send_s", "loss")
_counted, _present = attrgetter(*COUNTED), attrgetter(*PRESENT)


def unequal_answers(expected: Sequence[Action], found: Sequence[Action], tolerance: float = 1e-9) -> str:
    """Return the first unexpected action; empty if there is none."""
    for wanted, seen in zip(expected, found, strict=False):
        if not equal(wanted, seen, tolerance):
            return f"{seen}, but by the rules it is {wanted}"
    if len(found) > len(expected):
        return f"{found[len(expected)]}, which by the rules is not due"
    return f"no {expected[len(found)]}, which by the rules is due" if len(found) < len(expected) else ""


def unequal_rows(expected: Sequence[Row], log: EventLog, start: int, tolerance: float = 1e-9) -> str:
    """Return the first unexpected row of the log from `start`; empty if there is none."""
    found = log.tuples(start)
    for wanted, (time_s, kind, worker, *columns, number) in zip(expected, found, strict=False):
        text = log.text(number)
        same = kind == wanted.kind and time_s == wanted.time_s and worker == wanted.worker
        same = same and _same_text(wanted.text, text, tolerance)
        if same:
            own = [wanted.columns.get(name, 0) for name in _COLUMNS]
            same = own == columns or all(map(_nearly, own, columns, repeat(tolerance)))
        if not same:
            seen = Row(Kind(kind), time_s, worker, text, dict(zip(_COLUMNS, columns, strict=True)))
            return f"the log has {seen}, but by the rules it is {wanted}"
    if len(found) != len(expected):
        return f"the log has {len(found)} rows of this event, but by the rules it is {len(expected)}"
    return ""


#: made once: `json.dumps` makes an encoder for each call
_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _same_text(wanted: Any, text: str, tolerance: float) -> bool:
    if isinstance(wanted, str):
        return text == wanted
    expected = _json(wanted)
    return text == expected or equal(json.loads(text), json.loads(expected), tolerance)


def _nearly(one: float, other: float, tolerance: float) -> bool:
    """Return whether two columns are equal as 32-bit floats."""
    return one == other or _close(one, other, max(1e-6, tolerance))


def _close(one: float, other: float, tolerance: float) -> bool:
    both_nan = one != one and other != other
    near_zero = tolerance if tolerance > 1e-6 else 1e-12
    return both_nan or math.isclose(one, other, rel_tol=tolerance, abs_tol=near_zero)


def equal(one: Any, other: Any, tolerance: float = 1e-9) -> bool:
    """Return whether two values are equal up to rounding."""
    if one is other or one == other:
        return True
    if isinstance(one, float) or isinstance(other, float):
        return _close(one, other, tolerance)
    if is_dataclass(one):
        if type(one) is not type(other):
            return False
        return all(equal(getattr(one, f.name), getattr(other, f.name), tolerance) for f in fields(one))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key], tolerance) for key in one)
    if isinstance(one, (list, tuple)):
        if type(one) is not type(other) or len(one) != len(other):
            return False
        return all(equal(*pair, tolerance) for pair in zip(one, other, strict=True))
    return False


def unequal_views(cluster: ModelCluster, view: ClusterView) -> str:
    """Return the first difference from the engine's view; empty if there is none."""
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
            if not equal(shown, own):
                return f"worker {worker}: view.{name} is {shown!r}, but by the rules it is {own!r}"
    if view.clock_counts != cluster.clock_counts:
        return f"view.clock_counts is {view.clock_counts}, but counting gives {cluster.clock_counts}"
    same = view.ranges is cluster.ranges or list(map(list, view.ranges)) == list(map(list, cluster.ranges))
    return "" if same else "view.ranges is not what was assigned last"
