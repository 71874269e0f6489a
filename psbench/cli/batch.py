"""Several experiments or several saved runs at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from psbench.errors import DataError, SpecError
from psbench.experiment import Experiment
from psbench.results.identity import check_folder, new_run_id
from psbench.results.run import Run
from psbench.runs.search import Search, find_fraction
from psbench.training.workload import Workload


def named(files: Sequence[Path], experiments: Sequence[Experiment]) -> list[Experiment]:
    """Give experiments of the same title their files' names, so that each has a folder of its own.

    Raises
    ------
    SpecError
        If two are still called the same, or a name cannot be that of a folder.
    """
    titles = [experiment.title for experiment in experiments]
    found = [
        one if one.name or titles.count(one.title) == 1 else one.but(name=file.stem)
        for file, one in zip(files, experiments, strict=True)
    ]
    for file, one in zip(files, found, strict=True):
        if any(other is not one and other.title == one.title for other in found):
            raise SpecError(
                f"{file}: another specification is called {one.title!r} too; give it another name"
            )
        if Path(one.title).name != one.title:
            raise SpecError(f"{file}: the name {one.title!r} cannot be that of a folder")
    return found


def folder_of(experiment: Experiment, out: Path) -> Path:
    """Return the folder of one of several runs, by its name and seed."""
    return out / f"{experiment.title}-seed{experiment.seed}"


def check_all(experiments: Sequence[Experiment], folders: Sequence[Path], *, overwrite: bool) -> None:
    """Refuse before the first run starts what would end the last one.

    Raises
    ------
    SpecError, DataError
    """
    for folder in folders:
        check_folder(folder, new_run_id(), overwrite=overwrite)
    for experiment in experiments:
        Workload.build(experiment)


def load_all(folders: Sequence[Path]) -> list[Run]:
    """Load saved runs; a folder that is no run may hold runs.

    Raises
    ------
    DataError
    """
    return [Run.load(found) for folder in folders for found in _runs_in(folder)]


class _Stopped(Exception):
    """The run under way was stopped by a signal; the search ends with it, and with that exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def searched(
    experiment: Experiment,
    run: Callable[[Experiment, Path | None, str], tuple[Run, int]],
    *,
    folder: Path | None,
    overwrite: bool,
    **options: Any,
) -> tuple[Search | None, list[Run], int]:
    """Search with progress; return what was found, all runs, and the exit code if it was interrupted.

    Raises
    ------
    SpecError, DataError
    """
    if folder is not None:
        for each in (folder, *sorted(folder.glob("*%-seed*"))):
            check_folder(each, new_run_id(), overwrite=overwrite)
    done: list[Run] = []
    seen: list[Search] = []
    total = options["runs"] * (1 + options["halvings"])

    def run_one(planned: Experiment) -> Run:
        share = f"{100 * planned.strategy.rule.fraction:.4g}%"
        label = f"[{len(done) + 1}/{total}] {share} seed {planned.seed}"
        finished, stopped = run(planned, folder and folder / f"{share}-seed{planned.seed}", label)
        done.append(finished)
        if stopped:
            raise _Stopped(stopped)
        return finished

    try:
        return find_fraction(experiment, run_one=run_one, watch=seen.append, **options), done, 0
    except _Stopped as stop:
        return (seen[-1] if seen else None), done, stop.code


def _runs_in(folder: Path) -> list[Path]:
    if (folder / "run.json").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/run.json"))
    if not found:
        raise DataError(f"{folder}: is not the folder of a run (it has no run.json), and holds none")
    return found
