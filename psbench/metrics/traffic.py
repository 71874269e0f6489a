"""Bytes and messages, and the balance of all pushes."""

from __future__ import annotations

import numpy as np

from psbench.core.log import EventLog, Kind
from psbench.metrics.rows import Rows, pick, sent, with_membership

_MESSAGES = {
    "push": Kind.PUSH,
    "vote": Kind.VOTE,
    "report": Kind.REPORT,
    "release": Kind.RELEASE,
    "tell": Kind.TELL,
    "void": Kind.VOID,
}


def total_bytes(log: EventLog, unanswered: bool = False) -> dict[str, int]:
    """Return the payload bytes sent `up` (with pushes) and `down` (with releases).

    Without a server all are up: each model that a worker received was sent by another.

    Parameters
    ----------
    log : EventLog
    unanswered : bool
        Whether the run ended in the midst of its last answer, as `meta` says: the log has the whole decision,
        but the releases after the last update, or after a push that diverged, were not sent.
    """
    return bytes_of(sent(log.rows(), unanswered))


def bytes_of(rows: Rows) -> dict[str, int]:
    """Return the payload bytes of rows of a log, `up` and `down`."""
    return {
        "up": int(pick(rows, Kind.PUSH, Kind.MIX)["bytes"].sum(dtype=np.int64)),
        "down": int(pick(rows, Kind.RELEASE)["bytes"].sum(dtype=np.int64)),
    }


def messages(log: EventLog, unanswered: bool = False) -> dict[str, int]:
    """Return the number of messages by kind; `void` messages came too late to be used.

    See `total_bytes` for `unanswered`. A ring's inner messages are not recorded: under All-Reduce a push and
    a release stand for one ring.
    """
    counts = np.bincount(sent(log.rows(), unanswered)["kind"], minlength=len(Kind))
    return {name: int(counts[kind]) for name, kind in _MESSAGES.items()}


def conservation(log: EventLog) -> dict[str, int]:
    """Return the numbers of committed, discarded and buffered pushes, and of cancelled steps.

    Every push is one of the first three; a step lost with its worker counts as cancelled.
    """
    rows = log.rows()
    counts = np.bincount(rows["kind"], minlength=len(Kind))
    pushed, committed, discarded = (int(counts[k]) for k in (Kind.PUSH, Kind.APPLY, Kind.DISCARD))
    return {
        "committed": committed,
        "discarded": discarded,
        "buffered": pushed - committed - discarded,
        "cancelled": int(counts[Kind.CANCEL]) + _lost_with_worker(log),
    }


def _lost_with_worker(log: EventLog) -> int:
    """Return the number of workers that left during a step."""
    kinds = (Kind.RELEASE, Kind.PUSH, Kind.VOTE, Kind.CANCEL, Kind.LEAVE, Kind.JOIN)
    rows = pick(with_membership(log.rows()), *kinds)
    lost = 0
    for place in np.flatnonzero(rows["kind"] == Kind.LEAVE).tolist():
        own = np.flatnonzero(rows["worker"][:place] == rows["worker"][place])
        lost += bool(len(own)) and bool(rows["kind"][own[-1]] == Kind.RELEASE)
    return lost
