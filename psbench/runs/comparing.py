"""Compare runs, or run experiments and compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from psbench.core.target import Aim, target_of
from psbench.errors import ParameterError, UnknownName, naming
from psbench.experiment import Experiment
from psbench.results.comparison import Comparison, comparison_of
from psbench.results.equal import check_equal
from psbench.results.run import Run


def compare(
    runs: Iterable[Run | Experiment],
    *,
    seeds: int = 1,
    target: Aim = None,
    baseline: str | None = None,
    test: bool = False,
    equal: str | None = None,
    done: Callable[[Run], None] | None = None,
) -> Comparison:
    """Compare runs, or run experiments and compare them.

    Parameters
    ----------
    runs : iterable of Run or Experiment
        Runs that differ in their seed only are taken together; one that is given twice counts once. An
        experiment is run with `seeds` seeds, from its own on.
    seeds : int, >= 1
    target : float, mapping or text, optional
        For the time to target: a validation accuracy, 0 to 1, or `{"metric": "f1", "at_least": 0.9}`, as a
        text "f1 >= 0.9". By default what all were to reach (`stop.target` or `target_accuracy`), else
        the highest accuracy that every run reached, if all have the same data.
    baseline : str, optional
        Label that speed-ups refer to; by default the slowest of All-Reduce and BSP, or the first.
    test : bool
        Whether to say which differences from the baseline are real: paired over seeds, with the interval and
        the p-value of each, by Holm's correction over the strategies.
    equal : "bytes", "time", "samples" or "updates", optional
        Compares what each run had learnt when it had used as much of that as the run that used least: each is
        cut after its last evaluation within it.
    done : callable, optional
        Called with each run as it ends.

    Raises
    ------
    ParameterError
        If there is nothing to compare, or too few seeds to `test`.
    UnknownName
        If there is no such baseline, or an experiment does not evaluate the target's metric.
    """
    if seeds < 1:
        raise ParameterError(f"compare: seeds = {seeds}; give at least 1")
    if isinstance(runs, Run | Experiment):
        raise ParameterError("compare: give a list of runs or experiments, such as [mine, other]")
    aim = target_of(target)  # refuses what is none, before anything is run
    runs = list(runs)
    for item in runs:
        if not isinstance(item, Run | Experiment):
            raise ParameterError(
                f"compare: give runs and experiments, not {item!r:.40} ({type(item).__name__})"
            )
        if aim is not None and isinstance(item, Experiment):
            item.check_target(aim, "compare's target")
    if test and seeds < 2 and any(isinstance(item, Experiment) for item in runs):
        raise ParameterError(f"compare: a test pairs runs by their seed; give seeds >= 2, not {seeds}")
    if equal is not None:
        check_equal([item.experiment if isinstance(item, Run) else item for item in runs], equal)
    titles = [item.title for item in runs if isinstance(item, Experiment)]
    # a label begins with the title; that of a run that is over is found with the others'
    are_new = 0 < len(titles) == len(runs)
    if baseline is not None and are_new and not baseline.startswith(tuple(titles)):
        raise UnknownName("baseline", baseline, titles)
    finished = []
    for item in runs:
        if isinstance(item, Run):
            finished.append(item)
            continue
        from psbench.runs.execution import run  # with torch, which runs that are over do without

        for seed in range(item.seed, item.seed + seeds):
            with naming(f"{item.title}, seed {seed}"):
                finished.append(run(item.but(seed=seed)))
            if done is not None:
                done(finished[-1])
    return comparison_of(finished, target=target, baseline=baseline, test=test, equal=equal)
