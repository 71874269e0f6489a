"""A worker's step: a mini-batch in, a gradient out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from psbench.arrays import Array, Doubles, Integers
from psbench.core.actions import Orders
from psbench.core.selection import KnownOfData, Selection
from psbench.data import Dataset
from psbench.data.several import Several, joined
from psbench.errors import ParameterError
from psbench.models.rng import drawing_from
from psbench.optimization.absent import absent_entries
from psbench.optimization.clip import Clip
from psbench.optimization.losses import CROSS_ENTROPY, Loss
from psbench.seeds import Streams
from psbench.training.batches import Batches, BatchPosition, samples_at
from psbench.training.chooser import Chooser
from psbench.training.dense_gradient import CheckedGradient, dense_gradient
from psbench.training.device import computed
from psbench.training.each_sample import numbers_of_each, weighted_mean
from psbench.training.mixing import ModelVectors
from psbench.training.model import FlatModel


@dataclass(slots=True)
class StepTask:
    """A step to compute: its batch, and its number, which seeds the augmentation.

    Of a batch that a selection chose, `positions` are those in the worker's shard, `weights` those of the
    samples in the mean, `finds` the numbers of each sample that are wanted, and `looked` tells how many
    samples were computed in order to choose.
    """

    worker: int
    number: int
    indices: Integers
    positions: Integers | None = None
    weights: Doubles | None = None
    finds: tuple[str, ...] = ()
    looked: int = 0


@dataclass(slots=True)
class Batch:
    """The input of a step: samples that have been read, (size, ...), and their labels, (size, ...).

    `seed` is of what the forward draws, as dropout does; for the rest see `StepTask`.
    """

    inputs: Tensor | Several
    labels: Tensor
    seed: int = 0
    weights: Doubles | None = None
    finds: tuple[str, ...] = ()


@dataclass(slots=True)
class StepResult:
    """The result of a step: mean gradient and loss of its samples, and the buffers after it.

    `found` has the numbers of each sample that were wanted.
    """

    gradient: Tensor
    buffers: Tensor
    loss: float
    found: Mapping[str, Array] = field(default_factory=dict)


#: a batch is the worker's own
_NO_INJECTION: Mapping[str, Any] = {}
_NO_ORDERS: Mapping[str, Any] = {}


class Trainer:
    """Computes steps for any of the workers; one at a time.

    Parameters
    ----------
    model : FlatModel
    data : Dataset
    shards : list of int64 arrays
        Indices into the training set, one array a worker.
    streams : Streams
    ordered : bool
        Whether the order within a shard is to be kept (SelDP).
    loss : Loss
    clip : Clip or None
        Limits each gradient.
    blind : str
        What would take a parameter without a gradient for one with zeros; empty: nothing.
    """

    SCAN = 8192  # samples read at a time; bounds memory

    def __init__(
        self,
        model: FlatModel,
        data: Dataset,
        shards: Sequence[Integers],
        streams: Streams,
        ordered: bool = False,
        loss: Loss = CROSS_ENTROPY,
        clip: Clip | None = None,
        blind: str = "",
    ) -> None:
        self.model, self.data, self._streams, self._ordered = model, data, streams, ordered
        self._loss, self._clip, self._blind = loss, clip, blind
        self._shards = [Batches(shard, streams, worker, ordered) for worker, shard in enumerate(shards)]
        self._batches = list(self._shards)
        self._chunks = [0] * len(shards)
        self._steps = [0] * len(shards)
        self._selection: Selection | None = None
        self._known_of_data: KnownOfData | None = None
        self._choosers: dict[int, Chooser] = {}
        self._chooses = False

    def select(self, selection: Selection, known: KnownOfData) -> None:
        """Set the workers' selection; if it is already in use, its memory stays."""
        if selection == self._selection:
            return
        self._selection, self._known_of_data = selection, known
        self._choosers = {}
        self._chooses = selection.chooses

    def _chooser(self, worker: int) -> Chooser:
        """Return the worker's half of the selection, created on first use."""
        if worker not in self._choosers:
            assert self._selection is not None
            assert self._known_of_data is not None
            shard = self._shards[worker].shard
            made = Chooser(self._selection, shard, self._streams, worker, self._known_of_data)
            self._choosers[worker] = made
        return self._choosers[worker]

    def forget(self, worker: int) -> None:
        """Clear a worker's memory of its samples: it has left."""
        chooser = self._choosers.pop(worker, None)
        if chooser is not None:
            self._chooser(worker).memory.taken = chooser.memory.taken

    def assign(self, worker: int, samples: int) -> None:
        """Draw a worker's batches from a chunk: the next `samples` of its shard, or all of it.

        The chunk is gone through again and again, reshuffled on every pass unless shards are `ordered`,
        until the worker is assigned the next one, or all return to their shards (`unassign`). Call it
        before each step that begins a chunk, as the worker loop's `chunk` says.
        """
        shard = self._shards[worker]
        chunk = shard.shard if samples >= len(shard.shard) else shard.take(samples)
        number = self._chunks[worker]
        self._chunks[worker] += 1
        self._batches[worker] = Batches(chunk, self._streams, worker, self._ordered, "chunk", number)

    def position(self, worker: int) -> BatchPosition:
        """Return a worker's position in its data."""
        if self._chooses:
            return BatchPosition(self._chooser(worker).memory.taken, self._steps[worker])
        batches, shard = self._batches[worker], self._shards[worker]
        of_chunk = (0, 0) if batches is shard else (len(batches.shard), batches.taken)
        return BatchPosition(shard.taken, self._steps[worker], self._chunks[worker], *of_chunk)

    def go_to(self, worker: int, position: BatchPosition) -> None:
        """Move a worker to a position; from there it draws the same batches, or chooses from `remember`."""
        if self._chooses:
            self._steps[worker] = position.steps
            self._choosers.pop(worker, None)
            self._chooser(worker).memory.taken = position.taken
            return
        whole = position.chunk >= len(self._shards[worker].shard)
        self._shards[worker].skip_to(position.taken - (0 if whole else position.chunk))
        self._batches[worker] = self._shards[worker]
        self._chunks[worker], self._steps[worker] = position.chunks, position.steps
        if position.chunk:
            self._chunks[worker] -= 1
            self.assign(worker, position.chunk)
            self._batches[worker].skip_to(position.of_chunk)

    def unassign(self) -> None:
        """Draw every worker's batches from its whole shard."""
        self._batches = list(self._shards)

    def remembered(self, worker: int) -> dict[str, Tensor]:
        """Return copies of the memory of a worker's selection."""
        return self._chooser(worker).tensors() if self._chooses else {}

    def remember(self, worker: int, tensors: Mapping[str, Tensor]) -> None:
        """Restore the memory from `remembered`; without tensors a worker has no memory of its samples."""
        if self._chooses and tensors:
            self._chooser(worker).load(tensors)

    def start(
        self,
        worker: int,
        batch_size: int,
        injection: Mapping[str, Any] = _NO_INJECTION,
        orders: Mapping[str, Any] = _NO_ORDERS,
        model: ModelVectors | None = None,
    ) -> StepTask:
        """Draw the worker's next batch; cheap unless a selection computes samples first.

        Parameters
        ----------
        injection : mapping
            `workers`, and how many samples of `each` take the place of some of the worker's own.
        orders : mapping
            Those of the worker's last release, for its selection.
        model : (parameters, buffers) or None
            What the step will be computed from, for a selection that looks at samples.
        """
        number = self._steps[worker]
        self._steps[worker] += 1
        if self._chooses:
            return self._chosen(worker, number, batch_size, injection, dict(orders), model)
        if not injection.get("workers"):
            return StepTask(worker, number, self._batches[worker].take(batch_size))
        others, each = injection["workers"], injection["each"]
        own = self._batches[worker].take(batch_size - each * len(others))
        return StepTask(
            worker, number, np.concatenate([own, *(self._shared(o, number, each) for o in others)])
        )

    def _chosen(
        self,
        worker: int,
        number: int,
        batch_size: int,
        injection: Mapping[str, Any],
        orders: Orders,
        model: ModelVectors | None,
    ) -> StepTask:
        others: Sequence[int] = injection.get("workers", ())
        each = injection["each"] if others else 0
        size = batch_size - each * len(others)
        chooser = self._chooser(worker)
        chooser.memory.step = number  # whatever it remembers: each mini-batch has a stream of its own
        chosen = chooser.choose(size, orders, lambda where: self._look(where, model))
        indices, weights = chosen.indices, chosen.weights
        if others:
            indices = np.concatenate([indices, *(self._shared(other, number, each) for other in others)])
            weights = None if weights is None else np.append(weights, np.ones(batch_size - size))
        assert self._selection is not None
        finds = self._selection.remembers
        return StepTask(worker, number, indices, chosen.positions, weights, finds, chosen.looked)

    def learn(self, job: StepTask, result: StepResult) -> None:
        """Store a step's per-sample values in the worker's selection."""
        if job.positions is not None:
            own = len(job.positions)
            found = {name: values[:own] for name, values in result.found.items()}
            self._chooser(job.worker).learn(job.positions, found)

    def report(self, worker: int) -> dict[str, float]:
        """Return the report of a worker's selection that accompanies a push."""
        return self._chooser(worker).report() if self._chooses else {}

    def _look(self, where: Integers, model: ModelVectors | None) -> dict[str, Array]:
        """Compute samples without training on them."""
        assert self._selection is not None
        assert model is not None
        self.model.load(*model)
        self.model.module.eval()
        found = []
        for part in np.array_split(where, -(-len(where) // self.SCAN)):
            rows = torch.from_numpy(part)
            inputs = self.data.train_x[rows].to(self.model.device)
            labels = self.data.train_y[rows].to(self.model.device)
            with torch.no_grad():
                outputs = computed(self.model.module, inputs, self.model.precision)
            found.append(self._each(outputs, labels, self._selection.remembers))
        return {name: np.concatenate([each[name] for each in found]) for name in found[0]}

    def _each(self, outputs: Any, labels: Tensor, finds: Sequence[str]) -> dict[str, Array]:
        return numbers_of_each(outputs, self.data.as_given(labels), self._loss, finds)

    def _shared(self, worker: int, step: int, count: int) -> Integers:
        shard = self._shards[worker].shard
        rng = self._streams.generator("injection", worker, step)
        return shard[rng.choice(len(shard), count, replace=count > len(shard), shuffle=False)]

    def result(self, job: StepTask, parameters: Tensor, buffers: Tensor) -> StepResult:
        """Read the batch and compute the step; see `read` and `compute`."""
        return self.compute(self.read(job), parameters, buffers)

    def read(self, job: StepTask) -> Batch:
        """Fetch the samples of a batch, decode and augment them, without touching other samples."""
        where = torch.from_numpy(job.indices)
        data = self.data
        return self._augmented(job, samples_at(data.train_x, where), samples_at(data.train_y, where))

    def scan(self, job: StepTask) -> Batch:
        """Read the worker's whole shard, and keep the samples of the batch; returns the same as `read`.

        It is what a MapReduce task does, which has no index: `read` takes the time of the batch, `scan` that
        of the shard, however small the batch is.
        """
        chosen = np.zeros(len(self.data.train_y), dtype=bool)
        chosen[job.indices] = True
        found, labels = [], []
        inputs: list[Any] = []
        for part in np.array_split(self._shards[job.worker].shard, self._pieces(job.worker)):
            where, kept = torch.from_numpy(part), chosen[part]
            x, y = self.data.train_x[where], self.data.train_y[where]
            found.append(part[kept])
            inputs.append(x if kept.all() else x[torch.from_numpy(kept)])
            labels.append(y if kept.all() else y[torch.from_numpy(kept)])
        there = np.concatenate(found)
        place = np.empty(len(chosen), dtype=np.int64)
        place[there] = np.arange(len(there))
        at = torch.from_numpy(place[job.indices])
        return self._augmented(job, joined(inputs)[at], torch.cat(labels)[at])

    def _pieces(self, worker: int) -> int:
        return -(-len(self._shards[worker].shard) // self.SCAN)

    def _augmented(self, job: StepTask, inputs: Any, labels: Tensor) -> Batch:
        if self.data.augment is not None:
            inputs = self.data.augment(inputs, self._streams.generator("augment", job.worker, job.number))
        seed = self._streams.integer("forward", job.worker, job.number) if self.model.draws else 0
        return Batch(inputs, labels, seed, job.weights, job.finds)

    def compute(self, batch: Batch, parameters: Tensor, buffers: Tensor) -> StepResult:
        """Compute a step on a batch from the given model.

        Shapes
        ------
        parameters : float32, (num_params,)     buffers : float32, (num_buffers,)
        """
        model = self.model
        model.load(parameters, buffers)
        if not model.module.training:  # setting it again visits every submodule
            model.module.train()
        if not model.draws:
            return self._step(batch)
        with drawing_from(batch.seed, model.device):
            return self._step(batch)

    @cached_property
    def _gradient(self) -> CheckedGradient:
        whole = self.model.precision is None  # else only autograd computes as autocast does
        return CheckedGradient(dense_gradient(self.model.module, self._loss) if whole else None)

    def _step(self, batch: Batch) -> StepResult:
        model = self.model
        inputs, labels = batch.inputs, batch.labels
        if model.device.type != "cpu":  # data is in host memory, and each call of `to` takes time
            inputs, labels = inputs.to(model.device), labels.to(model.device)
        found: Mapping[str, Array] = {}
        if batch.finds or batch.weights is not None:
            gradient, loss, found = self._of_each(inputs, labels, batch)
        else:
            gradient, loss = self._gradient.compute(inputs, labels, self._by_autograd)
        if self._clip is not None:
            self._clip.apply(gradient)
        return StepResult(gradient, model.buffers, loss, found)

    def _of_each(
        self, inputs: Any, labels: Tensor, batch: Batch
    ) -> tuple[Tensor, float, Mapping[str, Array]]:
        """Return gradient and loss of weighted samples, and the requested values of each sample."""
        outputs = computed(self.model.module, inputs, self.model.precision)
        targets = self.data.as_given(labels)
        if batch.weights is None:
            loss = self._loss.mean(outputs, targets)
        else:
            loss = weighted_mean(outputs, targets, self._loss, batch.weights)
        gradient = self._checked(self.model.gradient(loss))
        return gradient, loss.item(), self._each(outputs, labels, batch.finds)

    def _by_autograd(self, inputs: Any, labels: Tensor) -> tuple[Tensor, float]:
        outputs = computed(self.model.module, inputs, self.model.precision)
        loss = self._loss.mean(outputs, self.data.as_given(labels))
        return self._checked(self.model.gradient(loss)), loss.item()

    def _checked(self, gradient: Tensor) -> Tensor:
        if self._blind and absent_entries(gradient) is not None:
            raise ParameterError(why_blind(self._blind))
        return gradient


def why_blind(blind: str, name: str = "some") -> str:
    """Return the reason why an unused parameter is rejected: momentum or decay would move it."""
    return (
        f"the loss does not depend on {name} parameter, which torch's optimizers then skip, but {blind} "
        "treats its gradient as zeros and would move it by momentum or weight decay; freeze it "
        "(requires_grad_(False)), or use a strategy that sends whole gradients"
    )
