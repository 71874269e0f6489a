"""Warnings for readers of a run, derived from its log and its record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import psbench.strategies.switching  # noqa: F401  (registers the rules)
from psbench.core.events import Evaluated
from psbench.core.log import EventLog, Kind
from psbench.core.part import make_part
from psbench.core.parts import Switching
from psbench.metrics.rows import pick, positions, trained


def never_switched(log: EventLog, meta: Mapping[str, Any]) -> list[str]:
    """Return the reason why a switch rule never switched, in its own terms.

    Parameters
    ----------
    log : EventLog
    meta : mapping
        `dataset_size`; and, if there, `rules` (the switch rules as plain data, in order) and
        `planned_epochs`.

    Returns
    -------
    list of str
        One warning, of the first rule whose composition, and none after it, was ever in force; none if there
        is no such rule, or if it was not to switch.
    """
    rows = log.rows()
    changes = pick(rows, Kind.HANDOVER, Kind.SWITCH_REQUESTED)  # what is asked for may be in force already
    reached = max((0, *changes["id"].tolist()))
    rules = meta.get("rules") or ()
    if reached >= len(rules):
        return []
    rule = make_part("switching", rules[reached])
    assert isinstance(rule, Switching)
    samples = trained(rows)["samples"].sum(dtype=np.int64)
    why = rule.why_not(_shown(log), float(samples) / meta["dataset_size"], meta.get("planned_epochs"))
    never = (
        "never switched" if not reached else f"never switched to strategy {reached + 2} of {len(rules) + 1}"
    )
    return [f"{never}: {why}"] if why else []


def whole_rates(log: EventLog, meta: Mapping[str, Any]) -> list[str]:
    """Return the compositions with one push per version, each at the full learning rate.

    Parameters
    ----------
    log : EventLog
    meta : mapping
        If there: `whole_rate`, for each composition whether its pushes are gradients whose rate nothing
        divides; and with it `compositions`, their names.

    Returns
    -------
    list of str
        A warning for each; none where a single worker pushed.
    """
    whole, names = meta.get("whole_rate", ()), meta.get("compositions", ())
    if not any(whole):
        return []
    rows = log.rows()
    handed_over = positions(rows, Kind.HANDOVER)
    in_force = [0, *rows["id"][handed_over].tolist()]
    pushers: dict[int, set[int]] = {}
    several = set()
    for index, part in zip(in_force, np.split(rows, handed_over), strict=True):
        applied = pick(part, Kind.APPLY)
        pushers.setdefault(index, set()).update(applied["worker"].tolist())
        if (np.diff(applied["version"]) == 0).any():
            several.add(index)
    return [
        f"every update of {names[index]} has one push, at the full learning rate: the pushes of n workers "
        "move the model n times as far as one update of a barrier; use lr_scaling: by_share"
        for index, workers in sorted(pushers.items())
        if whole[index] and len(workers) > 1 and index not in several
    ]


def resumed_midway(log: EventLog) -> list[str]:
    """Return a warning for each resume that was not bit for bit, as workers were in the middle of steps."""
    rows = log.rows()
    found = []
    for at in positions(rows, Kind.RESUME).tolist():
        again = json.loads(log.text(rows["text"][at])).get("again", [])
        following = rows[at + 1 :]
        others = np.flatnonzero(following["kind"] != Kind.CANCEL)
        void = following["worker"][: others[0] if len(others) else len(following)].tolist()
        said = [_of_workers(again, "repeated their steps since their last message")] if again else []
        said += [_of_workers(void, "restarted from the common model, without their own")] if void else []
        if said:
            when = f"resumed at {rows['time_s'][at]:.4g} s in the middle of steps"
            found.append(f"{when}, so it is not bit for bit equal to an uninterrupted run: {'; '.join(said)}")
    return found


def _of_workers(numbers: Sequence[int], what: str) -> str:
    names = ", ".join(map(str, numbers)) if len(numbers) < _MANY else f"{len(numbers)} of them"
    return f"workers ({names}) {what}"


#: from so many on, workers are counted and not named
_MANY = 9


def _shown(log: EventLog) -> list[Evaluated]:
    """Return the evaluations that rules receive: not those before the first step or after the last."""
    rows = pick(log.rows(), Kind.EVALUATED)
    rows = rows[rows["id"] > 0]
    facts = zip(rows["id"].tolist(), rows["version"].tolist(), rows["text"].tolist(), strict=True)
    return [Evaluated(number, version, json.loads(log.text(text))) for number, version, text in facts]
