"""Explains why a run is worse than another: its schedule is trained again with causes of the other."""

from __future__ import annotations

from psbench.causes.answer import Answer
from psbench.causes.asking import why
from psbench.causes.cause import Amount, Cause, Codec, Momentum, Rate, Samples, Staleness
from psbench.causes.checking import check_cause
from psbench.causes.counterfactual import recompute
from psbench.causes.schedule import CannotAsk, Schedule

__all__ = [
    "Amount",
    "Answer",
    "CannotAsk",
    "Cause",
    "Codec",
    "Momentum",
    "Rate",
    "Samples",
    "Schedule",
    "Staleness",
    "check_cause",
    "recompute",
    "why",
]
