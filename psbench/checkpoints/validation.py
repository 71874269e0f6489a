"""What is checked of a checkpoint before a run is resumed from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psbench.checkpoints.file import Checkpoint
from psbench.errors import DataError, SpecError
from psbench.experiment import Experiment

#: what may change from one part of a run to the next
FREE = (
    *("name", "stop", "backend", "scheduler", "evaluate_every", "checkpoint_every", "threads"),
    "timing_only",  # is told in words of its own
)


def check(path: Path, checkpoint: Checkpoint, experiment: Experiment) -> None:
    """Refuse a checkpoint from which this experiment cannot go on.

    Raises
    ------
    DataError
        If it is no whole checkpoint.
    SpecError
        If it is of another experiment; names the first field that differs.
    """
    state = checkpoint.state
    if "spec" not in state or "log" not in state:
        raise DataError(f"{path}: holds a model, and not what a run needs to go on from it")
    if state.get("engine") is None:
        raise DataError(
            f"{path}: was written while numbers were being measured, and holds the model alone; go on from "
            "another checkpoint of that run"
        )
    before, now = state["spec"], experiment.spec()
    for field in sorted({*before, *now} - {*FREE}):
        if where := _difference(before.get(field), now.get(field), field):
            free = ", ".join(FREE[:-1])
            raise SpecError(f"{path}: is of another experiment: {where}; what may change is {free}")
    if before.get("timing_only") != now.get("timing_only"):
        raise SpecError(f"{path}: a run with a model cannot go on without one, nor the other way round")


def _difference(before: Any, now: Any, where: str) -> str:
    """Say where two values differ first; empty if they do not."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = sorted({*before, *now}, key=lambda key: (key != "name", key))  # what says most, first
        inner = (_difference(before.get(k), now.get(k), f"{where}.{k}") for k in keys)
        return next(filter(None, inner), "")
    return "" if before == now else f"{where} was {before!r} and is {now!r}"
