"""Handling of several experiments at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from psbench.errors import SpecError, naming
from psbench.experiment import Experiment
from psbench.results.identity import check_folder, new_run_id
from psbench.training.build import Workload


def named(files: Sequence[Path], experiments: Sequence[Experiment]) -> list[Experiment]:
    """Name experiments with equal titles after their files, so that each has its own folder.

    Raises
    ------
    SpecError
        If two are still called the same, or a name cannot be the name of a folder.
    """
    titles = [experiment.title for experiment in experiments]
    found = [
        one if one.name or titles.count(one.title) == 1 else one.but(name=file.stem)
        for file, one in zip(files, experiments, strict=True)
    ]
    for file, one in zip(files, found, strict=True):
        if any(other is not one and other.title == one.title for other in found):
            raise SpecError(
                f"{file}: another specification is also called {one.title!r}; give it another name"
            )
        if Path(one.title).name != one.title:
            raise SpecError(f"{file}: the name {one.title!r} cannot be the name of a folder")
    return found


def check_all(experiments: Sequence[Experiment], folders: Sequence[Path], *, overwrite: bool) -> None:
    """Raise before the first run if any run would be rejected.

    Raises
    ------
    SpecError, DataError
    """
    for folder in folders:
        check_folder(folder, new_run_id(), overwrite=overwrite)
    for experiment in experiments:
        with naming(experiment.title):
            Workload.build(experiment)
