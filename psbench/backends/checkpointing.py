"""Going on from a checkpoint: what both backends read of it, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from psbench.checkpoint import Checkpoint
from psbench.core import actions as act
from psbench.core.actions import Action
from psbench.core.log import ROW, EventLog
from psbench.errors import DataError, SpecError
from psbench.experiment import Experiment

#: what may change from one part of a run to the next
FREE = (
    *("name", "stop", "backend", "scheduler", "evaluate_every", "checkpoint_every", "threads"),
    "timing_only",  # is told in words of its own
)
#: actions that are told to workers or put off; of all others nothing is left when an answer is performed
_LATE: dict[str, type[act.Release] | type[act.Tell] | type[act.SetTimer]] = {
    "release": act.Release,
    "tell": act.Tell,
    "wake": act.SetTimer,
}


def is_late(action: Action) -> bool:
    """Whether an action comes after the model of its answer, and so after a checkpoint of it."""
    return not isinstance(action, (act.Apply, act.Handover, act.Reassign))


def split(actions: Sequence[Action]) -> tuple[Sequence[Action], Sequence[Action]]:
    """Return what makes the model of an answer, and what comes then.

    >>> make, then = split([act.Release(0), act.Apply([], []), act.Release(1)])
    >>> len(make), [release.worker for release in then]
    (2, [1])
    """
    first = 1 + max((i for i, action in enumerate(actions) if not is_late(action)), default=-1)
    return actions[:first], actions[first:]


def written(rest: Iterable[Action]) -> list[dict[str, Any]]:
    """Return as plain data what is still to be performed of an answer."""
    names = {kind: name for name, kind in _LATE.items()}
    return [{"do": names[type(a)]} | asdict(a) for a in rest if type(a) in names]  # type: ignore[index]


def read(rest: Iterable[Mapping[str, Any]], own_steps: bool) -> list[Action]:
    """Return what `written` was given; a worker without a model of its own is sent one in any case."""
    actions = [_LATE[each["do"]](**{k: v for k, v in each.items() if k != "do"}) for each in rest]
    for action in actions:
        if isinstance(action, act.Release) and not own_steps:
            action.send = True
    return list(actions)


def released(rest: Iterable[Action]) -> list[int]:
    """Return the workers that are released."""
    return [action.worker for action in rest if isinstance(action, act.Release)]


def following(epoch: float, every: float | None) -> float:
    """Return the epoch of the checkpoint after this epoch.

    >>> following(1.25, 0.5), following(1.5, 0.5), following(3.0, None)
    (1.5, 2.0, inf)
    """
    return math.inf if every is None else every * (math.floor(epoch / every + 1e-9) + 1)


# -------------------------------------------------------------------- the log


class LogKeeper:
    """Puts a run's log into its checkpoints, to each what has come since the one before.

    Parameters
    ----------
    log : EventLog
    """

    def __init__(self, log: EventLog) -> None:
        self._log, self._rows, self._texts, self._before = log, 0, 0, ""

    def add_to(self, checkpoint: Checkpoint, path: Path) -> None:
        """Add the log to what goes to `path`, as it was with the rows and texts that the checkpoint names."""
        rows, texts = checkpoint.state.pop("logged", (len(self._log), len(self._log.texts)))
        new = self._log.rows(self._rows, rows).tobytes()
        checkpoint.tensors["log"] = torch.from_numpy(np.frombuffer(new, np.uint8).copy())
        checkpoint.state["log"] = {
            "after": self._before,
            "rows": rows,
            "texts": list(self._log.texts[self._texts : texts]),
        }
        self._rows, self._texts, self._before = rows, texts, path.name


def log_of(path: Path, checkpoint: Checkpoint) -> EventLog:
    """Return the log of a run up to a checkpoint, from it and those before it.

    Raises
    ------
    DataError
        If one of those is missing.
    """
    parts = [checkpoint]
    while before := parts[-1].state["log"]["after"]:
        if not (path.parent / before).is_file():
            raise DataError(
                f"{path}: the run's log begins in {before}, which is not beside it; keep the checkpoints of "
                "a run together"
            )
        parts.append(Checkpoint.load(path.parent / before))
    log = EventLog()
    for part in reversed(parts):
        texts = part.state["log"]["texts"]
        log.extend(np.frombuffer(part.tensors["log"].numpy().tobytes(), dtype=ROW), texts)
    return log


# -------------------------------------------------------------------- which checkpoint, and of what


def find(source: str | Path) -> Path:
    """Return the last checkpoint of a run's folder, or the file itself.

    Raises
    ------
    DataError
        If there is none.
    """
    path = Path(source)
    if path.is_file():
        return path
    inside = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    found = sorted(inside.glob("*.npz"))
    if not found:
        raise DataError(
            f"{path}: has no checkpoint to go on from; a run writes them into its output folder at switches "
            "and every `checkpoint_every` epochs"
        )
    return max(found, key=lambda each: _progress(Checkpoint.state_of(each)))


def _progress(state: Mapping[str, Any]) -> tuple[int, float]:
    return state.get("log", {}).get("rows", -1), state.get("time_s", 0.0)


def remove_later(path: Path, folder: Path) -> None:
    """Remove from a folder that a checkpoint is in those that came after it: they will be made again."""
    if folder.is_dir() and path.resolve().parent == folder.resolve():
        progress = _progress(Checkpoint.state_of(path))
        for each in folder.glob("*.npz"):
            if _progress(Checkpoint.state_of(each)) > progress:
                each.unlink()


def home_of(path: Path) -> Path:
    """Return the folder of the run that a checkpoint is of."""
    return path.parent.parent if path.parent.name == "checkpoints" else path.parent


def resume_spec(path: Path) -> dict[str, Any]:
    """Return the specification of a checkpoint's run.

    Raises
    ------
    DataError
        If it has none.
    """
    spec = Checkpoint.state_of(path).get("spec")
    if not isinstance(spec, dict):
        raise DataError(f"{path}: holds a model, and not what a run needs to go on from it")
    return spec


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


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with a prefix to their names."""
    return {prefix + name: value for name, value in tensors.items()}
