"""The cells of a sweep: every combination of the values of a grid, with every seed."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from psbench.core.strategy import DOMAINS
from psbench.errors import DataError, ParameterError, PsbenchError, SpecError, in_short
from psbench.experiment import Experiment
from psbench.runs.sweeps.cells import Cell
from psbench.strategies import named_spec

#: dotted path -> values to try, as `{"strategy": ["bsp", "asp"], "optimizer.lr": [0.1, 0.2]}`
Grid: TypeAlias = Mapping[str, Sequence[Any]]

#: a grid of more runs is a mistake: each would take a folder and a row of a table
MOST_CELLS = 100_000
#: parameters of a part that its label lists; with more it is numbered
_LISTED = 3
#: what is compared by value where a list has something twice
_PLAIN = (str, int, float, bool, type(None), Mapping, list)
#: fields that a cell's workload does not depend on: cells that differ only in these need one check
_UNCHECKED = ("name", "seed", "evaluate_every", "checkpoint_every", "threads", "scheduler")


def cells_of(experiment: Experiment, grids: Grid | Sequence[Grid], seeds: int | Sequence[int]) -> list[Cell]:
    """Return every cell of one or several grids; a cell in two grids is returned once.

    Parameters
    ----------
    experiment : Experiment
        What every cell has in common.
    grids : mapping of dotted path to values, or a list of such
        The last path varies fastest. A value may be an object, wherever an experiment takes one.
    seeds : int or sequence of int
        How many seeds, from the experiment's own on; or which.

    Raises
    ------
    SpecError
        If a grid, or a cell of it, cannot be.

    Examples
    --------
    >>> grid = {"strategy": ["bsp", "asp"], "batch_size": [64, 128]}
    >>> [cell.setting for cell in cells_of(Experiment(), grid, 1)][1:3]
    ['strategy=bsp, batch_size=128', 'strategy=asp, batch_size=64']
    """
    if not isinstance(experiment, Experiment):
        raise ParameterError(f"sweep: expected an Experiment, got {in_short(experiment)}")
    listed: Sequence[Any] = [grids] if isinstance(grids, Mapping) else grids
    if isinstance(listed, str) or not isinstance(listed, Sequence) or not listed:
        raise ParameterError(f"sweep: expected a mapping of paths to lists of values, got {in_short(grids)}")
    chosen = _seeds(experiment, seeds)
    values = [_values(grid) for grid in listed]
    count = len(chosen) * sum(math.prod(len(tried) for tried in grid.values()) for grid in values)
    if count > MOST_CELLS:
        raise ParameterError(f"sweep: the grid has {count} runs; the limit is {MOST_CELLS}")
    labelled = [{path: _labelled(path, tried) for path, tried in grid.items()} for grid in values]
    return _distinct(_cell(experiment, setting, seed) for setting in _settings(labelled) for seed in chosen)


def _seeds(experiment: Experiment, seeds: Any) -> list[int]:
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds >= 1:
        return list(range(experiment.seed, experiment.seed + seeds))
    listed = list(seeds) if isinstance(seeds, (list, tuple, range)) else []
    if not listed or not all(type(seed) is int and seed >= 0 for seed in listed):
        raise ParameterError(
            f"sweep: seeds: give a number, at least 1, or a list of seeds; got {in_short(seeds)}"
        )
    if len(set(listed)) < len(listed):
        raise ParameterError(f"sweep: seeds: a seed is given twice in {listed}")
    return listed


def _values(grid: Any) -> dict[str, list[Any]]:
    """Return the values of each path as a list."""
    if not isinstance(grid, Mapping):
        raise ParameterError(f"sweep: expected a mapping of paths to lists of values, got {in_short(grid)}")
    if not grid:
        raise ParameterError("sweep: the grid is empty; give a path and its values, as {'strategy': ['bsp']}")
    return {_path(path): _listed(path, values) for path, values in grid.items()}


def _path(path: Any) -> str:
    if not isinstance(path, str) or not all(path.split(".")):
        raise ParameterError(f"sweep: {path!r} is not a path such as 'optimizer.lr'")
    if path == "seed":
        raise ParameterError("sweep: the seed cannot be in the grid; give seeds, a number or a list")
    return path


def _listed(path: str, values: Any) -> list[Any]:
    listed = list(values) if isinstance(values, (list, tuple, range, np.ndarray)) else []
    if not listed:
        raise ParameterError(f"sweep: {path}: expected a list of values, got {in_short(values)}")
    return [value.item() if isinstance(value, np.generic) else value for value in listed]


def _labelled(path: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return the values by label; equal labels are numbered."""
    names = [_label(value) for value in values]
    count, used, seen = Counter(names), Counter[str](), set()
    found: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        if (key := _key_of(value)) in seen:
            raise ParameterError(f"sweep: {path}: {name} is given twice")
        seen.add(key)
        used[name] += 1
        found[name if count[name] == 1 else f"{name} #{used[name]}"] = value
    return found


def _key_of(value: Any) -> str:
    """Return a text that equal values share; an array or another object is equal to itself only."""
    return (
        json.dumps(value, sort_keys=True, default=id) if isinstance(value, _PLAIN) else f"object {id(value)}"
    )


def _label(value: Any) -> str:
    """Return the label of a value in tables.

    >>> _label({"name": "ssp", "staleness_bound": 3}), _label(0.1), _label(dict)
    ('ssp (staleness_bound 3)', '0.1', 'dict')
    """
    if value is None or isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, Mapping):
        rest = {key: below for key, below in value.items() if key != "name"}
        name = str(value.get("name") or "own")
        short = 0 < len(rest) <= _LISTED and not any(isinstance(each, Mapping) for each in rest.values())
        return f"{name} ({', '.join(f'{key} {below}' for key, below in rest.items())})" if short else name
    if isinstance(value, (list, tuple)) and all(isinstance(each, (str, int, float)) for each in value):
        return str(list(value))
    for own in (getattr(value, "name", None), getattr(value, "__name__", None)):
        if isinstance(own, str) and own:
            return own
    return type(value).__name__


def _settings(grids: Iterable[dict[str, dict[str, Any]]]) -> Iterable[dict[str, tuple[str, Any]]]:
    """Return each combination: path -> label and value."""
    for grid in grids:
        for combination in itertools.product(*(tried.items() for tried in grid.values())):
            yield dict(zip(grid, combination, strict=True))


def _cell(experiment: Experiment, setting: Mapping[str, tuple[str, Any]], seed: int) -> Cell:
    parameters = {path: _shown(label, value) for path, (label, value) in setting.items()}
    changes = {path: value for path, (_, value) in setting.items()}
    try:
        return Cell(changed(experiment, changes | {"seed": seed}), parameters)
    except PsbenchError as error:
        words = ", ".join(f"{path}={value}" for path, value in parameters.items())
        raise SpecError(f"sweep: {words}: {error}") from None


def _shown(label: str, value: Any) -> Any:
    """Return numbers as they are, so that tables sort and charts scale them; all else by its label."""
    return value if isinstance(value, (int, float, bool)) else label


def changed(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """Return an experiment with changed values at some dotted paths; its other objects are kept.

    Raises
    ------
    SpecError
    """
    spec = experiment.spec()
    if not any(part in DOMAINS for path in settings for part in path.split(".")):
        spec["strategy"] = named_spec(experiment.strategy)  # whose parameters are found without their part
    below = {path.partition(".")[0] for path in settings if "." in path}
    fields = {name: getattr(experiment, name) for name in type(experiment).model_fields}
    values = {
        name: spec.get(name) if name in below else value
        for name, value in fields.items()
        if value is not None
    }
    return Experiment.from_spec(values, settings)


def _distinct(cells: Iterable[Cell]) -> list[Cell]:
    found: dict[str, Cell] = {}
    for cell in cells:
        found.setdefault(cell.digest, cell)
    return list(found.values())


def check(cells: Iterable[Cell]) -> None:
    """Check that each cell can start: load its data and build its model, as its run will.

    Cells that differ only in what neither depends on are checked once.

    Raises
    ------
    SpecError, DataError
    """
    from psbench.training.build import Workload

    seen = set()
    for cell in cells:
        key = _key(cell.experiment.spec())
        if key in seen:
            continue
        seen.add(key)
        try:
            Workload.build(cell.experiment)
        except PsbenchError as error:
            kind = DataError if isinstance(error, DataError) else SpecError
            raise kind(f"sweep: {cell.label}: {error}") from None


def _key(spec: Mapping[str, Any]) -> str:
    """Return the part of a specification that decides whether a run can start; optimizers by name only."""
    read = {name: value for name, value in spec.items() if name not in _UNCHECKED}
    return json.dumps(read | {"optimizer": spec["optimizer"]["name"]})
