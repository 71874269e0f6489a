"""Schema of a checkpoint's plain data, for all backends and versions.

Only what is read by name is declared; the state of a part or a codec is restored on trial instead, in
`validation`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    ValidationError,
    create_model,
    model_validator,
)

from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.specification import problem
from psbench.core.view import Status

#: seconds since the run began
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
#: a number that rows of a log have, which are of 32 bits
Number = Annotated[int, Field(ge=0, lt=2**31)]
Column = Annotated[int, Field(ge=-(2**31), lt=2**31)]
CountPair = Annotated[list[Count], Field(min_length=2, max_length=2)]


class _Declared(BaseModel):
    """Plain data with some declared fields; types are not converted."""

    model_config = ConfigDict(extra="allow", strict=True, defer_build=True)


class LogPiece(_Declared):
    """The rows and texts of the log since the checkpoint `after`, which make a log of `rows` rows."""

    after: str = Field(pattern=r"^([^/\\\x00]+\.npz)?$")
    rows: Count
    texts: list[str]


class WorkerViewState(_Declared):
    """A worker as the engine sees it."""

    id: Number
    status: Annotated[int, Field(ge=min(Status), le=max(Status))]
    clock: Number
    base_version: Number
    ticket: Number
    batch_size: Number
    fragment: Annotated[int, Field(ge=-1)] = -1
    fragment_updates: list[Count] = Field(default_factory=list)


class PushState(_Declared):
    """A push that is neither committed nor discarded."""

    id: Number
    worker: Number
    ticket: Number


class ViewState(_Declared):
    """Counters of the engine."""

    num_workers: Annotated[int, Field(ge=1)]
    dataset_size: Annotated[int, Field(ge=1)]
    global_batch: Annotated[int, Field(ge=1)]
    now: Seconds
    version: Number
    samples: Count
    composition: Annotated[int, Field(ge=0, le=1)]
    num_active: Count
    num_computing: Count
    num_voted: Count
    pushes: Number
    committed: Number
    discarded: Number
    cancelled: Number
    min_clock: Number
    workers: list[WorkerViewState]
    pending: list[PushState]
    clock_counts: list[CountPair]
    ranges: list[list[CountPair]]
    rng: dict[str, Any]
    fragment_updates: list[Count] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> ViewState:
        ids = [worker.id for worker in self.workers]
        if len({*ids}) < len(ids) or any(number >= self.num_workers for number in ids):
            raise ValueError(f"worker numbers are {ids}, expected different ones below {self.num_workers}")
        here = [worker for worker in self.workers if worker.status != Status.GONE]
        if {clock: count for clock, count in self.clock_counts if count} != Counter(w.clock for w in here):
            raise ValueError("clock_counts do not match the workers' clocks")
        if here and self.min_clock != min(worker.clock for worker in here):
            raise ValueError(f"min_clock is {self.min_clock}, which is not the lowest clock of the workers")
        counts = Counter(worker.status for worker in here)
        found = len(here), counts[Status.COMPUTING], counts[Status.VOTED]
        if found != (self.num_active, self.num_computing, self.num_voted):
            raise ValueError(
                "the counts of active, computing and voting workers do not match the workers, which give "
                f"{found}"
            )
        if self.samples >= 2**31 * self.dataset_size:
            raise ValueError(f"samples: {self.samples} are too many epochs for a log")
        if late := [worker.id for worker in self.workers if worker.base_version > self.version]:
            raise ValueError(f"worker {late[0]} has a newer version of the model than the server")
        fragments = len(self.fragment_updates)
        for worker in self.workers:
            if worker.fragment >= 0 and not worker.fragment < fragments == len(worker.fragment_updates):
                raise ValueError(f"worker {worker.id} has a fragment that the server does not have")
        if unknown := {push.worker for push in self.pending} - {*ids}:
            raise ValueError(f"a push of worker {min(unknown)} is pending, but that worker is not in the run")
        return self


class EngineState(_Declared):
    """The engine's state, with the state of its parts."""

    view: ViewState
    parts: dict[str, dict[str, Any]]


class LoopState(_Declared):
    """State returned by `WorkerLoop.state_dict`."""

    ticket: Number
    version: Number
    exchanging: bool
    chunk: Number
    fragment: int = -1
    injection: dict[str, Any] = Field(default_factory=dict)
    batch: Number = Field(alias="_batch")
    chunk_orders: dict[str, Any] = Field(alias="_chunk_orders")
    steps: Number = Field(alias="_steps")
    samples: Number = Field(alias="_samples")
    compute_s: float = Field(alias="_compute_s")
    reported_s: float = Field(validation_alias=AliasChoices("_reported_s", "_told_s"))
    loss: float = Field(alias="_loss")
    first_loss: float = Field(0.0, alias="_first_loss")
    push_ordered: bool = Field(validation_alias=AliasChoices("_push_ordered", "_told_to_push"))
    waiting: bool = Field(validation_alias=AliasChoices("_waiting", "_waits"))
    stats: dict[str, Any] = Field(alias="_stats")
    policy: dict[str, Any] = Field(validation_alias=AliasChoices("policy", "half"))


class WorkerPart(_Declared):
    """A worker's position in its shard and its random streams, and the state of its loop, if any."""

    position: Annotated[list[Count], Field(min_length=2, max_length=5)] | None
    used: Count
    loop: LoopState | None = None
    lr: float = 0.0
    next_chunk_s: float | None = None
    since: Literal["release", "push"] | None = None
    orders: dict[str, Any] = Field(default_factory=dict)
    later_orders: list[dict[str, Any]] = Field(default_factory=list)
    num_sent: Count = 0
    ready_s: float | None = None
    messages: Count = 0


def _declared(kind: type) -> type[BaseModel]:
    """Return a model with the fields of an event or action, without type conversion."""
    types = get_type_hints(kind)
    # all but an allowance are columns of a log, or name something that is counted there
    types |= {name: Column for name, type_ in types.items() if type_ is int and name != "allowance"}
    found: dict[str, Any] = {
        each.name: (types[each.name], ... if each.default is MISSING is each.default_factory else None)
        for each in fields(kind)
    }
    return create_model(
        kind.__name__, __config__=ConfigDict(extra="forbid", strict=True, defer_build=True), **found
    )


_ACTIONS = {"release": _declared(act.Release), "tell": _declared(act.Tell), "wake": _declared(act.SetTimer)}
_EVENTS = {
    each.__name__: _declared(each) for each in (ev.Join, ev.Leave, ev.Timer, ev.Evaluated, ev.SwitchRequested)
}


def _check(kinds: dict[str, type[BaseModel]], name: Any, given: dict[str, Any]) -> None:
    """Check that an event or action can have these fields."""
    if name not in kinds:
        raise ValueError(f"{name!r} is not one of {', '.join(kinds)}")
    try:
        kinds[name].model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{name}.{'.'.join(map(str, first['loc']))}: {problem(first)}") from None


def _rest(action: Any) -> Any:
    if isinstance(action, dict):
        _check(_ACTIONS, action.get("do"), {k: v for k, v in action.items() if k != "do"})
    return action


def _event(entry: Any) -> Any:
    if isinstance(entry, list) and len(entry) == 5 and isinstance(entry[4], dict):
        _check(_EVENTS, entry[3], entry[4])
    return entry


#: an action that is still to be performed
Rest = Annotated[dict[str, Any], BeforeValidator(_rest)]
#: time, priority, worker, name, fields
QueuedEvent = Annotated[
    tuple[Seconds, int, int, str, dict[str, Any]], Field(strict=False), BeforeValidator(_event)
]


class NetworkState(_Declared):
    """Times until which the servers' link is busy, and the bytes it has carried."""

    up_free_s: NonNegativeFloat
    down_free_s: NonNegativeFloat
    carried_bytes: NonNegativeFloat


class StopRulesState(_Declared):
    """Counters of the stop rules."""

    evaluations: Count
    every: float | None
    best: float
    since_best: Count


class LinkTimesState(_Declared):
    """Number of latencies that each end has drawn."""

    used: list[Count]


class CodecCounters(_Declared):
    """Number of messages that the servers' stochastic codecs have encoded."""

    draws: int
    aggregates: Count


class CheckpointState(_Declared):
    """The complete state of a run, besides tensors."""

    run_id: str | None = None
    spec: dict[str, Any]
    log: LogPiece
    time_s: Seconds
    engine: EngineState
    rest: list[Rest]
    events: list[QueuedEvent] = Field(validation_alias=AliasChoices("events", "agenda"))
    workers: dict[Annotated[str, Field(pattern=r"^[0-9]+$")], WorkerPart]
    network: NetworkState
    stop_rules: StopRulesState = Field(validation_alias=AliasChoices("stop_rules", "ending"))
    next_push: Number
    ring_ends_s: Seconds
    handed_over_s: Seconds
    evaluated: Annotated[list[int], Field(min_length=2, max_length=2)]
    movement: float
    without_replica: list[Count] = Field(default_factory=list)
    served_s: list[NonNegativeFloat] = Field(default_factory=list)
    link_times: LinkTimesState | None = None
    codecs: CodecCounters | None = Field(None, validation_alias=AliasChoices("codecs", "wire"))

    @model_validator(mode="after")
    def _consistent(self) -> CheckpointState:
        view = self.engine.view
        if unknown := {int(number) for number in self.workers} - {worker.id for worker in view.workers}:
            raise ValueError(f"has a state of worker {min(unknown)}, but the engine has no such worker")
        if (last := max((push.id for push in view.pending), default=-1)) >= self.next_push:
            raise ValueError(f"push {last} is pending, but the next push is numbered {self.next_push}")
        if unknown := {each["worker"] for each in self.rest if "worker" in each} - {
            w.id for w in view.workers
        }:
            raise ValueError(
                f"a message to worker {min(unknown)} is pending, but the engine has no such worker"
            )
        return self
