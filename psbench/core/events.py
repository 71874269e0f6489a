"""Events: reports of a backend to the engine, logged in the order of handling.

`notebooks/site/glossary.md` defines push, vote and report.

Events are plain data and carry no tensors: a `Push` is a handle, its payload stays in the backend.
They are never changed (frozen dataclasses would enforce it, at 3.8 times the cost).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(slots=True)
class Push:
    """A worker has sent the result of its steps and waits for an answer.

    `base_version` is the version the work started from; `steps` mini-batches and `samples` examples went into
    it. Of a push of some entries, the engine counts `base_version` back from the present version by the
    updates of these entries since the worker was sent them, so that the difference is its staleness.
    `compute_s` and `send_s` (seconds) and `loss` (mean over its samples) describe it for the log; a part may
    read only what it declares in `reads`, and finds that in `stats`. `overlapping`: the worker goes on
    computing while it waits for the answer. `fragment`: which entries it carries, of the `fragments` that the
    communication part declares; -1 for all. The engine sets it. `setting`: that of the worker's codec.
    """

    id: int
    worker: int
    ticket: int
    base_version: int
    samples: int
    steps: int = 1
    bytes: int = 0
    compute_s: float = 0.0
    send_s: float = 0.0
    loss: float = float("nan")
    stats: dict[str, float] | None = None
    overlapping: bool = False
    fragment: int = -1
    setting: int = -1


@dataclass(slots=True)
class Vote:
    """A worker votes with a value and waits for a release to `step` or to `push`.

    `samples` went into the steps since its last message, which took `compute_s` seconds. Released to step,
    it keeps them; released to push, they are in its push.
    """

    worker: int
    ticket: int
    value: float
    samples: int = 0
    compute_s: float = 0.0


@dataclass(slots=True)
class Report:
    """A worker reports statistics and does not wait."""

    worker: int
    ticket: int
    stats: dict[str, float]


@dataclass(slots=True)
class Join:
    """A worker has joined."""

    worker: int


@dataclass(slots=True)
class Leave:
    """A worker has left or failed; its computation is lost."""

    worker: int
    reason: str = "left"


@dataclass(slots=True)
class Timer:
    """A timer has expired; `composition_id` is the composition that set it."""

    key: str
    composition_id: int = 0


@dataclass(slots=True)
class Measured:
    """The numbers requested by a `Measure`."""

    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Evaluated:
    """The model of `version` was evaluated at the end of `epoch`; `values` as `val_loss`."""

    epoch: int
    version: int
    values: dict[str, float]


#: statistic of the push with whose arrival a collective operation ends: how long that took, seconds
COLLECTIVE = "collective_s"


@dataclass(slots=True)
class SwitchRequested:
    """The user asked to switch now; `to` is the composition's index, None for the next one."""

    to: int | None = None


Event: TypeAlias = Push | Vote | Report | Join | Leave | Timer | Measured | Evaluated | SwitchRequested
