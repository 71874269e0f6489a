"""A push on its arrival: the statistics that parts read, and why it may end the run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from psbench.core.events import COLLECTIVE, Push


def with_stats(push: Push, reads: Sequence[str]) -> Push:
    """Put the statistics that parts read into `push.stats`, where the log keeps every digit of them.

    A worker with a loop has sent them, except the time its push took.
    """
    sent = push.stats or {}
    ended = {COLLECTIVE: sent[COLLECTIVE]} if COLLECTIVE in sent else {}
    push.stats = {name: sent[name] if name in sent else getattr(push, name) for name in reads} | ended
    return push


def why_diverged(push: Push, now: float) -> str:
    """Return the reason of a run that ends with a push whose loss or payload is NaN or infinite."""
    where = f"push {push.id} of worker {push.worker}, computed on version {push.base_version} at {now:.3f} s,"
    if math.isfinite(push.loss):
        return f"{where} has entries that are no numbers, or too large for the codec: lower the learning rate"
    return f"{where} has loss {push.loss}: lower the learning rate"
