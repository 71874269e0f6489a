"""A fitted cluster: numbers with intervals, and the names of unidentified quantities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psbench.twin.codecs import Coding
from psbench.twin.links import Waits
from psbench.twin.peers import Peers

#: numbers of a fit that bands hold: how steps vary within a run and between, what messages cost each other
SPREAD = "deviation of a step, share of its mean"
RUN_TO_RUN = "deviation of a worker's mean step from run to run, share"
HOP = "latency between workers, s"
AT_ONCE = "a message's time on the link that all share, s"


class Fitted(NamedTuple):
    """A fitted number with its 90 % interval and its source."""

    value: float
    low: float
    high: float
    source: str


@dataclass
class Fit:
    """A cluster as a specification, its numbers with intervals, and a list of unknown quantities."""

    cluster: dict[str, Any] = field(default_factory=dict)
    fitted: dict[str, Fitted] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    codecs: dict[str, Coding] = field(default_factory=dict)
    waits: Waits | None = None
    peers: Peers | None = None


def latency_of(end: int, workers: int) -> str:
    """Return the name of a link end's latency in `fitted`."""
    return f"latency of worker {end % workers} {'to the servers' if end < workers else 'back'}, s"


def rate_of(worker: int, whither: str) -> str:
    """Return the name in `fitted` of the rate of a worker's link, "up" or "down"."""
    return f"rate of worker {worker} {whither}, Mbit/s"


def company_of(whither: str) -> str:
    """Return the name in `fitted` of the number of concurrent messages."""
    return f"messages that pass at once {whither}, mean"


def rounded(value: float) -> float:
    """Return a number with five digits."""
    return float(f"{value:.5g}")
