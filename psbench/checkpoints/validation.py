"""Validation of a checkpoint before a run is resumed from it: a damaged one is rejected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.state import CheckpointState
from psbench.core.specification import problem
from psbench.core.stop import Stop
from psbench.errors import DataError, SpecError, in_short, naming
from psbench.experiment import Experiment
from psbench.training.build import Workload
from psbench.training.local_model import EPOCH
from psbench.training.server import AGGREGATION, OPTIMIZER

#: what may change from one part of a run to the next
FREE = (
    *("name", "stop", "backend", "scheduler", "evaluate_every", "checkpoint_every"),
    *("threads", "processes", "device"),
    *("connection", "recovery"),
    "timing_only",  # has a message of its own
)
#: what is wrong with a file that a run without checkpoints has written
ONLY_A_MODEL = (
    "holds only a model, without the state needed to resume; a run with checkpoint_every writes checkpoints"
)
#: what code raises that restores a state which is not one of its own
RESTORING = (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, ArithmeticError)


@contextmanager
def restoring(what: str) -> Iterator[None]:
    """Turn errors while restoring the state of `what` into a `DataError` that names it.

    Raises
    ------
    DataError
    """
    try:
        yield
    except RESTORING as error:
        raise DataError(f"{what}: its state cannot be restored: {type(error).__name__}: {error}") from error


def check(path: Path, checkpoint: Checkpoint, experiment: Experiment) -> None:
    """Raise unless this experiment can be resumed from the checkpoint.

    Raises
    ------
    DataError
        If it is not a whole checkpoint, or its state is not what one consists of.
    SpecError
        If it is of another experiment; names the first field that differs.
    """
    state = checkpoint.state
    if "spec" not in state or "log" not in state:
        raise DataError(f"{path}: {ONLY_A_MODEL}")
    if "engine" not in state or state["engine"] is None:
        raise DataError(
            f"{path}: was written during a measurement and holds only the model; resume from another "
            "checkpoint of that run"
        )
    check_state(path, state)
    _check_experiment(path, state["spec"], experiment)


def check_state(path: Path, state: Mapping[str, Any]) -> None:
    """Raise `DataError` unless plain data is the state of a checkpoint.

    Raises
    ------
    DataError
        Naming the first field that is wrong.
    """
    try:
        CheckpointState.model_validate(state)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        got = "" if isinstance(first["input"], (dict, list)) else f", got {in_short(first['input'])}"
        what = f"{where}: {problem(first)}{got}" if where else problem(first)
        raise DataError(f"{path}: is not the state of a run: {what}") from None


def _check_experiment(path: Path, spec: Mapping[str, Any], experiment: Experiment) -> None:
    # read again, so that fields that were left out have their defaults
    with naming(str(path)):
        before = Experiment.from_spec(spec, where=str(path)).spec()
    now = experiment.spec()
    for field in sorted({*before, *now} - {*FREE}):
        if where := _difference(before.get(field), now.get(field), field):
            free = ", ".join(FREE[:-1])
            raise SpecError(f"{path}: belongs to another experiment: {where}; only these may change: {free}")
    if before.get("timing_only") != now.get("timing_only"):
        raise SpecError(f"{path}: a run with a model cannot be resumed as timing-only, or vice versa")


def _difference(before: Any, now: Any, where: str) -> str:
    """Return the path of the first difference between two values; empty if they are equal."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = sorted({*before, *now}, key=lambda key: (key != "name", key))  # what says most, first
        inner = (_difference(before.get(k), now.get(k), f"{where}.{k}") for k in keys)
        return next(filter(None, inner), "")
    return "" if before == now else f"{where} was {in_short(before)} and is {in_short(now)}"


def check_stop(path: Path, done: Mapping[str, float], before: Mapping[str, Any], now: Stop) -> None:
    """Reject a stop rule that the checkpointed run has already passed.

    Parameters
    ----------
    path : Path
        The checkpoint, or the record that says what is done.
    done : mapping of a stop rule's name to number
        How far the run has come.
    before : mapping
        The stop rules of the run so far: those it has met already are no new ones.
    now : Stop

    Raises
    ------
    SpecError
    """
    for name, number in done.items():
        limit = getattr(now, name)
        if limit is not None and limit != before.get(name) and number > limit:
            raise SpecError(
                f"stop.{name}: {limit:g} is not more than {path} has reached, {number:.6g}; give a larger "
                "value, or name an earlier checkpoint"
            )


def done_in(state: Mapping[str, Any]) -> dict[str, float]:
    """Return the progress of a run at a checkpoint, in the units of stop rules."""
    view = state["engine"]["view"]
    epochs = view["samples"] / view["dataset_size"]
    return {"epochs": epochs, "updates": view["version"], "seconds": state["time_s"]}


def check_against(path: Path, checkpoint: Checkpoint, workload: Workload) -> None:
    """Reject tensors that do not fit the model, and a state that the engine cannot restore.

    Raises
    ------
    DataError
    """
    _check_tensors(path, checkpoint.tensors, workload)
    view = checkpoint.state["engine"]["view"]
    for name, found, expected in (
        ("num_workers", view["num_workers"], workload.profile.num_workers),
        ("dataset_size", view["dataset_size"], workload.dataset_size),
        ("global_batch", view["global_batch"], workload.experiment.batch_size),
    ):
        if found != expected:
            raise DataError(f"{path}: engine.view.{name} is {found}, but the experiment has {expected}")
    with restoring(str(path)):
        workload.engine(None).load_state_dict(checkpoint.state["engine"])


def _check_tensors(path: Path, tensors: Mapping[str, Tensor], workload: Workload) -> None:
    model = workload.model
    shapes = {"parameters": (model.num_parameters,), "buffers": (model.num_buffers,)}
    for name, shape in shapes.items():
        if name not in tensors:
            raise DataError(f"{path}: has no tensor {name!r}")
        if tensors[name].shape != shape:
            raise DataError(
                f"{path}: tensor {name!r} has shape {tuple(tensors[name].shape)}, but the model has {shape}"
            )
    for name, tensor in tensors.items():
        _check_tensor(path, name, tensor, shapes["parameters"])


def _check_tensor(path: Path, name: str, tensor: Tensor, model: tuple[int, ...]) -> None:
    if "/selection/" in name:
        return  # of whatever type a selection keeps
    expected = {"log": torch.uint8, "samples": torch.int64}.get(name.rpartition("/")[2], torch.float32)
    if not tensor.dim() and (name.startswith(AGGREGATION) or "/state/" in name or name.endswith(EPOCH)):
        expected = torch.float64
    if tensor.dtype != expected:
        raise DataError(f"{path}: tensor {name!r} has dtype {tensor.dtype}, expected {expected}")
    if name.startswith((OPTIMIZER, AGGREGATION)) and tensor.shape not in (model, torch.Size([])):
        raise DataError(
            f"{path}: tensor {name!r} has shape {tuple(tensor.shape)}, but the model has {tuple(model)}"
        )
    if name in ("parameters", "buffers") and not bool(tensor.isfinite().all()):
        raise DataError(f"{path}: tensor {name!r} has NaN or infinity")
