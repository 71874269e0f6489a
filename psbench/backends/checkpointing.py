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

from psbench.checkpoints.file import Checkpoint
from psbench.core import actions as act
from psbench.core.actions import Action
from psbench.core.log import EventLog

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


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with a prefix to their names."""
    return {prefix + name: value for name, value in tensors.items()}
