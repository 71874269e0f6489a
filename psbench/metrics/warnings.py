"""What a reader of a run should be warned of, derived from its log and its record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

import psbench.strategies.switching  # noqa: F401  (registers the rules)
from psbench.core.events import Evaluated
from psbench.core.log import EventLog, Kind
from psbench.core.part import make_part
from psbench.core.parts import Switching
from psbench.metrics.rows import pick, trained


def never_switched(log: EventLog, meta: Mapping[str, Any]) -> list[str]:
    """Return why a rule that was to change the strategy never did, in its own terms.

    Parameters
    ----------
    log : EventLog
    meta : mapping
        `dataset_size`; and, if there, `rule` (the switch rule as plain data) and `planned_epochs`.

    Returns
    -------
    list of str
        One warning; none if the run switched, has no rule, or its rule was not to switch.
    """
    if not meta.get("rule") or Kind.HANDOVER in log.rows()["kind"]:
        return []
    rule = make_part("switching", meta["rule"])
    assert isinstance(rule, Switching)
    samples = trained(log.rows())["samples"].sum(dtype=np.int64)
    why = rule.why_not(_shown(log), float(samples) / meta["dataset_size"], meta.get("planned_epochs"))
    return [f"never switched: {why}"] if why else []


def _shown(log: EventLog) -> list[Evaluated]:
    """Return the evaluations that rules are shown: not the one before the first step or after the last."""
    rows = pick(log.rows(), Kind.EVALUATED)
    rows = rows[rows["id"] > 0]
    facts = zip(rows["id"].tolist(), rows["version"].tolist(), rows["text"].tolist(), strict=True)
    return [Evaluated(number, version, json.loads(log.text(text))) for number, version, text in facts]
