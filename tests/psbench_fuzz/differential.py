"""Strategies that are equal, given the same schedule: they must make the same models, and decide alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psbench import strategies
from psbench.core import AnyStrategy, EventLog, Kind
from psbench.strategies import make_strategy
from psbench_fuzz.player import Player
from psbench_fuzz.schedule import FAULTS
from psbench_fuzz.vectors import unequal

#: a bound that no schedule reaches
_NEVER = 10**4
_DECISIONS = (Kind.APPLY, Kind.RELEASE, Kind.CANCEL, Kind.DISCARD, Kind.DROP, Kind.READMIT, Kind.HANDOVER)


@dataclass(frozen=True)
class Pair:
    """Two strategies that are equal on n workers, with plain SGD.

    Parameters
    ----------
    left, right : callable n -> strategy
    kinds : str
        The kinds of fault under which they are.
    versions : callable n -> int
        How many versions of the left one are one of the right one: if they are not as many, their models are
        equal, and not their decisions.
    batches : tuple of int, samples
        Of the workers, in turn.
    """

    left: Callable[[int], AnyStrategy]
    right: Callable[[int], AnyStrategy]
    kinds: str = FAULTS
    versions: Callable[[int], int] = lambda n: 1
    batches: tuple[int, ...] = (4, 5, 3)


#: what never waits takes a switch by hand differently than a strategy that cannot switch
_NO_SWITCH = FAULTS.replace("w", "")
#: k of n workers are all only while all are there
_ALL_STAY = "rc"

PAIRS: dict[str, Pair] = {
    "k_asp(1) = asp": Pair(lambda n: strategies.k_asp(k=1), lambda n: _whole_rate(strategies.asp())),
    "k_batch_asp(1) = asp": Pair(
        lambda n: strategies.k_batch_asp(k=1), lambda n: _whole_rate(strategies.asp())
    ),
    "ssp(inf) = asp": Pair(lambda n: strategies.ssp(staleness_bound=_NEVER), lambda n: strategies.asp()),
    "dssp(2, 2) = ssp(2)": Pair(
        lambda n: strategies.dssp(lower=2, upper=2), lambda n: strategies.ssp(staleness_bound=2)
    ),
    "con_sgd(1) = ssp(1)": Pair(
        lambda n: strategies.con_sgd(staleness_bound=1), lambda n: strategies.ssp(staleness_bound=1)
    ),
    "k_bsp(n) = bsp": Pair(lambda n: strategies.k_bsp(k=n), lambda n: strategies.bsp(), _ALL_STAY),
    "backup_workers(0) = bsp": Pair(
        lambda n: strategies.backup_workers(spares=0), lambda n: strategies.bsp(), _ALL_STAY
    ),
    "all_reduce = bsp": Pair(lambda n: strategies.all_reduce(), lambda n: strategies.bsp(), _NO_SWITCH),
    "ssp(0), n versions = bsp": Pair(
        lambda n: strategies.ssp(staleness_bound=0),
        lambda n: strategies.bsp(),
        _ALL_STAY,
        versions=lambda n: n,
        batches=(4,),
    ),
    "diloco(H=1, plain, 1) = bsp": Pair(
        lambda n: strategies.diloco(local_steps=1, outer_optimizer="plain", outer_lr=1.0),
        lambda n: strategies.bsp(),
    ),
    "slowmo(H=1, 0) = bsp": Pair(
        lambda n: strategies.slowmo(local_steps=1, block_momentum=0.0), lambda n: strategies.bsp()
    ),
    "slowmo(0) = local_sgd": Pair(
        lambda n: strategies.slowmo(local_steps=3, block_momentum=0.0),
        lambda n: strategies.local_sgd(local_steps=3),
    ),
    "fedavgm(0) = diloco(plain)": Pair(
        lambda n: strategies.fedavgm(local_steps=2, outer_momentum=0.0, outer_lr=0.5),
        lambda n: strategies.diloco(local_steps=2, outer_optimizer="plain", outer_lr=0.5),
    ),
    "fedbuff(k=1, 0) = diloco(plain) with every push": Pair(
        lambda n: _of_differences("fedbuff", outer_lr=0.5, staleness_exponent=0.0),
        lambda n: _of_differences("delayed_nesterov", outer_lr=0.5, outer_momentum=0.0, momentum_every=1),
    ),
    "dc_asgd(0) = asp": Pair(lambda n: strategies.dc_asgd(compensation=0.0), lambda n: strategies.asp()),
    "krum(n of n) = trimmed_mean(0)": Pair(
        lambda n: _robust("krum", faulty=0, chosen=n),
        lambda n: _robust("trimmed_mean", trim=0.0),
        _ALL_STAY,  # who comes or goes while products are measured waits for those
    ),
}


def _whole_rate(strategy: AnyStrategy) -> AnyStrategy:
    return make_strategy(strategy.spec() | {"lr_scaling": "none"})


def _of_differences(aggregation: str, **own: Any) -> AnyStrategy:
    """Return one that takes every difference when it arrives."""
    parts = {"consistency": "asp", "communication": {"name": "local_sgd", "local_steps": 2}}
    return make_strategy(parts | {"aggregation": {"name": aggregation, **own}})


def _robust(aggregation: str, **own: Any) -> AnyStrategy:
    return make_strategy({"consistency": "bsp", "aggregation": {"name": aggregation, **own}})


def decisions(log: EventLog, start: int = 0) -> list[tuple[Any, ...]]:
    """Return the decisions of a log: pushes of each version, releases, drops and switches."""
    rows = log.rows(start)
    kept = [int(kind) for kind in _DECISIONS]
    return [
        (Kind(row["kind"]).name, int(row["worker"]), int(row["id"]), int(row["version"]))
        for row in rows
        if row["kind"] in kept
    ]


def differ(one: Player, other: Player, versions: int = 1) -> str:
    """Return the first difference in models or decisions between two players; empty if none.

    `versions`: as of a pair.
    """
    assert one.vectors is not None
    assert other.vectors is not None
    models = zip(one.vectors.versions[::versions], other.vectors.versions, strict=False)
    for version, (ours, theirs) in enumerate(models):
        if unequal(ours, theirs):
            return f"model {version} is {ours}, and {theirs} under the equal strategy"
    return differ_in_decisions(one, other) if versions == 1 else ""


def differ_in_decisions(one: Player, other: Player) -> str:
    """Return the first difference in decisions between two players; empty if none."""
    left, right = decisions(one.log), decisions(other.log)
    for i, (ours, theirs) in enumerate(zip(left, right, strict=False)):
        if ours != theirs:
            return f"decision {i} is {ours}, and {theirs} under the equal strategy"
    return (
        "" if len(left) == len(right) else f"{len(left)} decisions, and {len(right)} under the equal strategy"
    )
