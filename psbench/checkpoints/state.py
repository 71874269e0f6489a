"""What the plain data of a checkpoint must be, whichever backend and version wrote it.

Only what is read by name is declared; the state of a part or a codec is restored on trial instead, in
`validation`. Fields that older versions called differently are read under both names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from psbench.core.view import Status

#: seconds since the run began
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
CountPair = Annotated[list[Count], Field(min_length=2, max_length=2)]


class _Declared(BaseModel):
    """Plain data of which some fields are declared; types are not converted."""

    model_config = ConfigDict(extra="allow", strict=True)


class LogPiece(_Declared):
    """The rows and texts of the log since the checkpoint `after`, which make a log of `rows` rows."""

    after: str = Field(pattern=r"^([^/\\\x00]+\.npz)?$")
    rows: Count
    texts: list[str]


class WorkerViewState(_Declared):
    """A worker as the engine sees it."""

    id: Count
    status: Annotated[int, Field(ge=min(Status), le=max(Status))]
    clock: Count
    base_version: Count
    ticket: Count
    batch_size: Count


class PushState(_Declared):
    """A push that is neither committed nor discarded."""

    id: Count
    worker: Count
    ticket: Count


class ViewState(_Declared):
    """What the engine has counted."""

    num_workers: Annotated[int, Field(ge=1)]
    dataset_size: Annotated[int, Field(ge=1)]
    global_batch: Annotated[int, Field(ge=1)]
    now: Seconds
    version: Count
    samples: Count
    composition: Annotated[int, Field(ge=0, le=1)]
    num_active: Count
    num_computing: Count
    num_voted: Count
    pushes: Count
    committed: Count
    discarded: Count
    cancelled: Count
    min_clock: Count
    workers: list[WorkerViewState]
    pending: list[PushState]
    clock_counts: list[CountPair]
    ranges: list[list[CountPair]]
    rng: dict[str, Any]

    @model_validator(mode="after")
    def _consistent(self) -> ViewState:
        ids = [worker.id for worker in self.workers]
        if len({*ids}) < len(ids) or any(number >= self.num_workers for number in ids):
            raise ValueError(f"workers are numbered {ids}, of {self.num_workers}")
        if late := [worker.id for worker in self.workers if worker.base_version > self.version]:
            raise ValueError(f"worker {late[0]} has a newer version of the model than the server")
        if unknown := {push.worker for push in self.pending} - {*ids}:
            raise ValueError(f"a push of worker {min(unknown)} is pending, who is not there")
        return self


class EngineState(_Declared):
    """The engine, with what its parts have concluded."""

    view: ViewState
    parts: dict[str, dict[str, Any]]


class WorkerPosition(_Declared):
    """A worker's place in its shard and its random streams."""

    position: list[int] | None
    used: Count


class Rest(_Declared):
    """An action that is still to be performed."""

    do: Literal["release", "tell", "wake"]


class CheckpointState(_Declared):
    """All that a run needs to go on, beside tensors."""

    run_id: str | None = None
    spec: dict[str, Any]
    log: LogPiece
    time_s: Seconds
    engine: EngineState
    rest: list[Rest]
    events: list[list[Any]] = Field(validation_alias=AliasChoices("events", "agenda"))
    workers: dict[Annotated[str, Field(pattern=r"^[0-9]+$")], WorkerPosition]
    network: dict[str, Any]
    stop_rules: dict[str, float | int] = Field(validation_alias=AliasChoices("stop_rules", "ending"))
    next_push: Count
    ring_ends_s: Seconds
    handed_over_s: Seconds
    evaluated: list[int]
    movement: float

    @model_validator(mode="after")
    def _consistent(self) -> CheckpointState:
        view = self.engine.view
        if unknown := {int(number) for number in self.workers} - {worker.id for worker in view.workers}:
            raise ValueError(f"there is a state of worker {min(unknown)}, whom the engine does not know")
        if (last := max((push.id for push in view.pending), default=-1)) >= self.next_push:
            raise ValueError(f"push {last} is pending, and the next is to be {self.next_push}")
        return self
