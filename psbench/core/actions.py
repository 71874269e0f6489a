"""Actions: the decisions of parts, which a backend performs in the given order.

`notebooks/site/glossary.md` defines commit, release, hold and hand-over.

`Commit` and `SwitchTo` are performed by the engine and never reach a backend. The engine completes `Release`
and `Apply`: a part writes `Release(worker)`, the backend receives it with the version to load and a ticket.
They are completed in place, so a part makes new ones each time and keeps none. A backend never changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from psbench.core.events import Push

Orders: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class Commit:
    """These pushes become the next version (consistency)."""

    pushes: Sequence[Push]


@dataclass(slots=True)
class Apply:
    """Make the next version from these pushes, by the part's `update` (aggregation).

    `weights` and `numbers` are for that method: what the part has decided of each push, and beside.
    `lr_scale` multiplies the optimizer's rate, `momentum_scale` its momentum (a switch may
    reduce it), and `epoch` is where the update is in the rate's schedule; the engine sets these,
    `version`, the one that this update makes, and `fragment`, the entries that it is of (-1: all).
    """

    pushes: Sequence[Push]
    weights: Sequence[float]
    numbers: dict[str, float] = field(default_factory=dict)
    lr_scale: float = 1.0
    version: int = -1
    epoch: float = 0.0
    momentum_scale: float = 1.0
    fragment: int = -1


@dataclass(slots=True)
class Release:
    """Release a worker to take a `step`, or, after a vote, to `push`.

    The engine sets `load`, the version the worker starts from; `send`, whether anything must travel
    (a worker that already holds that version is not sent it again, nor one whose steps are its own);
    `aggregate`, whether that is the last commit's aggregate, to be applied by the worker, rather than the
    model; `ticket`, which every message of the worker repeats; `epoch`, at which the rate's schedule is read
    for the worker's own next step, and `epochs_per_step`, by which it advances with each; `fragment`, the
    entries that are sent, which are those of the worker's last push (-1: all); `allowance`, the samples after
    which the worker pushes although its rule would have it step on: its share of what is left of the run's
    epochs (-1: no limit); and the `orders` of the other parts.
    """

    worker: int
    then: Literal["step", "push"] = "step"
    orders: Orders = field(default_factory=dict)
    load: int = -1
    send: bool = True
    ticket: int = -1
    aggregate: bool = False
    epoch: float = 0.0
    epochs_per_step: float = 0.0
    fragment: int = -1
    allowance: int = -1


@dataclass(slots=True)
class Hold:
    """Hold a worker until a later `Release`; need not be repeated."""

    worker: int
    reason: str


@dataclass(slots=True)
class Cancel:
    """Cancel a worker's computation; the same answer must release or hold the worker."""

    worker: int


@dataclass(slots=True)
class Drop:
    """Exclude a worker until it is readmitted: its current work is discarded, and it counts as gone.

    Performed after the other actions of the answer, among them a release of that worker. The last worker is
    never dropped. If it leaves, and at a hand-over, dropped workers are readmitted.
    """

    worker: int
    reason: str


@dataclass(slots=True)
class Readmit:
    """Readmit a dropped worker; parts see it join. Performed as late as a `Drop`."""

    worker: int


@dataclass(slots=True)
class Discard:
    """Discard a pending push."""

    push: Push
    reason: str


@dataclass(slots=True)
class Tell:
    """Send orders to a worker that computes; read between two steps."""

    worker: int
    orders: Orders


@dataclass(slots=True)
class Measure:
    """Request numbers computed from tensors: `needs` maps a name to a push id or None.

    Names: `model_loss` and `train_loss` (of the current version, on fixed samples of the validation and
    the training set), `candidate_loss` (of the model that a push proposes), `distance_sq` (squared
    distance from the current version to the one that a push started from), `dot` (the scalar product of two
    vectors, whose names follow colons: the id of a push for what it carries, `x` for the parameters, or that
    of a vector in the aggregation's state, which is 0 before its first use; `dot:3:7:0` takes the entries of
    the first tensor of `ClusterView.layout` alone) and `server_load` (seconds that a server was busy since
    the last question, or since parameters moved; its number follows a colon). In other
    names a colon and a suffix distinguish several of a kind (`distance_sq:7`). A part declares the kinds in
    `measures`. `domain` is that of the asking part, whose `on_measured` is called with the numbers. A loss is
    taken over so many `samples`, chosen once; 0 leaves the number to the backend.
    """

    domain: str
    needs: dict[str, int | None]
    samples: int = 0


@dataclass(slots=True)
class SetTimer:
    """Request a `Timer(key)` at time `at`, in seconds of the run.

    The engine sets `composition_id`, so that a timer set before a hand-over does not reach the parts after
    it.
    """

    at: float
    key: str
    composition_id: int = 0


@dataclass(slots=True)
class Note:
    """Write a line in the log."""

    text: str


@dataclass(slots=True)
class SwitchTo:
    """Drain, then change to composition `to`; `drain` is the treatment of work in progress."""

    to: int
    reason: str
    drain: Literal["finish", "cancel"] = "finish"


@dataclass(slots=True)
class Handover:
    """Hand the model over to composition `to`, perhaps with the optimizer's state; all workers are idle."""

    origin: int
    to: int
    reason: str
    forgets_momentum: bool = True
    cost_s: float = 0.0


@dataclass(slots=True)
class Reassign:
    """Assign entries to servers: for each the ranges, start included, stop excluded (placement).

    The engine withholds releases until no message is under way; then the parameters move, with the
    optimizer's state and what belongs to pending pushes. The parts keep their state; to them a worker whose
    release is withheld computes. Void if a switch begins before.
    """

    ranges: Sequence[Sequence[tuple[int, int]]]


@dataclass(slots=True)
class Mix:
    """Replace workers' models by weighted sums of models, simultaneously (aggregation, no server).

    `rows` has for each of these workers the weights by worker, its own included. With `sent` each takes what
    the others sent at the version that it has itself, else their models as they are now. If the workers
    `meet`, all of them wait, add up their models among themselves and are released; else the first alone is,
    and the others go on computing. `push` is the push that this answers, -1 for none; `push_weights` the new
    weights of stochastic gradient push. The engine sets `versions`: how often each of their models has been
    mixed then.
    """

    rows: dict[int, dict[int, float]]
    sent: bool = False
    meet: bool = False
    push: int = -1
    push_weights: dict[int, float] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)


Action: TypeAlias = (Commit | Apply | Release | Hold | Cancel | Drop | Readmit) | (
    Discard | Tell | Measure | SetTimer | Note | SwitchTo | Handover | Reassign | Mix
)
