"""Many schedules on all cores: coverage, speed and failures."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from psbench.core import AnyStrategy, Part
from psbench.errors import DoubtfulComposition
from psbench.seeds import Streams
from psbench.strategies import make_strategy
from psbench.system.cores import cores
from psbench.system.parent import end_with_parent
from psbench.testing.invariants import BrokenContract
from psbench.testing.random_cluster import fitting_sizes
from psbench_fuzz.compositions import draw_size, draw_strategy, turn
from psbench_fuzz.differential import PAIRS, Pair, differ
from psbench_fuzz.explore import explore
from psbench_fuzz.liveness import play
from psbench_fuzz.player import Player
from psbench_fuzz.schedule import Schedule
from psbench_fuzz.shrink import as_test, form, shrink

#: schedules with one strategy: building one takes as long as a few schedules
BLOCK = 16
#: share of the blocks that carry vectors, which take a third of their time, and domains whose turns always do
_VECTORS, _COMPUTE = 0.25, ("aggregation", "communication")
#: share of the blocks without a part of their own that are of a pair of equal strategies
_PAIRS = 0.3
#: share of the schedules in which much is equal to all digits
_TIES = 0.3
#: batches of the workers, in turn: mostly small ones; large ones, whose work can be moved; the engine's own
_BATCHES: tuple[tuple[int, ...], ...] = ((4, 5, 3), (4, 5, 3), (32, 40, 24), ())
#: blocks of a task for another process: enough that starting it does not show
_BLOCKS_PER_TASK = 16


@dataclass
class Finding:
    """A schedule that fails, as small as it could be made."""

    schedule: Schedule
    error: str
    form: str
    test: str

    def plain(self) -> dict[str, Any]:
        """Return plain data."""
        own = self.schedule
        spec = {"strategy": dict(own.strategy), "workers": own.workers, "starters": own.starters}
        work = {"batches": own.batches, "momentum": own.momentum, "wrong": own.wrong, "ties": own.ties}
        return spec | work | {"seed": own.seed, "choices": own.text, "error": self.error, "test": self.test}


@dataclass
class Campaign:
    """Coverage and failures of a number of schedules.

    Attributes
    ----------
    schedules, events : int
    kinds : Counter
        Choices made, by kind; see `schedule.KINDS`.
    pairs : set of two names
        Parts that were together in a composition.
    seconds : float
    failures : int
        Schedules that failed.
    first_error : str
        What the first of them said.
    findings : list of Finding
        One for each form of failure, shrunk.
    """

    schedules: int = 0
    events: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    forms: set[str] = field(default_factory=set)
    failures: int = 0
    first_error: str = ""

    @property
    def per_second(self) -> float:
        return self.schedules / self.seconds if self.seconds else 0.0

    def add(self, other: Campaign) -> None:
        """Add the results of another part of the campaign, except its time."""
        self.schedules += other.schedules
        self.events += other.events
        self.kinds += other.kinds
        self.pairs |= other.pairs
        self.failures += other.failures
        self.first_error = self.first_error or other.first_error
        self.findings += [each for each in other.findings if each.form not in {f.form for f in self.findings}]
        self.forms |= other.forms

    def plain(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "schedules": self.schedules,
            "events": self.events,
            "seconds": round(self.seconds, 3),
            "schedules_per_second": round(self.per_second, 1),
            "kinds": dict(sorted(self.kinds.items())),
            "pairs_of_parts": len(self.pairs),
            "failures": self.failures,
            "findings": [finding.plain() for finding in self.findings],
        }


def run_block(
    seed: int,
    number: int,
    events: int,
    names: Sequence[Any] = (),
    known: set[str] | None = None,
    shrinks: bool = True,
) -> Campaign:
    """Play the schedules of one block: one strategy, or one pair of equal ones, on its own clusters.

    Parameters
    ----------
    seed, number : int
        The same ones give the same schedules.
    events : int
        Of each schedule, before the faults end.
    names : sequence of what `make_strategy` takes
        Strategies to choose from; drawn compositions if empty.
    known : set of str or None
        Forms of failure that need not be shrunk again.
    shrinks : bool
        Whether failures are shrunk and kept; else the block ends with its first.
    """
    rng = Streams(seed).generator("fuzz", number)
    done = Campaign(forms=set(known or ()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulComposition)
        part = None if names else turn(number)
        pair = None
        if not names and part is None and rng.random() < _PAIRS:
            pair = PAIRS[sorted(PAIRS)[rng.integers(len(PAIRS))]]
        strategy = None if pair else _strategy(rng, names, part)
        carries = rng.random() < _VECTORS or (part is not None and part.domain in _COMPUTE)
        for _ in range(BLOCK):
            _run_one(done, strategy, pair, rng, events, shrinks, carries)
            if done.failures and not shrinks:
                break
    return done


def _strategy(rng: np.random.Generator, names: Sequence[Any], part: type[Part] | None) -> AnyStrategy:
    if names:
        return make_strategy(names[int(rng.integers(len(names)))])
    return draw_strategy(rng, *([part] if part is not None else []))


def _run_one(
    done: Campaign,
    strategy: AnyStrategy | None,
    pair: Pair | None,
    rng: np.random.Generator,
    events: int,
    shrinks: bool,
    carries: bool = True,
) -> None:
    if pair is None:
        assert strategy is not None
        size, made, kinds = draw_size(fitting_sizes(strategy), rng), strategy, {}
    else:
        size = int(rng.integers(2, 5))
        made, kinds = pair.left(size), {"kinds": pair.kinds}
    starters = int(rng.integers(1, size + 1)) if pair is None else size
    work = (pair.batches, 0.0, False, False) if pair is not None else _work(rng, carries)
    schedule = Schedule(made.spec(), size, starters, int(rng.integers(2**31)), (), *work)
    heals = pair is not None or rng.random() < 0.5  # of a strategy's schedules, half will do for that
    schedule, error, player = explore(schedule, made, rng, events, heals=heals, **kinds)
    if error is None:
        error = _compare(schedule, player, pair, size)
    done.schedules += 1
    done.events += player.events if player is not None else 0
    done.kinds.update(choice.kind for choice in schedule.choices)
    for composition in made.compositions:
        done.pairs.update(combinations(sorted(part.name for part in composition.parts), 2))
    done.failures += error is not None
    done.first_error = done.first_error or (f"{type(error).__name__}: {error}" if error is not None else "")
    if error is not None and shrinks and form(error) not in done.forms:
        done.forms.add(form(error))
        done.findings.append(_finding(schedule, made, error, pair, size))


def _work(rng: np.random.Generator, carries: bool) -> tuple[tuple[int, ...], float | None, bool, bool]:
    """Return the workers' batches, the momentum if vectors are simulated, and flags for NaN and ties."""
    batches, momentum = _BATCHES[int(rng.integers(len(_BATCHES)))], 0.5 * float(rng.integers(2))
    wrong = bool(rng.random() < 0.1)
    return batches, momentum if carries else None, wrong and carries, bool(rng.random() < _TIES)


def _compare(schedule: Schedule, player: Player | None, pair: Pair | None, size: int) -> Exception | None:
    """Play a schedule of a pair again with the equal strategy, and compare."""
    assert player is not None
    if pair is None:
        return None
    try:
        what = differ(player, play(schedule, pair.right(size)), pair.versions(size))
    except Exception as error:  # the other one fails where this one did not
        return error
    return BrokenContract(what) if what else None


def _finding(
    schedule: Schedule, made: AnyStrategy, error: Exception, pair: Pair | None, size: int
) -> Finding:
    def failure(shorter: Schedule) -> Exception | None:
        try:
            player = play(shorter, made)
        except Exception as found:
            return found
        return _compare(shorter, player, pair, size)

    def fails(shorter: Schedule) -> bool:
        found = failure(shorter)
        return found is not None and form(found) == form(error)

    small = shrink(schedule, fails)
    last = failure(small) or error
    return Finding(small, f"{type(last).__name__}: {last}", form(error), as_test(small, last))


def run_campaign(
    schedules: int,
    seed: int = 0,
    events: int = 80,
    names: tuple[str, ...] = (),
    processes: int | None = None,
    progress: Callable[[Campaign], None] | None = None,
) -> Campaign:
    """Play `schedules` schedules (rounded up to whole blocks), and return their coverage and failures.

    Parameters
    ----------
    schedules : int, >= 1
    seed : int
    events : int
        Of each schedule, before the faults end.
    names : tuple of str
        Strategies of the catalogue; compositions are drawn from all parts if empty.
    processes : int or None
        All cores if None. The same schedules are played whatever their number.
    progress : callable or None
        Called with the campaign so far.
    """
    for name in names:
        make_strategy(name)  # refused before anything starts
    blocks = range(-(-schedules // BLOCK))
    tasks = [blocks[i : i + _BLOCKS_PER_TASK] for i in range(0, len(blocks), _BLOCKS_PER_TASK)]
    done, began = Campaign(), time.perf_counter()
    for part in _parts(tasks, (seed, events, names), processes or cores()):
        done.add(part)
        done.seconds = time.perf_counter() - began
        if progress is not None:
            progress(done)
    return done


def _parts(tasks: list[range], about: tuple[int, int, tuple[str, ...]], processes: int) -> Iterator[Campaign]:
    if processes == 1 or len(tasks) == 1:
        yield from (_run_task(task, *about) for task in tasks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(tasks)), context, end_with_parent) as pool:
        futures = [pool.submit(_run_task, task, *about) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run_task(task: range, seed: int, events: int, names: tuple[str, ...]) -> Campaign:
    done = Campaign()
    for number in task:
        done.add(run_block(seed, number, events, names, done.forms))
    return done


__all__ = ["Campaign", "Finding", "run_block", "run_campaign"]
