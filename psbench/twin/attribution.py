"""Waiting times between workers at the synchronisation points of a trace, and significant stragglers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from psbench.arrays import Booleans, Doubles
from psbench.errors import DataError
from psbench.percents import percent
from psbench.seeds import Streams

#: draws of the test, the false alarms that it allows, and the share of all time below which nothing is said
_DRAWS, _ALPHA, _LEAST = 400, 0.01, 0.005
#: of the longest step, below which a difference is that of floating-point sums
_ROUNDING = 1e-9
#: largest correlation of a step with the one before it
_LONGEST = 0.995
#: share of the time from which messages are named as its cause
_MOSTLY = 0.5
#: steps that a trace needs for a test
_FEWEST = 8


@dataclass(frozen=True)
class Meetings:
    """Steps that all workers end together, in a collective or at a barrier.

    Attributes
    ----------
    workers : list of str
    begin, end : float64 arrays, (workers, steps), seconds
        When a worker began a step, and when it was ready to meet the others.
    messages : float64 array, (workers, steps), seconds, or None
        The part of a step in which its messages travelled; None where a trace does not tell.
    """

    workers: list[str]
    begin: Doubles
    end: Doubles
    messages: Doubles | None = None

    def __post_init__(self) -> None:
        if len(self.workers) < 2:
            raise DataError("the trace has one worker: it waits for no other")
        if self.end.shape[1] < _FEWEST:
            raise DataError(f"the trace has {self.end.shape[1]} whole steps; {_FEWEST} are needed")
        if not (np.isfinite(self.begin).all() and np.isfinite(self.end).all()):
            raise DataError("the trace has times that are not numbers")
        if (wrong := self.end < self.begin).any():
            worker, step = np.argwhere(wrong)[0]
            raise DataError(f"step {step} of worker {self.workers[worker]} ends before it begins")


class Culprit(NamedTuple):
    """A worker that other workers wait for.

    Attributes
    ----------
    lost_s : float, seconds
        By which all would have been done earlier, had it been as early as the next one.
    share : float
        Of the trace's time.
    last : float
        Share of the steps in which it was the last.
    p_value : float
        Probability of as much by chance, if workers were alike.
    why : str
    """

    worker: str
    lost_s: float
    share: float
    last: float
    p_value: float
    why: str


@dataclass(frozen=True)
class Blame:
    """Result of the analysis of a trace.

    Attributes
    ----------
    workers : list of str
    waits_s : float64 array, (workers, workers), seconds
        For how long the first waited for the second.
    culprits : list of Culprit, the worst first
    links : str
        That messages take most of the time, and whose; empty if they do not.
    """

    workers: list[str]
    waits_s: Doubles
    culprits: list[Culprit]
    links: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the attribution as plain data."""
        culprits = [each._asdict() for each in self.culprits]
        found = {"workers": self.workers, "waits_s": self.waits_s.tolist(), "culprits": culprits}
        return found | {"links": self.links}

    def __str__(self) -> str:
        """Return the attribution as text."""
        lines = [
            f"{each.worker} makes the others wait: {each.lost_s:.3g} s "
            f"({percent(each.share, 1)} of the time), "
            f"the last in {percent(each.last)} of the steps (p = {each.p_value:.2g}); {each.why}"
            for each in self.culprits
        ] or ["no worker makes the others wait significantly"]
        lines += [self.links] if self.links else []
        for i, worker in enumerate(self.workers):
            waited = self.waits_s[i].sum()
            whom = int(self.waits_s[i].argmax())
            most = f", most of it for {self.workers[whom]} ({self.waits_s[i, whom]:.3g} s)" if waited else ""
            lines.append(f"{worker} waited {waited:.3g} s{most}")
        return "\n".join(lines)


def blame(meetings: Meetings) -> Blame:
    """Attribute waiting times to workers, and test for stragglers one after another.

    A step is lost to its last worker by as long as it is later than the last but one. Were workers alike, a
    step could as well have been lost to any of them: the largest sum is compared with those of steps that
    are dealt to workers at random, in stretches as long as a worker's times depend on each other. A worker
    that is found is left out, and the others are tried again.
    """
    end = meetings.end
    last = end.argmax(axis=0)
    waits = np.zeros((len(end), len(end)))
    for worker in range(len(end)):
        waits[:, worker] = (end[:, last == worker].max(axis=0) - end[:, last == worker]).sum(axis=1)
    culprits, left = list[Culprit](), list(range(len(end)))
    while len(left) > 1:
        found = _worst(meetings, left)
        if found is None:
            break
        worker, culprit = found
        culprits.append(culprit)
        left.remove(worker)
    return Blame(meetings.workers, waits, culprits, _links(meetings))


def _worst(meetings: Meetings, left: list[int]) -> tuple[int, Culprit] | None:
    end, begin = meetings.end[left], meetings.begin[left]
    steps = end.shape[1]
    ordered = np.sort(end, axis=0)
    gaps, last = ordered[-1] - ordered[-2], end.argmax(axis=0)
    lost = np.bincount(last, weights=gaps, minlength=len(left))
    worst = int(lost.argmax())
    whole = float(end.max() - begin.min())
    if lost[worst] < _LEAST * whole:
        return None
    # a culprit's own spells are what is looked for, and say nothing of how times depend on each other
    stretch = _stretch(np.delete(end - begin, worst, axis=0))
    parts = np.add.reduceat(gaps, np.arange(0, steps, stretch))
    rng = Streams(0).generator("blame")
    dealt = rng.integers(len(left), size=(_DRAWS, len(parts)))
    largest = np.max([(parts * (dealt == worker)).sum(axis=1) for worker in range(len(left))], axis=0)
    p_value = float((1 + (largest >= lost[worst]).sum()) / (1 + _DRAWS))
    if p_value > _ALPHA:
        return None
    name, own = meetings.workers[left[worst]], (last == worst)
    messages = None if meetings.messages is None else meetings.messages[left]
    why = _why(begin, end, messages, worst, own)
    return left[worst], Culprit(
        name, float(lost[worst]), float(lost[worst]) / whole, float(own.mean()), p_value, why
    )


def _stretch(took: Doubles) -> int:
    """Return the correlation length of a worker's times in steps: (1 + rho) / (1 - rho), for AR(1)."""
    around = took - np.median(took, axis=1, keepdims=True)
    # what differs by no more than sums of times are rounded is equal, and depends on nothing
    around[np.abs(around) < _ROUNDING * np.abs(took).max()] = 0.0
    size = float((around**2).sum())
    rho = float((around[:, 1:] * around[:, :-1]).sum()) / size if size else 0.0
    # about a level that is estimated from the same steps, rho is found too small by this much
    rho += (1 + 3 * rho) / took.shape[1]
    rho = min(_LONGEST, max(0.0, rho))
    return max(1, math.ceil((1 + rho) / (1 - rho)) - 1)


def _why(begin: Doubles, end: Doubles, messages: Doubles | None, worker: int, own: Booleans) -> str:
    """Return the reason of a straggler: its link, longer steps, later starts, or both at different times."""
    others = np.arange(len(end)) != worker
    took = (end - begin)[:, own]
    longer = np.median(took[worker]) / max(1e-12, float(np.median(took[others])))
    more = float(np.median(took[worker]) - np.median(took[others]))
    later = float(np.median(begin[worker, own] - np.median(begin[others][:, own], axis=0)))
    if later > more and later > 0:
        return f"it begins {later:.3g} s later than the others"
    if messages is not None:
        mine, theirs = (float(np.median(messages[which][..., own])) for which in (worker, others))
        if mine - theirs > more / 2:
            share = percent(mine / float(np.median(took[worker])))
            return (
                f"its link: messages take {mine:.3g} s ({share}) of its step, {theirs:.3g} s of the others'"
            )
    rest = " of those" if own.mean() < 0.9 else ""
    return f"its steps take {longer:.3g} times the others'" + (f" in {int(own.sum())}{rest}" if rest else "")


def _links(meetings: Meetings) -> str:
    """Return that messages take most of the time of all workers, if they do."""
    begin, end = meetings.begin, meetings.end
    # what lies between two steps belongs to no worker: the collective operation itself
    between = float(np.maximum(0.0, begin[:, 1:].min(axis=0) - end[:, :-1].max(axis=0)).sum())
    share = between / max(1e-12, float(end.max() - begin.min()))
    if share >= _MOSTLY:
        return f"collective operations take {percent(share)} of the time: the link that all share"
    if meetings.messages is None:
        return ""
    shares = meetings.messages.sum(axis=1) / np.maximum(1e-12, (end - begin).sum(axis=1))
    if shares.min() < _MOSTLY:
        return ""
    return f"messages take {percent(float(shares.mean()))} of the workers' steps: the links, not the workers"
