"""The record of a run, `run.json`: metadata besides the log, and the summary."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeFloat, model_validator

from psbench.core.target import target_of
from psbench.core.typed_data import read_json, typed
from psbench.errors import SpecError
from psbench.terminal import is_shown


def _one_line(text: str) -> str:
    if not is_shown(text):
        raise ValueError("must be one line of text, without control characters")
    return text


Line: TypeAlias = Annotated[str, AfterValidator(_one_line)]
#: no number of a run is larger, and a float has each of these
_LARGEST = 2**53
Count: TypeAlias = Annotated[int, Field(ge=0, le=_LARGEST)]
PositiveCount: TypeAlias = Annotated[int, Field(ge=1, le=_LARGEST)]


class _Declared(BaseModel):
    """Plain data with declared fields for the names that are read; types are not converted."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, defer_build=True)


def _rising(samples: list[tuple[float, float]]) -> list[tuple[float, float]]:
    for before, after in pairwise(samples):
        if after[0] < before[0] or after[1] < before[1]:
            raise ValueError("go back in time, or in CPU seconds")
    return samples


#: seconds of a run, and the CPU seconds of a process until then
_Samples: TypeAlias = Annotated[
    list[Annotated[tuple[NonNegativeFloat, NonNegativeFloat], Field(strict=False)]], AfterValidator(_rising)
]


class _Usage(_Declared):
    """Use of a worker's time."""

    worker: Count
    steps: Count
    read_s: NonNegativeFloat
    compute_s: NonNegativeFloat
    cpu_s: NonNegativeFloat = 0.0
    wall_s: NonNegativeFloat | None = None
    samples: _Samples = []


class _LostUpdates(_Declared):
    """Lost updates that processes with shared memory have counted."""

    written: Count
    lost: float


class _ServerUsage(_Declared):
    """Resource usage of a server's process."""

    server: Count
    cpu_s: NonNegativeFloat
    wall_s: NonNegativeFloat
    samples: _Samples = []


class _Service(_Declared):
    """Service times of servers."""

    message_s: NonNegativeFloat
    byte_s: NonNegativeFloat
    decision_s: NonNegativeFloat


class _Costs(_Declared):
    """Watts and prices of machines."""

    idle_watts: list[NonNegativeFloat]
    busy_watts: list[NonNegativeFloat]
    price_per_hour: list[NonNegativeFloat]
    spot_price_per_hour: list[NonNegativeFloat] | None = None
    server_idle_watts: NonNegativeFloat
    server_busy_watts: NonNegativeFloat
    server_price_per_hour: NonNegativeFloat
    joules_per_byte: NonNegativeFloat
    servers: Annotated[int, Field(ge=0, le=2**16)]
    service: _Service | None = None


class _Neighbourhoods(_Declared):
    """Samples of each neighbourhood, in each shard and in the whole training set."""

    names: list[Line]
    shards: list[list[Count]]
    whole: list[Count]


class _Servers(_Declared):
    """Contents of the servers: lists of counts, and the imbalance of each by name."""

    composition: Line
    imbalance: dict[str, float]

    @model_validator(mode="after")
    def _counted(self) -> _Servers:
        for name in self.imbalance:
            counts = (self.model_extra or {}).get(name)
            whole = isinstance(counts, list) and all(type(each) is int and each >= 0 for each in counts)
            if not (whole and any(counts)):
                raise ValueError(f"{name} is not a list of counts")
        return self


class Facts(_Declared):
    """Results of a run besides its log and its model.

    Metrics and replay cannot do without those that have no default. Backends of other packages and older
    versions leave some of the others out.
    """

    status: Line
    num_workers: PositiveCount
    dataset_size: PositiveCount
    model_bytes: Count
    num_parameters: Count
    layout: list[Annotated[tuple[str, Count], Field(strict=False)]]
    shapes: list[list[Count]] = []
    run_id: Annotated[str, Field(pattern="^[0-9a-f]+$")] | None = None
    name: Line = ""
    strategy: Line = ""
    compositions: list[Line] = []
    backend: Line = ""
    seed: Annotated[int, Field(ge=-_LARGEST, le=2**64)] = 0
    reason: str | None = None
    target_accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    target: dict[str, Any] | None = None
    metrics: dict[Line, bool | None] = {}
    predictions: Any = None
    params_digest: str | None = None
    lr_convention: str | None = None
    versions: dict[str, str | None] = {}
    time_s: NonNegativeFloat = 0.0
    wall_s: NonNegativeFloat | None = None
    global_batch: PositiveCount | None = None
    entry_bytes: Count = 4
    sample_bytes: Count = 0
    capacity: list[Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]] = []
    servers: list[_Servers] = []
    task: str = ""
    input: list[Count] = []
    inputs: list[Any] = []
    input_names: list[str] = []
    num_outputs: Count = 0
    changed_buffers: list[str] = []
    classes: list[str] = []
    label_counts: list[list[Count]] | None = None
    class_counts: list[Count] = []
    neighbourhoods: _Neighbourhoods | None = None
    speeds: list[NonNegativeFloat] = []
    checkpoints: list[str] = []
    lost_workers: list[Count] = []
    costs: _Costs | None = None
    measured_joules: dict[Line, NonNegativeFloat] = {}
    usage: list[_Usage] = []
    server_usage: list[_ServerUsage] = []
    lost_updates: _LostUpdates | None = None
    unanswered: bool = False
    incidents: list[str] = []
    coordinator: dict[str, Any] = {}
    stamps: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Facts:
        if sum(size for _, size in self.layout) != self.num_parameters:
            raise ValueError(f"layout: does not have the {self.num_parameters} parameters of num_parameters")
        if self.model_bytes < 4 * self.num_parameters:
            raise ValueError("model_bytes: is less than the size of its parameters")
        if self.shapes and [math.prod(shape) for shape in self.shapes] != [size for _, size in self.layout]:
            raise ValueError("shapes: do not match the layout")
        per_worker = {"capacity": self.capacity, "label_counts": self.label_counts, "speeds": self.speeds}
        if costs := self.costs:
            names = ("idle_watts", "busy_watts", "price_per_hour", "spot_price_per_hour")
            per_worker |= {f"costs.{name}": getattr(costs, name) for name in names}
        for name, values in per_worker.items():
            if values and len(values) != self.num_workers:
                raise ValueError(f"{name}: has {len(values)} values for {self.num_workers} workers")
        if any(len(row) != len(self.classes) for row in self.label_counts or ()):
            raise ValueError(f"label_counts: does not have a number for each of {len(self.classes)} classes")
        if self.class_counts and len(self.class_counts) != len(self.classes):
            raise ValueError(f"class_counts: does not have a number for each of {len(self.classes)} classes")
        if (found := self.neighbourhoods) and (
            len(found.shards) != self.num_workers
            or any(len(row) != len(found.names) for row in (*found.shards, found.whole))
        ):
            raise ValueError("neighbourhoods: does not have a number for each name and worker")
        if late := [each.worker for each in self.usage if each.worker >= self.num_workers]:
            raise ValueError(f"usage: names worker {late[0]}, but there are {self.num_workers} workers")
        try:
            target_of(self.target)
        except SpecError as error:
            raise ValueError(f"target: {error}") from None
        return self


class _Final(_Declared):
    train_loss: float | None
    train_accuracy: float | None
    val_loss: float | None
    val_accuracy: float | None


class _Staleness(_Declared):
    mean: float | None


class _Summary(_Declared):
    """The fields of a summary that tables of many runs read (`Run.summary`)."""

    status: Line
    final: _Final
    best_val_accuracy: float | None
    time_s: NonNegativeFloat
    wall_s: NonNegativeFloat | None
    epochs: NonNegativeFloat
    updates: Count
    staleness: _Staleness
    idle_fraction: list[float]
    bytes: dict[str, Count]
    warnings: list[str]


class _FactsFile(_Declared):
    meta: Facts


class _RecordFile(_FactsFile):
    summary: _Summary


class _Owned(_Declared):
    run_id: str | None = None


class _OwnedFile(_Declared):
    meta: _Owned


def read_facts(path: Path) -> dict[str, Any]:
    """Return a run's facts, as they were written.

    Raises
    ------
    DataError
        Naming the first field that is wrong.
    """
    meta: dict[str, Any] = _read(path, _FactsFile)["meta"]
    return meta


def read_summary(path: Path) -> dict[str, Any]:
    """Return a run's summary, as it was written.

    Raises
    ------
    DataError
    """
    summary: dict[str, Any] = _read(path, _RecordFile)["summary"]
    return summary


def run_id_in_json(path: Path) -> str | None:
    """Return the identity in a run's record.

    Raises
    ------
    DataError
    """
    return typed(_OwnedFile, read_json(path), path).meta.run_id


def _read(path: Path, kind: type[BaseModel]) -> dict[str, Any]:
    plain: dict[str, Any] = read_json(path)
    typed(kind, plain, path)
    return plain
