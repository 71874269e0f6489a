"""Build a run from its specification: data, shards, model, engine, trainer and server."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from psbench.arrays import Integers
from psbench.clusters import Profile
from psbench.core import ClusterView, Engine, EventLog
from psbench.core.parts import Selection
from psbench.core.rounding import largest_remainder
from psbench.core.selection import ByNeighbourhood, KnownOfData, SampleGroups
from psbench.core.wire_size import WireSize
from psbench.data import Dataset
from psbench.data.several import Several
from psbench.data.shipment import Shipment
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.optimization.losses import Loss
from psbench.optimization.optimizer import Optimizer
from psbench.optimization.suitability import blind_to_absence
from psbench.seeds import Streams
from psbench.sharding import ShardingReport, label_counts, measure_data
from psbench.strategies.stragglers.dual_binary_search import CHUNKS_HELD
from psbench.training.chooser import check_choices, check_neighbourhoods, checked_groups
from psbench.training.device import device_of, for_device
from psbench.training.evaluator import Evaluator
from psbench.training.memory import check_data
from psbench.training.model import FlatModel
from psbench.training.network import network_of
from psbench.training.server import Server, kept_vectors
from psbench.training.trainer import Trainer, why_blind


@dataclass(frozen=True)
class Workload:
    """A data set cut into shards, and a model at its starting point.

    Attributes
    ----------
    model : the network in host memory; what computes is `computing`
    loss : what is minimised
    buffers : those of the starting point
    shards : one int64 array of training indices a worker; empty list in timing-only mode
    batch_sizes : samples per step of each worker at the beginning; they sum to the global batch
    sharding_report : what the sharding did and how long it took; None in timing-only mode
    groups : the neighbourhoods that selections go by, by what divides the samples
    """

    experiment: Experiment
    streams: Streams
    profile: Profile
    data: Dataset
    model: FlatModel
    loss: Loss
    buffers: Tensor
    shards: Sequence[Integers]
    batch_sizes: Sequence[int]
    sharding_report: ShardingReport | None = None
    groups: dict[str, SampleGroups] = field(default_factory=dict)

    @classmethod
    def build(
        cls, experiment: Experiment, sent: Shipment | None = None, *, whole_run: bool = True
    ) -> Workload:
        """Load and divide the data, and build the model.

        Parameters
        ----------
        experiment : Experiment
        sent : Shipment or None
            The data with its shards, in a process that was sent them and cannot load them.
        whole_run : bool
            False in a process that has one role of a run, or whose run is on other machines than
            `experiment.has_scheduler` says: memory is checked for this process alone.

        Raises
        ------
        DataError, ParameterError
            If the data cannot be had, does not fit the model, is too small for the batch or a worker's shard,
            or has no validation part, or no classes, although a stop or switch rule needs them.
        """
        streams = Streams(experiment.seed)
        profile = experiment.cluster.profile()
        data = experiment.data.load(streams) if sent is None else sent.dataset()
        _check_fit(experiment, data)
        whole_run &= not experiment.has_scheduler
        if whole_run:
            check_data(experiment, data)
        network = network_of(experiment, data, streams, whole_run=whole_run)
        shards: Sequence[Integers] = []
        report = None
        if sent is not None:
            shards = sent.shards
        elif not experiment.timing_only:
            rng = streams.generator("sharding")
            division, report = measure_data(experiment.sharding, data, profile.num_workers, rng)
            shards = division.shards
        model = network.model
        for composition in experiment.strategy.compositions:
            composition.placement.ranges(model.layout)  # refuses servers that would hold nothing
            composition.communication.fragments(model.layout)  # refuses more fragments than tensors
        workload = cls(
            experiment=experiment,
            streams=streams,
            profile=profile,
            data=data,
            model=model,
            loss=network.loss,
            buffers=for_device(experiment.device, model.buffers),
            shards=shards,
            batch_sizes=largest_remainder(experiment.batch_size, [1.0] * profile.num_workers),
            sharding_report=report,
            groups={} if sent is None else dict(sent.groups),
        )
        workload._check_memory()
        if whole_run:
            workload._check_selections()
        if network.trial.unused and (blind := workload.blind):
            raise ParameterError(why_blind(blind, f"its {network.trial.unused[0]!r}"))
        return workload

    @property
    def parameters(self) -> Tensor:
        """A copy of the parameters of the starting point.

        They are the model's as long as nothing was loaded into it, which is how a run asks for them: a copy
        kept for later would cost each run the memory of one more model. Afterwards they are drawn again.
        """
        model = self.model
        if model.loaded:
            model = network_of(self.experiment, self.data, self.streams, whole_run=False).model
        return for_device(self.experiment.device, model.parameters)

    @property
    def dataset_size(self) -> int:
        """Number of training samples, for any sharding; one epoch is that many samples."""
        return len(self.data.train_y)

    @property
    def model_bytes(self) -> int:
        """Parameters and buffers on the wire, as 32-bit floats."""
        return 4 * (self.model.num_parameters + self.model.num_buffers)

    @property
    def wire_size(self) -> WireSize:
        """Serialized size of parameters and buffers."""
        return WireSize(self.model.layout, 4 * self.model.num_buffers, shapes=self.model.shapes)

    @cached_property  # found by a trial
    def entry_bytes(self) -> int:
        """Bytes per entry of the model on a server: the parameter, and the state of its updates."""
        aggregation = self.experiment.strategy.compositions[0].aggregation
        return 4 * (1 + self.experiment.optimizer.tensors + kept_vectors(aggregation))

    @property
    def sample_bytes(self) -> int:
        """One training sample on the wire."""
        return self.data.sample_bytes

    @cached_property
    def capacity(self) -> list[int]:
        """Samples that fit in each worker's memory, beside parameters, gradient and optimizer state."""
        placement = self.experiment.strategy.compositions[0].placement
        sizes = self.model.num_parameters, self.entry_bytes // 4 - 1, self.profile.num_workers
        model = placement.worker_bytes(*sizes) + 4 * self.model.num_buffers
        memory = (int(1e9 * gigabytes) for gigabytes in self.profile.memory_gb)
        return [max(0, held - model) // self.sample_bytes for held in memory]

    def _check_memory(self) -> None:
        """Raise if a worker's memory cannot hold the strategy's chunks of data."""
        sized = any(c.stragglers.sizes_chunks for c in self.experiment.strategy.compositions)
        for worker, held in enumerate(self.capacity if sized else ()):
            if held < CHUNKS_HELD:
                raise ParameterError(
                    f"cluster {self.profile.name!r}: the {self.profile.memory_gb[worker]:g} GB of worker "
                    f"{worker} are too little for the model and two samples; increase memory_gb, or use a "
                    "smaller "
                    "model"
                )

    def _check_selections(self) -> None:
        """Reject a selection that cannot choose, and warn of workers without some neighbourhood."""
        for composition in self.experiment.strategy.compositions:
            selection = composition.selection
            if not selection.chooses or not self.shards:
                continue
            known = self.known_of_data(selection)
            if known.groups is not None:
                check_neighbourhoods(selection, known.groups, self.shards)
            check_choices(selection, self.shards, self.batch_sizes, self.streams, known)

    def engine(self, log: EventLog | None, make: Callable[..., Engine] = Engine) -> Engine:
        """Return a new engine for the experiment; `make` is called as `Engine` is."""
        experiment = self.experiment
        view = ClusterView(
            num_workers=self.profile.num_workers,
            dataset_size=self.dataset_size,
            global_batch=experiment.batch_size,
            epochs=experiment.stop.epochs,
            capacity=self.capacity,
            rate=experiment.worker_optimizer.rate,
            rng=self.streams.generator("strategy"),
        )
        sizes = self.batch_sizes
        strategy, plateau = experiment.strategy, experiment.plateau
        size = self.wire_size
        return make(strategy, view, batch_sizes=sizes, wire_size=size, log=log, plateau=plateau)

    @cached_property
    def optimizers(self) -> tuple[Optimizer, Optimizer]:
        """The servers' optimizer, and the optimizer of workers that take local steps."""
        outer = self.experiment.optimizer
        inner = self.experiment.inner_optimizer or outer
        return self._of_model(outer), self._of_model(inner)

    def _of_model(self, optimizer: Optimizer) -> Optimizer:
        if optimizer.per_tensor:
            optimizer = optimizer.of_tensors(self.model.shapes)
        if not optimizer.is_grouped:
            return optimizer
        of_each = [torch.full((math.prod(shape),), len(shape) > 1) for shape in self.model.shapes]
        return optimizer.of_entries(torch.cat(of_each))

    def server(self, make: Callable[..., Server] = Server) -> Server:
        """Return a new server at the model's starting point; `make` is called as `Server` is."""
        experiment = self.experiment
        aggregation = experiment.strategy.compositions[0].aggregation
        batch, optimizer = experiment.batch_size, self.optimizers[0]
        shapes = self.model.shapes
        return make(self.parameters, self.buffers, optimizer, batch, aggregation, shapes=shapes)

    @cached_property
    def computing(self) -> FlatModel:
        """The model on the device for gradients; its values change during computation.

        Raises
        ------
        ParameterError
            If that is a GPU, and there is none.
        """
        device = device_of(self.experiment.device)
        if device == self.model.device:
            return self.model
        return FlatModel(self.model.module, self.model.changed_buffers, device, self.model.precision)

    @property
    def blind(self) -> str:
        """The component that would treat a missing gradient as zeros; empty if there is none."""
        return blind_to_absence(self.experiment.strategy, self.experiment.optimizer)

    def trainer(self, make: Callable[..., Trainer] = Trainer) -> Trainer:
        ordered, model = self.experiment.sharding.ordered, self.computing
        loss, clip = self.loss.on(model.device), self.experiment.worker_optimizer.clip
        return make(model, self.data, self.shards, self.streams, ordered, loss, clip, self.blind)

    def known_of_data(self, selection: Selection) -> KnownOfData:
        """Return a selection's information about the training set.

        Raises
        ------
        ParameterError, UnknownName
            If its neighbourhoods cannot be found.
        """
        data = self.data
        classes = data.num_classes if data.task == "classification" else 0
        return KnownOfData(self.groups_of(selection), classes, self._classes_of, data.column)

    def _classes_of(self, samples: Integers) -> Integers:
        found: Integers = self.data.train_y[torch.from_numpy(samples)].numpy()
        return found

    def groups_of(self, selection: Selection) -> SampleGroups | None:
        """Return the neighbourhoods of a selection that uses them, computed once."""
        if not isinstance(selection, ByNeighbourhood):
            return None
        kind, found = selection.neighbourhoods, self.groups
        if repr(kind) not in found:
            made = kind.groups(self.data, self.streams.generator("neighbourhoods"))
            found[repr(kind)] = checked_groups(kind.name, made)
        return found[repr(kind)]

    def _neighbourhoods(self) -> dict[str, Any] | None:
        """Return how the samples of each shard divide into the selection's neighbourhoods, as plain data.

        None without neighbourhoods, and where compositions have different ones.
        """
        asked = [each.selection for each in self.experiment.strategy.compositions]
        kinds = {repr(each.neighbourhoods): each for each in asked if isinstance(each, ByNeighbourhood)}
        if len(kinds) != 1 or not self.shards:
            return None
        groups = self.groups_of(next(iter(kinds.values())))
        assert groups is not None
        counts = label_counts(self.shards, groups.train, len(groups.names))
        return {"names": list(groups.names), "shards": counts.tolist(), "whole": groups.counts.tolist()}

    def evaluator(self) -> Evaluator:
        model, metrics = self.computing, self.experiment.metrics
        loss = self.loss.on(model.device)
        asked = [c.selection for c in self.experiment.strategy.compositions if c.selection.reads_evaluations]
        groups = next((found for each in asked if (found := self.groups_of(each)) is not None), None)
        val_groups = None if groups is None else (groups.val, len(groups.names))
        return Evaluator(model, self.data, self.streams, loss=loss, metrics=metrics, groups=val_groups)

    def _servers(self) -> list[dict[str, Any]]:
        """Return the contents of each server, for each composition with more than one."""
        return [
            {"composition": composition.name, **composition.placement.balance(self.model.layout)}
            for composition in self.experiment.strategy.compositions
            if composition.placement.num_servers > 1
        ]

    def facts(self) -> dict[str, Any]:
        """Return the facts about the workload that a saved run holds, as plain data."""
        strata, names = self.data.strata
        inputs = self.data.train_x
        counts = label_counts(self.shards, strata, len(names)) if self.shards else None
        return {
            "num_workers": self.profile.num_workers,
            "dataset_size": self.dataset_size,
            "global_batch": self.experiment.batch_size,
            "num_parameters": self.model.num_parameters,
            "model_bytes": self.model_bytes,
            "layout": [list(tensor) for tensor in self.model.layout],
            "shapes": [list(shape) for shape in self.model.shapes],
            "servers": self._servers(),
            "entry_bytes": self.entry_bytes,
            "sample_bytes": self.sample_bytes,
            "capacity": self.capacity,
            "task": self.data.task,
            "inputs": self.data.input_layout,
            "input_names": list(inputs.names if isinstance(inputs, Several) else ()),
            "num_outputs": self.data.num_outputs,
            "changed_buffers": list(self.model.changed_buffers),
            "classes": list(names),
            "sharding": None if self.sharding_report is None else asdict(self.sharding_report),
            "label_counts": None if counts is None else counts.tolist(),
            "class_counts": np.bincount(strata, minlength=len(names)).tolist() if self.shards else [],
            **({"neighbourhoods": found} if (found := self._neighbourhoods()) else {}),
            "speeds": [float(speed) for speed in self.profile.speed],
        }


def _check_fit(experiment: Experiment, data: Dataset) -> None:
    if data.task == "regression" and (rule := experiment.reads_accuracy):
        raise ParameterError(
            f"{rule}: the targets of data {data.name!r} are numbers, so there is no accuracy; "
            "use stop.patience, or stop.tolerance"
        )
    reader = experiment.reads_validation
    if reader and not len(data.val_y):
        raise ParameterError(f"{reader} needs validation data, but data {data.name!r} has none")
    size = len(data.train_y)
    if size < experiment.batch_size and not experiment.timing_only:
        raise ParameterError(
            f"batch_size: {experiment.batch_size} samples, but data {data.name!r} has only {size} to train on"
        )
