"""What parts answer, and what the engine hands to a backend to perform, in the order given.

`Commit` and `SwitchTo` are the engine's own business and never reach a backend. `Release` and `Apply`
are completed by the engine: a part writes `Release(worker)`, the backend receives it with the version
to load and a ticket. It completes them in place, so a part makes a new one each time and keeps none.
Once they are handed out, actions are never changed.
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
    """Make the next version: own state times `keep`, plus the weighted payloads, by `rule` (aggregation).

    `rule` names a function of `server_math`. `lr_scale` multiplies the optimizer's rate
    (`protocols` 0.3), `momentum_scale` its momentum (a switch may reduce it), and `epoch` places the update
    in the rate's schedule; the engine fills in these, and `version`, the one that this update makes.
    """

    pushes: Sequence[Push]
    weights: Sequence[float]
    rule: str = "gradient"
    keep: float = 1.0
    lr_scale: float = 1.0
    version: int = -1
    epoch: float = 0.0
    momentum_scale: float = 1.0


@dataclass(slots=True)
class Release:
    """Go on: take a `step`, or, after a vote, `push`.

    The engine adds `load`, the version the worker starts from; `send`, whether anything must travel
    (a worker that already holds that version is not sent it again, nor one whose steps are its own);
    `aggregate`, whether that is the last commit's aggregate, to be applied by the worker, rather than the
    model; `ticket`, which every message back repeats; `epoch`, which places the worker's own steps in the
    rate's schedule; and the `orders` of the other parts.
    """

    worker: int
    then: Literal["step", "push"] = "step"
    orders: Orders = field(default_factory=dict)
    load: int = -1
    send: bool = True
    ticket: int = -1
    aggregate: bool = False
    epoch: float = 0.0


@dataclass(slots=True)
class Hold:
    """Not yet; stands until a later `Release` and is not repeated."""

    worker: int
    reason: str


@dataclass(slots=True)
class Cancel:
    """What the worker computes is void; it now waits and must be answered in the same call."""

    worker: int


@dataclass(slots=True)
class Drop:
    """Do without a worker for now: what it computes is void, and it counts as gone until readmitted.

    Takes effect once the other actions of the answer are performed, a release of that worker among them.
    The last worker stays. Those that were dropped are taken back should it leave, and at a hand-over.
    """

    worker: int
    reason: str


@dataclass(slots=True)
class Readmit:
    """Take a dropped worker back; to the parts it joins. Takes effect as late as a `Drop`."""

    worker: int


@dataclass(slots=True)
class Discard:
    """Drop a push."""

    push: Push
    reason: str


@dataclass(slots=True)
class Tell:
    """Orders for a worker that is not waiting; read between two steps."""

    worker: int
    orders: Orders


@dataclass(slots=True)
class Measure:
    """Numbers from tensors, please: `needs` maps a name to a push id or None.

    Names: `model_loss` and `train_loss` (of the current version, on fixed samples of the validation and
    the training set), `candidate_loss` (of the model that a push proposes), `distance_sq` (squared
    distance from the current version to the one that a push started from) and `server_load` (seconds that a
    server was busy serving since it was asked last, or since parameters moved; after the colon its number).
    Otherwise what follows a colon in a name only tells several of a kind apart (`distance_sq:7`). A part
    declares the kinds in `measures`. A loss is taken over so many `samples`, chosen once; 0 leaves the number
    to the backend.
    """

    domain: str
    needs: dict[str, int | None]
    samples: int = 0


@dataclass(slots=True)
class SetTimer:
    """Send a `Timer(key)` at time `at`, in seconds of the run.

    The engine adds `composition_id`, so that what a part asked for before a hand-over does not wake the
    parts after it.
    """

    at: float
    key: str
    composition_id: int = 0


@dataclass(slots=True)
class Note:
    """A line in the log."""

    text: str


@dataclass(slots=True)
class SwitchTo:
    """Drain, then change to composition `to`; `drain` says what happens to work under way."""

    to: int
    reason: str
    drain: Literal["finish", "cancel"] = "finish"


@dataclass(slots=True)
class Handover:
    """Everybody is idle: carry the model over to composition `to`, and perhaps the optimizer's state."""

    origin: int
    to: int
    reason: str
    forgets_momentum: bool = True
    cost_s: float = 0.0


@dataclass(slots=True)
class Reassign:
    """From now on each server holds these entries: stretches, from (included) to (excluded) (placement).

    The engine withholds what would be sent until no message is under way; then the parameters move, with
    the optimizer's state and what belongs to pushes that wait. The parts go on with what they have concluded:
    to them a withheld worker computes. Nothing comes of it if a switch begins before.
    """

    ranges: Sequence[Sequence[tuple[int, int]]]


Action: TypeAlias = (Commit | Apply | Release | Hold | Cancel | Drop | Readmit) | (
    Discard | Tell | Measure | SetTimer | Note | SwitchTo | Handover | Reassign
)
