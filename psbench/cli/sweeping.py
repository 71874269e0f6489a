"""Reading of `psbench sweep`'s arguments, and execution of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psbench.errors import ParameterError, SpecError, UnknownName
from psbench.experiment import Experiment
from psbench.runs.sweeps.sweep import Sweep, sweep
from psbench.runs.sweeps.table import RESULTS
from psbench.specfile import parse_setting, read_yaml

#: fields of a specification that are the sweep's
_OWN = ("sweep", "seeds")


def read_sweep(
    spec: Path | None, settings: Mapping[str, Any], grid: Sequence[str] | None, seeds: int | None
) -> tuple[Experiment, Any, Any]:
    """Return the experiment, its grid and its seeds; options override the file.

    Raises
    ------
    SpecError
    """
    values = {} if spec is None else read_yaml(spec)
    own = {name: values.pop(name) for name in _OWN if name in values}
    where = "experiment" if spec is None else str(spec)
    experiment = Experiment.from_spec(values, settings, where=where)
    listed = [_parsed(text) for text in grid or ()]
    given = dict(listed)
    if twice := [path for path in given if [name for name, _ in listed].count(path) > 1]:
        raise SpecError(
            f"--grid {twice[0]}: is given twice; give one list, as --grid '{twice[0]}=[..., ...]'"
        )
    grids = _joined(own.get("sweep"), given, where)
    if not grids:
        raise ParameterError(
            f"{where}: there is nothing to sweep over; give --grid 'strategy=[bsp, asp]', or a field "
            "`sweep: {strategy: [bsp, asp]}` in the file"
        )
    return experiment, grids, own.get("seeds", 1) if seeds is None else seeds


def _parsed(text: str) -> tuple[str, Any]:
    try:
        return parse_setting(text)
    except SpecError as error:
        raise SpecError(str(error).replace("--set", "--grid", 1)) from None


def _joined(listed: Any, given: Mapping[str, Any], where: str) -> Any:
    """Return the grids of the file with the paths of the command line in each."""
    if listed is None or not given:
        return given or listed
    if isinstance(listed, Mapping):
        return {**listed, **given}
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        raise ParameterError(
            f"{where}: sweep: expected a mapping of paths to lists, or a list of such mappings"
        )
    return [{**each, **given} for each in listed]


def check_choice(experiment: Experiment, grids: Any, by: str | None, value: str) -> str | None:
    """Return the grid path whose best values are compared, checked before any run; None if there is none.

    Raises
    ------
    UnknownName
        If a path or a result is asked for that there will not be.
    """
    listed = [grids] if isinstance(grids, Mapping) else grids
    paths = list(dict.fromkeys(path for grid in listed if isinstance(grid, Mapping) for path in grid))
    if by is not None and by not in paths:
        raise UnknownName("parameter of the sweep", by, paths)
    if value not in (known := [*RESULTS, *experiment.metric_columns]):
        raise UnknownName("result", value, known)
    return "strategy" if by is None and "strategy" in paths else by


def swept(
    experiment: Experiment, grids: Any, *, processes: int | None, scheduler: str | None, **options: Any
) -> Sweep:
    """Sweep in processes, or as tasks of the cluster at that address.

    Raises
    ------
    SpecError, DataError
    """
    if scheduler is None:
        return sweep(experiment, grids, processes=processes, **options)
    from psbench.backends.dask import client_of

    with client_of(scheduler, experiment.connection) as client:
        return sweep(experiment, grids, processes=processes, client=client, **options)
