"""`why`: two runs, or two experiments over several seeds, and the causes of their difference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import cloudpickle
import torch

from psbench.causes.answer import Answer, PairAnswer
from psbench.causes.cause import CAUSES, Amount, Cause
from psbench.causes.counterfactual import recompute
from psbench.causes.counting import Watch
from psbench.causes.schedule import CannotAsk, Schedule, Update, check_recomputable
from psbench.causes.shares import Replaced, shares_of, wanted
from psbench.core.log import EventLog
from psbench.errors import ParameterError, UnknownName, in_short, naming
from psbench.experiment import Experiment
from psbench.results.groups import group
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.runs.sweeps.cells import Cell
from psbench.runs.sweeps.display import Display
from psbench.runs.sweeps.execution import Progress, run_cells
from psbench.runs.sweeps.pool import in_processes
from psbench.seeds import Streams
from psbench.system.cores import cores
from psbench.system.parent import end_with_parent
from psbench.system.signals import ignore_ending

#: the place of a question, and a message about it
_Answers: TypeAlias = Generator[tuple[int, tuple[str, Any]], None, None]
Asked: TypeAlias = Run | Experiment | str | Path
#: methods of which two causes must not both have a say
_EXCLUSIVE = ("age", "optimizer", "data", "composition", "end")
#: values that an evaluation may have, besides the experiment's own metrics
_EVALUATED = ("val_loss", "val_accuracy", "train_loss", "train_accuracy")
#: added to a seed for the streams of the placebo
_PLACEBO = 1_000_003


def why(
    run: Asked | Sequence[Asked],
    against: Asked | Sequence[Asked],
    causes: Sequence[str | type[Cause]] | None = None,
    *,
    seeds: int = 5,
    value: str = "val_loss",
    processes: int | None = None,
    folder: str | Path | None = None,
    progress: bool | Callable[[Progress], None] = True,
) -> Answer:
    """Explain the difference between the final values of two runs.

    The schedule of `run` is kept as recorded, and trained again with some causes taken from `against`: such
    as the age that gradients have there, or its effective rate. Every combination of causes is computed, and
    each cause is given its Shapley share of the difference. Differences that none of the causes has are the
    rest, which is shown first. Ask from the finer schedule (ASP) to the coarser (BSP): an age below one
    update of the schedule that is kept cannot be represented in it.

    Parameters
    ----------
    run, against : Run, Experiment, folder of a saved run, or a list of these
        What is explained, and what it is compared with: the same data and model. A list has a run for each
        seed. Of a single one, runs with further seeds are made; a live run needs a list, or `seeds=1`.
    causes : sequence, optional
        Names ("staleness", "rate", "momentum", "samples", "codec", "amount") or classes of your own; by
        default all those that can be asked of these runs.
    seeds : int, >= 1
        One seed is no answer: two orders of mini-batches alone may differ as much.
    value : str
        What is explained, of the last evaluation: `val_loss`, `val_accuracy`, `train_loss`, or a metric.
    processes : int, optional
        How many seeds at a time; by default one a core.
    folder : path, optional
        Where the runs of further seeds are saved; those found there are not made again.
    progress : bool or callable
        Whether progress is shown; or a function that is called with it, which may raise an error in order to
        stop.

    Returns
    -------
    Answer

    Raises
    ------
    CannotAsk
        If the runs do not compare, or a cause that is named cannot be asked of them.
    ParameterError
        If an argument is wrong; before any run is made.

    Examples
    --------
    >>> import psbench as ps
    >>> common = {"cluster": "c2", "stop": {"epochs": 2}, "processes": 1}
    >>> asp, bsp = (ps.Experiment(strategy=name, **common) for name in ("asp", "bsp"))
    >>> answer = ps.why(asp, bsp, seeds=2, processes=1, progress=False)
    >>> sorted(answer.causes)
    ['amount', 'rate', 'staleness']
    """
    asked = _causes(causes)
    if type(seeds) is not int or seeds < 1:
        raise ParameterError(f"why: seeds: expected a number of at least 1, got {in_short(seeds)}")
    mine, other = _read(run), _read(against)
    _check_experiments(_experiment(mine[0]), _experiment(other[0]), asked if causes is not None else ())
    for each in (*mine, *other):
        _check_value(each, value)
    show = Display("why") if progress is True else nullcontext(progress or None)
    with show as screen:
        if isinstance(run, (list, tuple)) or isinstance(against, (list, tuple)):
            pairs = _paired([_made(each) for each in mine], [_made(each) for each in other])
        else:
            pairs = _pairs(mine[0], other[0], seeds, processes, folder, screen)
        for each in itertools.chain(*pairs):
            _check_value(each, value)
        answers = _explain(pairs, asked, causes is not None, value, processes, screen)
    return Answer(value, *_names(*pairs[0]), answers)


def _names(mine: Run, other: Run) -> tuple[str, str]:
    """Return names of the two runs: their titles, or their differences if the titles are equal."""
    titles = mine.experiment.title, other.experiment.title
    labels = tuple(group([mine, other]).runs)
    return labels if titles[0] == titles[1] and len(labels) == 2 else titles


def _causes(given: Sequence[str | type[Cause]] | None) -> list[type[Cause]]:
    """Return the classes of the causes; no two of them may replace the same method."""
    if given is None:
        return list(CAUSES.values())
    found: list[type[Cause]] = []
    for each in [given] if isinstance(given, str) else given:
        if isinstance(each, str):
            if each not in CAUSES:
                raise UnknownName("cause", each, CAUSES)
            each = CAUSES[each]
        if not (isinstance(each, type) and issubclass(each, Cause) and each.name):
            raise ParameterError(f"why: causes: expected names or classes of causes, got {in_short(each)}")
        if each not in found:
            found.append(each)
    if not found:
        raise ParameterError(f"why: causes: name at least one of {', '.join(CAUSES)}")
    for method in _EXCLUSIVE:
        both = [cause.name for cause in found if getattr(cause, method) is not getattr(Cause, method)]
        if len(both) > 1:
            raise ParameterError(
                f"why: causes {both[0]} and {both[1]} both replace `{method}`, so their order would matter; "
                "ask for one of them"
            )
    return found


# -------------------------------------------------------------------- the runs


def _experiment(item: Run | Experiment) -> Experiment:
    return item.experiment if isinstance(item, Run) else item


def _pairs(
    mine: Run | Experiment,
    other: Run | Experiment,
    seeds: int,
    processes: int | None,
    folder: str | Path | None,
    screen: Any,
) -> list[tuple[Run, Run]]:
    """Return the runs of each seed; those that are missing are made."""
    first = [_experiment(each) for each in (mine, other)]
    if first[0].seed != first[1].seed:
        raise CannotAsk(
            f"why: the runs have seeds {first[0].seed} and {first[1].seed}; compare runs of one seed"
        )
    if seeds > 1 and (live := [each.title for each in first if each.backend == "dask"]):
        raise CannotAsk(f"why: {live[0]} is a live run; give a list with the run of each seed, or seeds=1")
    numbers = range(first[0].seed, first[0].seed + seeds)
    cells = [Cell(each.but(seed=seed), {"strategy": each.title}) for seed in numbers for each in first]
    have = {place: each for place, each in enumerate((mine, other)) if isinstance(each, Run)}
    missing = [cell for place, cell in enumerate(cells) if place not in have]
    made = run_cells(
        missing,
        processes=processes,
        folder=None if folder is None else Path(folder),
        on_progress=screen,
    )
    for outcome in made:
        if outcome.error:
            raise CannotAsk(f"why: {outcome.cell.label}: {outcome.error}")
    done = iter(made)
    runs = [have[place] if place in have else next(done).run for place in range(len(cells))]
    return [(runs[place], runs[place + 1]) for place in range(0, len(runs), 2)]


def _read(given: Any) -> list[Run | Experiment]:
    found = []
    for each in given if isinstance(given, (list, tuple)) else [given]:
        item = Run.load(Path(each)) if isinstance(each, (str, Path)) else each
        if not isinstance(item, Run | Experiment):
            raise ParameterError(f"why: expected a run, an experiment or a folder, got {in_short(each)}")
        check_recomputable(_experiment(item))
        found.append(item)
    if not found:
        raise ParameterError("why: expected a run, an experiment or a folder, got an empty list")
    return found


def _made(item: Run | Experiment) -> Run:
    return item if isinstance(item, Run) else run_experiment(item)


def _paired(mine: Sequence[Run], other: Sequence[Run]) -> list[tuple[Run, Run]]:
    by_seed = [{run.experiment.seed: run for run in runs} for runs in (mine, other)]
    seeds = sorted(by_seed[0])
    if len(by_seed[0]) < len(mine) or len(by_seed[1]) < len(other) or seeds != sorted(by_seed[1]):
        raise CannotAsk(
            f"why: the lists have runs of seeds {seeds} and {sorted(by_seed[1])}; give one run of each seed "
            "on both sides"
        )
    return [(by_seed[0][seed], by_seed[1][seed]) for seed in seeds]


def _check_experiments(mine: Experiment, other: Experiment, causes: Sequence[type[Cause]]) -> None:
    """Refuse experiments that cannot be compared, and causes that cannot be tested on them."""
    for field in ("data", "model", "loss"):
        a, b = (each.spec().get(field) for each in (mine, other))
        if a != b:
            raise CannotAsk(f"why: the runs have different {field} ({in_short(a)} and {in_short(b)})")
    empty = [Schedule(Run(each, EventLog(), {})) for each in (mine, other)]
    for cause in causes:
        cause(*empty)


def _check_value(item: Run | Experiment, value: str) -> None:
    """Refuse a value that the last evaluation of a run does not have, or will not have."""
    known = [*_EVALUATED, *_experiment(item).metric_columns]
    if isinstance(item, Run):
        last = next(reversed(item.log.evaluations()), {})
        known = [name for name in last if name not in ("time_s", "epoch", "version")]
    if value not in known:
        title = _experiment(item).title
        raise CannotAsk(
            f"why: {title} has no {value!r} in its last evaluation; it has {', '.join(known) or 'none'}"
        )


# -------------------------------------------------------------------- the answer of each seed


@dataclass(frozen=True)
class _Question:
    mine: Run
    other: Run
    causes: Sequence[type[Cause]]
    #: whether the user named the causes, so that none may be left out
    named: bool
    value: str


def _explain(
    pairs: Sequence[tuple[Run, Run]],
    causes: Sequence[type[Cause]],
    named: bool,
    value: str,
    processes: int | None,
    screen: Callable[[Progress], None] | None,
) -> list[PairAnswer]:
    questions = [_Question(*pair, causes, named, value) for pair in pairs]
    found: dict[int, PairAnswer] = {}
    watch = Watch([f"seed {each.mine.experiment.seed}" for each in questions], screen)
    at_once = min(processes or cores(), len(questions))
    with closing(_side_by_side(questions, at_once) if at_once > 1 else _here(questions, watch)) as answers:
        for place, (kind, content) in answers:
            if kind == "progress":
                watch.moved(place, *(content or (0, 0)))  # of one that has begun nothing is known yet
                continue
            if "error" in content:
                raise content.get("raised") or CannotAsk(f"why: {content['error']}")
            found[place] = content["answer"]
            watch.ended(place)
    return [found[place] for place in range(len(questions))]


def _here(questions: Sequence[_Question], watch: Watch) -> _Answers:
    for place, question in enumerate(questions):
        tell = partial(watch.moved, place)
        yield place, ("done", {"answer": _answer(question, tell)})


def _side_by_side(questions: Sequence[_Question], processes: int) -> _Answers:
    # by cloudpickle, as causes may be classes of a notebook
    return in_processes([cloudpickle.dumps(each) for each in questions], processes, _serve)


def _serve(connection: Connection) -> None:
    """Answer questions that are received through a connection, until it is closed."""
    ignore_ending()
    end_with_parent()

    def send(kind: str, content: Any) -> None:
        connection.send_bytes(cloudpickle.dumps((kind, content)))

    while True:
        try:
            packed = connection.recv_bytes()
            try:
                answer = _answer(cloudpickle.loads(packed), lambda *counts: send("progress", counts))
            except Exception as error:  # a cause of one's own may raise anything
                send("done", {"error": str(error), "raised": error})
            else:
                send("done", {"answer": answer})
        except (EOFError, OSError):  # the process that asked is gone
            return


def _answer(question: _Question, tell: Callable[[int, int], None]) -> PairAnswer:
    mine, other = question.mine, question.other
    with naming(f"seed {mine.experiment.seed}"):
        b = Schedule.of(other)
        a = Schedule.of(mine)
        if not torch.equal(a.workload.parameters, b.workload.parameters):
            raise CannotAsk("why: the runs begin from different models")
        if Amount in question.causes and b.samples > a.samples:
            a = _longer(a, b.samples)
        asked, refused = _bound(question, a, b)
        names, seed = [cause.name for cause in asked], mine.experiment.seed
        runs: dict[Replaced, Run] = {}
        total = len(wanted(names, seed)) + 1  # the placebo

        def value(replaced: Replaced) -> float:
            if replaced not in runs:
                tell(len(runs), total)
                runs[replaced] = recompute(a, [cause for cause in asked if cause.name in replaced])
            return float(_last(runs[replaced], question.value))

        own = value(frozenset())
        again, recorded = runs[frozenset()].parameters, mine.parameters
        same = again is not None and recorded is not None and torch.equal(again, recorded)
        if own != _last(mine, question.value) or not same:
            raise CannotAsk(
                f"why: {mine.experiment.title}: with nothing replaced, its schedule does not give the "
                "recorded model; the run was computed on another machine, or by something that cannot be "
                "recomputed"
            )
        shares = shares_of(names, value, _last(other, question.value), seed)
        tell(len(runs), total)
        placebo = float(_last(recompute(a, [_Reshuffled(a, a)]), question.value)) - own
    return PairAnswer(seed, own, shares, placebo, refused, runs, other)


def _bound(question: _Question, a: Schedule, b: Schedule) -> tuple[list[Cause], Mapping[str, str]]:
    """Return the causes in which the runs differ, and the reasons why others cannot be tested."""
    asked, refused = [], {}
    for kind in question.causes:
        try:
            cause = kind(a, b)
        except CannotAsk as error:
            if question.named:
                raise
            refused[kind.name] = str(error).removeprefix(f"{kind.name}: ")
            continue
        if cause.differs():
            asked.append(cause)
    return asked, refused


def _longer(schedule: Schedule, samples: int) -> Schedule:
    """Return the schedule of the run continued up to so many samples.

    Raises
    ------
    CannotAsk
        If the run is live, or decides otherwise when it is to run for longer.
    """
    run = schedule.run
    if run.experiment.backend == "dask":
        raise CannotAsk("amount: the other run applied more samples, and a live run cannot be continued")
    stop = run.experiment.stop.model_copy(
        update={
            "epochs": samples / run.meta["dataset_size"] + 1,
            **dict.fromkeys(("seconds", "updates", "patience", "target_accuracy", "target", "tolerance")),
        }
    )
    made = Schedule.of(run_experiment(run.experiment.but(stop=stop)))
    for old, new in zip(schedule.updates, made.updates, strict=False):
        if old.apply.lr_scale != new.apply.lr_scale or _made_of(old) != _made_of(new):
            raise CannotAsk("amount: a longer run would decide differently, so the run cannot be continued")
    enough = next(
        place for place, item in enumerate(made.items) if isinstance(item, Update) and item.ends > samples
    )
    return Schedule(made.run, made.items[:enough], stops_at=schedule.samples)


def _made_of(update: Any) -> list[tuple[int, int, int]]:
    return [(push.worker, push.base_version, push.samples) for push in update.apply.pushes]


class _Reshuffled(Cause):
    """The placebo: the same run with other draws of its mini-batches from the same shards."""

    name = "placebo"

    def data(self, recorded: Any) -> Any:
        return replace(recorded, streams=Streams(recorded.streams.seed + _PLACEBO))


def _last(run: Run, value: str) -> Any:
    return run.log.evaluations()[-1][value]
