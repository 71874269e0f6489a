"""Many schedules of live runs: what was played, how fast, and what failed."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.roles import (
    CLIENT,
    COORDINATOR,
    EVALUATOR,
    REPLICA,
    worker_name,
    worker_number,
)
from psbench.core.collective import Shares
from psbench.core.peer_to_peer import PeerToPeer
from psbench.errors import DoubtfulComposition, PsbenchError, SpecError
from psbench.experiment import Experiment
from psbench.seeds import Streams
from psbench.strategies import CATALOGUE
from psbench.training.build import Workload
from tests.live_runs.world import World

T = TypeVar("T")

#: schedules of one experiment: building one takes as long as several schedules
BLOCK = 25
#: share of the runs that end before they are done, so that the client starts them again; and of those that
#: were started again
_BREAKS, _BREAKS_AGAIN = 0.35, 0.2
#: starts of one run
_STARTS = 3
#: strategies that are drawn more often than others: they ask most of a live run
_OFTEN = (
    *("bsp", "asp", "ssp", "k_bsp", "k_asp", "k_batch_bsp", "k_batch_asp", "dssp", "elastic_bsp"),
    *("all_reduce", "all_reduce", "local_sgd", "selsync", "osp", "flex_rr", "adacomm", "dbs_sgd"),
)
#: those that are not drawn: switches, which are drawn of two others, jobs without processes that stay, and
#: workers that share a memory, which doubles have none of
_NOT_DRAWN = ("strategy_switch", "sync_switch", "map_reduce", "hogwild")
_ALL = tuple(name for name in CATALOGUE if name not in _NOT_DRAWN)

#: with which workers are dropped, and taken back, within a schedule
_DROPS = {"factor": 1.05, "window": 1, "patience": 1, "most": 0.5, "readmit_after_s": 0.3}
#: parameters of strategies that would otherwise do in a schedule what simpler ones do
_SHORT = {
    "hermes": {"chunk_samples": 8, "chunk_batch": 4, "passes": 1, "window": 2, "alpha": -0.1, "patience": 1},
    "drop_stragglers": _DROPS,
}


@dataclass
class LiveCampaign:
    """What a number of schedules covered and found.

    Attributes
    ----------
    schedules, inputs : int
        `inputs` counts messages, ticks and looks that live runs were given.
    resumed : int
        In how many schedules a run went on from a checkpoint.
    ended : dict
        How many runs ended in each way: a status, or the kind of an error.
    findings : list of (block, schedule, choices, error)
        The first of each form, with the fewest choices that show it.
    failures : int
    """

    schedules: int = 0
    inputs: int = 0
    resumed: int = 0
    seconds: float = 0.0
    failures: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    findings: list[tuple[int, int, int, str]] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return plain data."""
        rate = self.schedules / self.seconds if self.seconds else 0.0
        return vars(self) | {"seconds": round(self.seconds, 1), "schedules_per_second": round(rate, 1)}


def run_live_campaign(
    schedules: int,
    seed: int = 0,
    choices: int = 150,
    run_class: type[LiveRun] = LiveRun,
    progress: Callable[[LiveCampaign], None] | None = None,
    first_block: int = 0,
    most_failures: int | None = None,
    shrinks: bool = True,
) -> LiveCampaign:
    """Play so many schedules (rounded up to whole blocks of one experiment each).

    Parameters
    ----------
    schedules : int, >= 1
    seed : int
        The same one plays the same schedules.
    choices : int
        Of each schedule, before the faults end.
    run_class : type
        `LiveRun`, or one with a fault.
    progress : callable or None
        Called with the campaign after each block.
    first_block : int
        For processes that play a part each.
    most_failures : int or None
        Ends the campaign.
    shrinks : bool
        Whether to find out how few choices are enough for a finding.
    """
    done, began = LiveCampaign(), time.perf_counter()
    for block in range(first_block, first_block - (-schedules // BLOCK)):
        workload = draw_workload(Streams(seed).generator("live", block))
        for number in range(BLOCK):
            _play_one(done, workload, (seed, block, number), choices, run_class, shrinks)
            if most_failures is not None and done.failures >= most_failures:
                return done
        done.seconds = time.perf_counter() - began
        if progress is not None:
            progress(done)
    return done


def _play_one(
    done: LiveCampaign,
    workload: Workload,
    at: tuple[int, int, int],
    choices: int,
    run_class: type[LiveRun],
    shrinks: bool,
) -> None:
    world, error = play(workload, at, choices, run_class)
    done.schedules += 1
    if world is not None:
        done.inputs += world.inputs
        done.resumed += world.live.start is not None
    if error is None:
        assert world is not None
        how = world.outcome.status if world.outcome else _kind(world)
        done.ended[how] = done.ended.get(how, 0) + 1
        return
    done.failures += 1
    form = _form(error)
    if form not in {_form_of_text(each[3]) for each in done.findings}:
        fewest = _fewest(workload, at, choices, run_class, form) if shrinks else choices
        done.findings.append((*at[1:], fewest, f"{type(error).__name__}: {error}"))


def _kind(world: World) -> str:
    error = world.end.error if world.end is not None else None
    return "moved" if error is None else type(error).__name__


def _form(error: Exception) -> str:
    return _form_of_text(f"{type(error).__name__}: {error}")


def _form_of_text(text: str) -> str:
    return "".join(letter for letter in text[:60] if not letter.isdigit())


def _fewest(
    workload: Workload, at: tuple[int, int, int], choices: int, run_class: type[LiveRun], form: str
) -> int:
    """Return how many of a schedule's choices are enough for a failure of that form."""
    for count in range(choices):
        error = play(workload, at, count, run_class)[1]
        if error is not None and _form(error) == form:
            return count
    return choices


def play(
    workload: Workload, at: tuple[int, int, int], choices: int, run_class: type[LiveRun] = LiveRun
) -> tuple[World | None, Exception | None]:
    """Play one schedule, then let it heal; return its world, and what went wrong."""
    seed, block, number = at
    rng = Streams(seed).generator("live schedule", block, number)
    world = None
    try:
        breaks = rng.random() < _BREAKS
        # who has no place before a run breaks may have one after it, and is in no checkpoint
        world = World(workload, rng, run_class, absent=_absent(workload, rng, 0.5 if breaks else 0.2))
        _play_on(world, rng, choices, breaks)
        for _ in range(_STARTS - 1):
            if not world.can_go_on:
                break
            world = World(workload, rng, run_class, world, _absent(workload, rng, 0.2))
            _play_on(world, rng, choices, rng.random() < _BREAKS_AGAIN)
    except Exception as error:
        return world, error
    return world, None


def _absent(workload: Workload, rng: np.random.Generator, share: float) -> str:
    """Return the worker for which there is no place at first; empty if there is one for each.

    There is none in that share of the runs that do without.
    """
    experiment = workload.experiment
    joins = experiment.recovery.lets_workers_join and experiment.num_workers > (
        experiment.recovery.min_workers or 0
    )
    return worker_name(int(rng.integers(experiment.num_workers))) if joins and rng.random() < share else ""


def _play_on(world: World, rng: np.random.Generator, choices: int, breaks: bool) -> None:
    player = LivePlayer(world, rng, breaks)
    for _ in range(choices):
        if world.end is not None:
            return
        player.choose()
    world.heal(looks=True)


class LivePlayer:
    """Draws what happens next; each schedule has a few faults, at moments of its own.

    With `breaks` training ends early, by a server that is lost or retired.
    """

    def __init__(self, world: World, rng: np.random.Generator, breaks: bool) -> None:
        self._world, self._rng = world, rng
        self._drawn: list[float] = []  # many at once: one by one they would take a tenth of a schedule
        span = self._one_of((15, 50, 150))  # a run begins after some 20 choices
        self._moments = {1 + int(self._draw() * span) for _ in range(self._one_of((0, 1, 1, 2, 3)))}
        self._choices = 0
        self._repeats = False  # the next message that may be sent twice; of a replica, a receipt
        self._favourite = self._one_of((0.0, 0.5))  # how often one pair is served before all others
        # choices of training before it ends early
        self._left: float = self._one_of((0, 10, 20, 40, 60)) if breaks else math.inf

    def _draw(self) -> float:
        """Return a number between 0 and 1."""
        if not self._drawn:
            self._drawn = self._rng.random(256).tolist()
        return self._drawn.pop()

    def _one_of(self, some: Sequence[T]) -> T:
        return some[int(self._draw() * len(some))]

    def choose(self) -> None:
        """Let something happen."""
        world = self._world
        self._choices += 1
        if self._choices in self._moments:
            self._fault()
            return
        if world.live.run.training:
            self._left -= 1
            if self._left < 0:
                self._left = math.inf
                self._break()
                return
        if self._repeats and (found := self._repeatable()):
            self._repeats = False
            world.repeat(self._one_of(found), self._one_of((1, 4)))  # of several the last comes late
            return
        pairs, busy = world.waiting(), world.busy()
        drawn = self._draw()
        if drawn < 0.01:
            world.settle()
        elif drawn < 0.06 or not (pairs or busy):
            world.pass_time(self._one_of((0.02,) * 12 + (0.3,) * 7 + (2.0,)))
        elif drawn < 0.08:
            world.report_dead()
            world.find_places(self._draw() < 0.7)
        elif pairs and (not busy or self._draw() < 0.7):
            world.arrive(pairs[0] if self._draw() < self._favourite else self._one_of(pairs))
        else:
            world.end_step(self._one_of(busy))

    def _repeatable(self) -> list[tuple[str, str]]:
        pairs = self._world.repeatable()
        return [pair for pair in pairs if pair[0] == REPLICA] if REPLICA in self._world.alive else pairs

    def _break(self) -> None:
        """End training early: where the client would have to begin at the start, by a retired server."""
        world = self._world
        servers = [COORDINATOR, *sorted(name for name in world.alive if name.startswith("server"))]
        lost = self._one_of(servers)
        if not world.can_lose_a_server or self._draw() < 0.3:
            world.ask(msg.RoleLeaves(lost))
        elif lost == COORDINATOR:
            world.lose_coordinator()
        else:
            world.kill(lost)

    def _fault(self) -> None:
        world = self._world
        drawn = self._draw()
        roles = sorted(world.alive - {CLIENT})
        if drawn < 0.45 and roles:
            workers = [name for name in roles if worker_number(name) is not None]
            world.kill(self._one_of(workers if workers and self._draw() < 0.6 else roles))
        elif drawn < 0.6:
            self._repeats = True
        elif drawn < 0.75 and roles:
            world.ask(msg.RoleLeaves(COORDINATOR if self._draw() < 0.5 else self._one_of(roles)))
        elif drawn < 0.82:
            world.ask(msg.RequestStop(self._one_of((False, True))))
        elif drawn < 0.92:
            world.ask(msg.RequestSwitch(None))
        elif drawn < 0.94 and world.workers:
            world.refuse(self._one_of(sorted(world.workers)))
        elif drawn < 0.96 and world.workers:
            world.diverge(self._one_of(sorted(world.workers)))
        elif drawn < 0.97:
            world.kill(CLIENT)
        elif world.workers:
            worker = worker_number(self._one_of(sorted(world.workers)))
            if worker is not None:
                world.ask(msg.PressWorker(worker, self._one_of(("lost", "back", "speed")), 0.5))


def draw_workload(rng: np.random.Generator) -> Workload:
    """Return the workload of an experiment of some strategy, with few workers and updates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulComposition)
        for _ in range(1000):
            try:
                return Workload.build(_draw_experiment(rng))
            except (SpecError, PsbenchError):  # the parts do not fit together
                continue
    raise AssertionError("no experiment was found by chance")


def _draw_experiment(rng: np.random.Generator) -> Experiment:
    workers = int(rng.integers(1, 5))
    strategy = _draw_strategy(rng)
    if rng.random() < 0.35:
        pair = {"first": strategy, "second": _draw_strategy(rng)}
        # a run has .2 of the 50 epochs at the most
        after = {"name": "after", "fraction": float(rng.choice([0.0, 0.0001, 0.0006])), "whole_epochs": False}
        rule: Any = after if rng.random() < 0.6 else "manual"
        strategy = {"name": "strategy_switch", "rule": rule, **pair}
    recovery: dict[str, Any] = {"replicas": int(rng.random() < 0.4)}
    if rng.random() < 0.5:
        recovery["min_workers"] = 1
    cluster: dict[str, Any] = {"workers": workers, "step_time": "constant"}
    if rng.random() < 0.2 and workers > 1:
        cluster["failures"] = [{"worker": workers - 1, "at_s": 0.5, "rejoin_s": 2.0}]
    if rng.random() < 0.35 and workers > 1:
        cluster["joins"] = [{"worker": 0, "at_s": float(rng.choice([0.5, 2.0]))}]
    stop: dict[str, Any] = {"updates": int(rng.integers(3, 16)), "epochs": 50}
    drawn = rng.random()
    if drawn < 0.2:
        stop |= {"seconds": 2.0} if drawn < 0.1 else {"patience": 2}
    return Experiment(
        strategy=strategy,
        data="digits",
        model={"name": "mlp", "hidden": [2]},
        cluster=cluster,
        batch_size=4 * workers,
        # what comes more seldom is only played at a run's ends
        evaluate_every=float(rng.choice([0.01, 0.05, 100.0])),
        checkpoint_every=None if rng.random() < 0.5 else float(rng.choice([0.01, 0.03])),
        stop=stop,
        recovery=recovery,
        backend="dask",
    )


def _draw_strategy(rng: np.random.Generator) -> dict[str, Any]:
    strategy: dict[str, Any] = {"name": str(rng.choice(_OFTEN if rng.random() < 0.6 else _ALL))}
    strategy |= _SHORT.get(strategy["name"], {})
    drawn = rng.random()
    placement = CATALOGUE[strategy["name"]]().placement
    if isinstance(placement, PeerToPeer):
        return strategy | _drawn_for_gossip(rng)
    if isinstance(placement, Shares):
        return strategy
    if strategy["name"] != "all_reduce" and drawn < 0.45:
        servers: dict[str, Any] = {"name": "parameter_server", "servers": int(rng.integers(2, 4))}
        if drawn < 0.25:
            servers |= {
                "assignment": "layer",
                "reassignment": {"name": "by_load", "every": 2, "threshold": 1.05},
            }
        strategy["placement"] = servers
    elif drawn > 0.85:
        adding = {"name": "summing_servers", "servers": 2}
        strategy["placement"] = "all_reduce" if drawn > 0.91 else adding
    return strategy


def _drawn_for_gossip(rng: np.random.Generator) -> dict[str, Any]:
    """Return parts in the place of those that a strategy without a server has by itself."""
    parts: dict[str, Any] = {}
    if rng.random() < 0.3:
        parts["communication"] = str(rng.choice(["step_then_mix", "mix_then_step"]))
    if rng.random() < 0.3:
        parts["stragglers"] = {"name": "drop_stragglers", **_DROPS}
    return parts


__all__ = ["EVALUATOR", "REPLICA", "LiveCampaign", "LivePlayer", "draw_workload", "play", "run_live_campaign"]
