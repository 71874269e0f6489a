"""Forks: an alternative continuation of a run from a given moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal, cast

from psbench.clusters import Cluster
from psbench.clusters.faults import Failure, LateJoin, Slowdown, Throttle
from psbench.core.log import EventLog, Kind
from psbench.core.strategy import Strategy
from psbench.core.switching_strategy import LaterSwitch, Switch, SwitchingStrategy
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.metrics.rows import pick
from psbench.results.run import Run
from psbench.runs.forked import Beginning, ForkedExperiment, common_prefix
from psbench.strategies import later_switches, make_strategy
from psbench.strategies.switching import AtTime

__all__ = ["Fork", "common_prefix", "fork"]

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
        What to change to then, as at any switch: work under way ends, and the model is handed over. It stays
        until the end: the run's own switches that were still to come do not. If it is in force already,
        nothing is handed over.
    worker : int or None
        Whose speed is changed, or who is lost.
    speed : float or None, > 0
        How many times as fast the worker's steps are from then on.
    link : float or None, > 0
        How many times as fast the worker's link is from then on, both ways.
    kill : bool
        Whether the worker is lost.
    back : bool
        Whether the worker, which is not there then, comes back, or joins.
    switch : bool
        Whether a strategy that switches does so then, as if asked by hand, in its own way.
    momentum : "keep" or "zero"
        What becomes of the optimizer's momentum when `strategy` is changed: whatever the run was before, it
        is kept, or reset.
    """

    at_s: float
    strategy: Any = None
    worker: int | None = None
    speed: float | None = None
    link: float | None = None
    kill: bool = False
    back: bool = False
    switch: bool = False
    momentum: Literal["keep", "zero"] = "keep"

    def words(self) -> str:
        """Return a description of the change, including the momentum after a change of strategy.

        >>> Fork(1.5, worker=3, kill=True).words(), Fork(0.25, strategy="asp").words()
        ('worker 3 lost at 1.5 s', 'asp from 0.25 s on, momentum kept')
        """
        when = f"{self.at_s:.4g} s"
        if self.strategy is not None:
            return f"{_named(self.strategy)} from {when} on, momentum {_MOMENTUM[self.momentum]}"
        if self.kill:
            return f"worker {self.worker} lost at {when}"
        if self.back:
            return f"worker {self.worker} back at {when}"
        if self.link is not None:
            return f"link of worker {self.worker} {self.link:g} times as fast from {when} on"
        if self.speed is not None:
            return f"worker {self.worker} {self.speed:g} times as fast from {when} on"
        return f"switched at {when}"


_MOMENTUM = {"keep": "kept", "zero": "reset"}


def fork(origin: Run | Experiment, change: Fork) -> Experiment:
    """Return the experiment that repeats a run until a moment, and differs in one thing from then on.

    The beginning is simulated again from the same seed: every row of the log before that moment is the same,
    byte for byte. Running the experiment compares that, and a run whose beginning differs is refused
    (`psbench.errors.ForkDiffers`). Only a simulated run can be forked.

    Parameters
    ----------
    origin : Run or Experiment
        With a run, its log is what the beginning is compared with, and switches by hand are part of it. The
        beginning of an experiment is run first, to have something to compare with.
    change : Fork

    Raises
    ------
    ParameterError
        If the run is not a simulated one, if not exactly one thing is changed, or if that cannot be.

    Examples
    --------
    >>> other = fork(Experiment(strategy="bsp"), Fork(0.5, strategy="asp"))
    >>> [composition.name for composition in other.strategy.compositions], other.strategy.requests
    (['bsp', 'asp'], [(0.5, 1)])
    """
    experiment, log = (origin.experiment, origin.log) if isinstance(origin, Run) else (origin, None)
    _check(experiment, change)
    if isinstance(origin, Run):
        _lasted_until(change.at_s, origin)
        experiment = _with_switches_by_hand(experiment, origin.log)
    if change.strategy is not None:
        other = experiment.but(strategy=_other_strategy(experiment.strategy, change))
    elif change.switch:
        other = experiment.but(switch_at_s=change.at_s)
    else:
        other = experiment.but(cluster=_other_cluster(experiment.cluster, change))
    return ForkedExperiment.of(other, Beginning(change.at_s, experiment, log))


def _check(experiment: Experiment, change: Fork) -> None:
    if experiment.backend != "simulated":
        raise ParameterError("fork: only simulated runs can be forked exactly; this one was live")
    numbers = {"speed": change.speed, "link": change.link}
    given = [value is not None for value in (change.strategy, *numbers.values())]
    if sum((*given, change.kill, change.back, change.switch)) != 1:
        raise ParameterError("fork: change exactly one of strategy, speed, link, kill, back and switch")
    if change.at_s < 0:
        raise ParameterError(f"fork: at_s must be zero or more, got {change.at_s:g}")
    if change.momentum not in _MOMENTUM:
        raise ParameterError(f"fork: momentum must be 'keep' or 'zero', got {change.momentum!r}")
    is_of_worker = change.kill or change.back or any(given[1:])
    if is_of_worker != (change.worker is not None):
        said = (
            "say which worker"
            if is_of_worker
            else "`worker` applies only to speed, link, kill and back; remove it"
        )
        raise ParameterError(f"fork: {said}")
    if change.momentum != "keep" and change.strategy is None:
        raise ParameterError("fork: momentum applies only to a change of the strategy; remove it")
    for name, value in numbers.items():
        if value is not None and value <= 0:
            raise ParameterError(f"fork: {name} must be positive, got {value:g}")


def _lasted_until(at_s: float, run: Run) -> None:
    times = run.log.rows()["time_s"]
    end_s = max(0.0, run.meta.get("time_s", 0.0), *times[-1:].tolist())
    if at_s > end_s:
        raise ParameterError(f"fork: the run ended at {end_s:.4g} s, before {at_s:g} s")


# -------------------------------------------------------------------- strategies in a row


def _with_switches_by_hand(experiment: Experiment, log: EventLog) -> Experiment:
    """Return the experiment with the run's manual switches as switches at set times."""
    strategy = experiment.strategy
    if not isinstance(strategy, SwitchingStrategy):
        return experiment
    asked = pick(log.rows(), Kind.SWITCH_REQUESTED)
    found = [(at_s, None if to < 0 else to) for at_s, to in zip(*_columns(asked), strict=True)]
    for planned in strategy.requests:
        if planned in found:
            found.remove(planned)
    if not found:
        return experiment
    pressed = [{"to": to, "rule": _at(at_s)} for at_s, to in found]
    return experiment.but(strategy=strategy.with_switches((*strategy.then, *later_switches(pressed))))


def _columns(rows: Any) -> tuple[list[float], list[int]]:
    return rows["time_s"].tolist(), rows["id"].tolist()


def _other_strategy(now: Strategy | SwitchingStrategy, change: Fork) -> SwitchingStrategy:
    """Return a run's strategies with another one from the fork on, which replaces later switches."""
    then = make_strategy(change.strategy)
    if isinstance(then, SwitchingStrategy):
        raise ParameterError(f"fork: change to a single strategy, not to {then.name!r}, which switches")
    last = {"to": then, "rule": _at(change.at_s), "momentum": change.momentum}
    if isinstance(now, Strategy) or (_is_due(now, change.at_s) and not _by_hand(now)):
        first = now if isinstance(now, Strategy) else now.first
        return SwitchingStrategy(first=first, second=then, rule=last["rule"], momentum=change.momentum)
    if _by_hand(now):  # to which of the strategies these led is not known here: all stay
        now = _postponed(now, change.at_s)
        earlier: Iterable[LaterSwitch] = now.then
    else:
        earlier = takewhile(lambda switch: not _is_due(switch, change.at_s), now.then)
    return now.with_switches((*earlier, *later_switches([last])))


def _by_hand(strategy: SwitchingStrategy) -> bool:
    return not all(isinstance(switch.to, Strategy) for switch in strategy.then)


def _postponed(strategy: SwitchingStrategy, at_s: float) -> SwitchingStrategy:
    """Return the strategy without the switches that are due from that time on; its strategies stay."""
    never: dict[str, Any] = {"rule": AtTime(at_s=FOREVER_S)}
    first = {name: getattr(strategy, name) for name in type(strategy).model_fields}
    then = [switch.model_copy(update=never) if _is_due(switch, at_s) else switch for switch in strategy.then]
    return type(strategy)(**first | (never if _is_due(strategy, at_s) else {}) | {"then": tuple(then)})


def _is_due(switch: Switch, at_s: float) -> bool:
    return switch.rule.moment_s is not None and switch.rule.moment_s >= at_s


def _at(at_s: float) -> dict[str, Any]:
    return {"name": "at_time", "at_s": at_s}


# -------------------------------------------------------------------- cluster and words


def _other_cluster(cluster: Cluster, change: Fork) -> Cluster:
    worker = change.worker
    assert worker is not None
    if worker >= cluster.num_workers or worker < 0:
        last = cluster.num_workers - 1
        raise ParameterError(f"fork: there is no worker {worker}; the workers are 0 to {last}")
    values = {name: getattr(cluster, name) for name in type(cluster).model_fields}
    if change.kill:
        values["failures"] = (*cluster.failures, Failure(worker=worker, at_s=change.at_s))
    elif change.back:
        values |= _brought_back(cluster, worker, change.at_s)
    else:
        spell: dict[str, Any] = {"worker": worker, "from_s": change.at_s, "to_s": FOREVER_S}
        if change.speed is not None:
            values["slowdowns"] = (*cluster.slowdowns, Slowdown(**spell, factor=1 / change.speed))
        else:
            values["throttles"] = (*cluster.throttles, Throttle(**spell, factor=1 / cast(float, change.link)))
    return type(cluster)(**values)


def _brought_back(cluster: Cluster, worker: int, at_s: float) -> dict[str, Any]:
    """Return the failures or joins of a cluster with a lost worker returning at that time."""
    for place, failure in enumerate(cluster.failures):
        if failure.worker == worker and failure.at_s < at_s < (failure.rejoin_s or FOREVER_S):
            back = Failure(worker=worker, at_s=failure.at_s, rejoin_s=at_s)
            return {"failures": (*cluster.failures[:place], back, *cluster.failures[place + 1 :])}
    for place, join in enumerate(cluster.joins):
        if join.worker == worker and at_s < join.at_s:
            others = (*cluster.joins[:place], *cluster.joins[place + 1 :])
            return {"joins": (*others, LateJoin(worker=worker, at_s=at_s)) if at_s > 0 else others}
    raise ParameterError(f"fork: worker {worker} is present at {at_s:.4g} s: only a lost worker can return")


def _named(strategy: Any) -> str:
    if isinstance(strategy, dict):
        rest = ", ".join(
            f"{key.replace('_', ' ')} {value}" for key, value in strategy.items() if key != "name"
        )
        return f"{strategy.get('name', 'custom')}{f' ({rest})' if rest else ''}"
    return str(getattr(strategy, "name", strategy))
