"""What if: another future of a run, from one of its moments on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from psbench.clusters import Cluster
from psbench.clusters.faults import Failure, Slowdown
from psbench.core.log import EventLog
from psbench.core.switching_strategy import AnyStrategy, SwitchingStrategy
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.strategies import make_strategy

#: later than any run ends, in seconds, and still a number that a file can hold
FOREVER_S = 1e12


@dataclass(frozen=True)
class Fork:
    """The one thing that another future does differently.

    Parameters
    ----------
    at_s : float, seconds
        The moment from which on the futures differ.
    strategy : str, mapping, Strategy or None
        What to change to then, as at any switch: work under way ends, and the model is handed over.
    worker : int or None
        Whose speed is changed, or who is lost.
    speed : float or None, > 0
        How many times as fast the worker's steps are from then on.
    kill : bool
        Whether the worker is lost.
    switch : bool
        Whether a strategy with two compositions switches then.
    """

    at_s: float
    strategy: Any = None
    worker: int | None = None
    speed: float | None = None
    kill: bool = False
    switch: bool = False

    def words(self) -> str:
        """Say what is different.

        >>> Fork(1.5, worker=3, kill=True).words(), Fork(0.25, strategy="asp").words()
        ('worker 3 lost at 1.5 s', 'asp from 0.25 s on')
        """
        when = f"{self.at_s:.4g} s"
        if self.strategy is not None:
            return f"{_named(self.strategy)} from {when} on"
        if self.kill:
            return f"worker {self.worker} lost at {when}"
        if self.speed is not None:
            return f"worker {self.worker} {self.speed:g} times as fast from {when} on"
        return f"switched at {when}"


def fork(experiment: Experiment, change: Fork) -> Experiment:
    """Return the experiment whose run is the same until a moment, and differs in one thing from then on.

    The beginning is simulated again from the same seed: every row of the log before that moment is the same,
    byte for byte. Only a simulated run can be forked.

    Raises
    ------
    ParameterError
        If the run is not a simulated one, if not exactly one thing is changed, or if that cannot be.

    Examples
    --------
    >>> other = fork(Experiment(strategy="bsp"), Fork(0.5, strategy="asp"))
    >>> [composition.name for composition in other.strategy.compositions], other.switch_at_s
    (['bsp', 'asp'], 0.5)
    """
    _check(experiment, change)
    if change.strategy is not None:
        return _other_strategy(experiment, change)
    if change.switch:
        return experiment.but(switch_at_s=change.at_s)
    return experiment.but(cluster=_other_cluster(experiment.cluster, change))


def common_prefix(log: EventLog, other: EventLog) -> int:
    """Return how many rows two logs have in common from the start, texts included."""
    mine, theirs = log.rows(), other.rows()
    length = min(len(mine), len(theirs))
    mine, theirs = mine[:length].copy(), theirs[:length].copy()
    texts, others = np.array(log.texts, dtype=object), np.array(other.texts, dtype=object)
    same = texts[mine["text"]] == others[theirs["text"]]
    mine["text"] = theirs["text"] = 0
    differs = np.flatnonzero((mine != theirs) | ~same)
    return int(differs[0]) if len(differs) else length


def _check(experiment: Experiment, change: Fork) -> None:
    if experiment.backend != "simulated":
        raise ParameterError("fork: only a simulated run has an exact second future; this one was live")
    asked = (change.strategy is not None, change.speed is not None, change.kill, change.switch)
    if sum(asked) != 1:
        raise ParameterError("fork: change exactly one of strategy, speed, kill and switch")
    if change.at_s < 0:
        raise ParameterError(f"fork: at_s must be zero or more, got {change.at_s:g}")
    if (change.kill or change.speed is not None) and change.worker is None:
        raise ParameterError("fork: say which worker")
    if change.speed is not None and change.speed <= 0:
        raise ParameterError(f"fork: speed must be positive, got {change.speed:g}")


def _other_strategy(experiment: Experiment, change: Fork) -> Experiment:
    """Return the experiment that changes to another strategy, of which it has had none before."""
    now: AnyStrategy = experiment.strategy
    then = make_strategy(change.strategy)
    if isinstance(then, SwitchingStrategy):
        raise ParameterError(f"fork: change to a single strategy, not to {then.name!r}, which is a pair")
    if isinstance(now, SwitchingStrategy):
        if experiment.switch_at_s is not None:
            raise ParameterError("fork: this run is a fork already, and changes its strategy once")
        other: AnyStrategy = now.model_copy(update={"second": then})
    else:
        pair = {"first": now.spec(), "second": then.spec(), "rule": "manual", "momentum": "keep"}
        other = make_strategy({"name": "strategy_switch", **pair})
    return experiment.but(strategy=other, switch_at_s=change.at_s)


def _other_cluster(cluster: Cluster, change: Fork) -> Cluster:
    worker = change.worker
    assert worker is not None
    if worker >= cluster.num_workers or worker < 0:
        last = cluster.num_workers - 1
        raise ParameterError(f"fork: there is no worker {worker}; the workers are 0 to {last}")
    values = {name: getattr(cluster, name) for name in type(cluster).model_fields}
    if change.kill:
        values["failures"] = (*cluster.failures, Failure(worker=worker, at_s=change.at_s))
    else:
        assert change.speed is not None
        slow = {"worker": worker, "from_s": change.at_s, "to_s": FOREVER_S, "factor": 1 / change.speed}
        values["slowdowns"] = (*cluster.slowdowns, Slowdown(**slow))
    return type(cluster)(**values)


def _named(strategy: Any) -> str:
    if isinstance(strategy, dict):
        rest = ", ".join(
            f"{key.replace('_', ' ')} {value}" for key, value in strategy.items() if key != "name"
        )
        return f"{strategy.get('name', 'custom')}{f' ({rest})' if rest else ''}"
    return str(getattr(strategy, "name", strategy))
