"""Strategies that are equal, given the same schedule: they must decide alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psbench import strategies
from psbench.core.log import EventLog, Kind
from psbench.core.switching_strategy import AnyStrategy
from psbench.testing.fuzz.player import Player
from psbench.testing.fuzz.schedule import FAULTS

#: a bound that no schedule reaches
_NEVER = 10**4
_DECISIONS = (Kind.APPLY, Kind.RELEASE, Kind.CANCEL, Kind.DISCARD, Kind.DROP, Kind.READMIT, Kind.HANDOVER)


@dataclass(frozen=True)
class Pair:
    """Two strategies that are equal on n workers, and the kinds of fault under which they are."""

    left: Callable[[int], AnyStrategy]
    right: Callable[[int], AnyStrategy]
    kinds: str = FAULTS


#: what waits for nobody takes a switch by hand differently than a strategy that cannot switch
_NO_SWITCH = FAULTS.replace("w", "")
#: k of n workers is everybody only while everybody is there
_NOBODY_LEAVES = "rc"

PAIRS: dict[str, Pair] = {
    "k_asp(1) = asp": Pair(lambda n: strategies.k_asp(k=1), lambda n: strategies.asp()),
    "k_batch_asp(1) = asp": Pair(lambda n: strategies.k_batch_asp(k=1), lambda n: strategies.asp()),
    "ssp(inf) = asp": Pair(lambda n: strategies.ssp(staleness_bound=_NEVER), lambda n: strategies.asp()),
    "dssp(2, 2) = ssp(2)": Pair(
        lambda n: strategies.dssp(lower=2, upper=2), lambda n: strategies.ssp(staleness_bound=2)
    ),
    "con_sgd(1) = ssp(1)": Pair(
        lambda n: strategies.con_sgd(staleness_bound=1), lambda n: strategies.ssp(staleness_bound=1)
    ),
    "k_bsp(n) = bsp": Pair(lambda n: strategies.k_bsp(k=n), lambda n: strategies.bsp(), _NOBODY_LEAVES),
    "backup_workers(0) = bsp": Pair(
        lambda n: strategies.backup_workers(spares=0), lambda n: strategies.bsp(), _NOBODY_LEAVES
    ),
    "all_reduce = bsp": Pair(lambda n: strategies.all_reduce(), lambda n: strategies.bsp(), _NO_SWITCH),
}


def decisions(log: EventLog, start: int = 0) -> list[tuple[Any, ...]]:
    """Return what was decided: which pushes made which version, and who was released with which."""
    rows = log.rows(start)
    kept = [int(kind) for kind in _DECISIONS]
    return [
        (Kind(row["kind"]).name, int(row["worker"]), int(row["id"]), int(row["version"]))
        for row in rows
        if row["kind"] in kept
    ]


def differ(one: Player, other: Player) -> str:
    """Return the first decision in which two players differ; empty if there is none."""
    left, right = decisions(one.log), decisions(other.log)
    for i, (ours, theirs) in enumerate(zip(left, right, strict=False)):
        if ours != theirs:
            return f"decision {i} is {ours}, and {theirs} under the equal strategy"
    return (
        "" if len(left) == len(right) else f"{len(left)} decisions, and {len(right)} under the equal strategy"
    )
