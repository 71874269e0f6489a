"""What a worker does in a step: a batch in, a gradient out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from psbench.data import Dataset
from psbench.seeds import Streams


class FlatModel:
    """A module whose parameters and floating buffers are each one flat vector.

    The module's tensors are views, so loading a model is one copy and reading it costs nothing. Whole-number
    buffers (BatchNorm's count of batches) stay with the module: nothing that is trained reads them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        named = list(module.named_parameters())
        #: the tensors in the order of the vector: name, entries
        self.layout = [(name, tensor.numel()) for name, tensor in named]
        self._own = own = [tensor for _, tensor in named]
        self.parameters = torch.cat([p.detach().reshape(-1) for p in own]).float()
        _as_views(own, self.parameters)
        stats = [b for b in module.buffers() if b.is_floating_point()]
        self.buffers = torch.cat([b.reshape(-1) for b in stats]) if stats else torch.zeros(0)
        _as_views(stats, self.buffers)

    def load(self, parameters: Tensor, buffers: Tensor) -> None:
        """Take over parameters and buffers; both are copied."""
        self.parameters.copy_(parameters)
        self.buffers.copy_(buffers)

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss as one new vector; a parameter without influence has 0."""
        parts = torch.autograd.grad(loss, self._own, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])


def _parts(tensors: Sequence[Tensor], flat: Tensor) -> list[Tensor]:
    sizes = [t.numel() for t in tensors]
    return [part.view_as(t) for t, part in zip(tensors, torch.split(flat, sizes), strict=True)]


def _as_views(tensors: Sequence[Tensor], flat: Tensor) -> None:
    for tensor, part in zip(tensors, _parts(tensors, flat), strict=True):
        tensor.data = part


class Batches:
    """The mini-batches of one worker: its shard, reshuffled on every pass unless it is `ordered`.

    A batch that reaches the end of a pass goes on with the next, so every batch has the size asked for.

    Parameters
    ----------
    shard : int64 array, (num_samples,)
    streams : Streams
    worker : int
    ordered : bool
    purpose : str
        Whose chance the shuffles are.
    *keys : int
        That tell this stream of chance from the worker's others.
    """

    def __init__(
        self,
        shard: npt.NDArray[np.int64],
        streams: Streams,
        worker: int,
        ordered: bool = False,
        purpose: str = "shuffle",
        *keys: int,
    ) -> None:
        self.shard, self._streams, self._ordered = shard, streams, ordered
        self._purpose, self._keys = purpose, (worker, *keys)
        self.skip_to(0)

    @property
    def taken(self) -> int:
        """How many samples were taken so far."""
        return self._passes * len(self.shard) - len(self._left)

    def skip_to(self, taken: int) -> None:
        """Be where so many samples are taken; passes that are over need not be shuffled."""
        self._left = self.shard[:0]
        self._passes = 0
        if taken:
            self._passes = (taken - 1) // len(self.shard)
            begun = self._passes * len(self.shard)
            self._left = self._next_pass()[taken - begun :]

    def take(self, size: int) -> npt.NDArray[np.int64]:
        """Return the indices of the next `size` samples."""
        taken = self._left[:size]
        self._left = self._left[size:]
        while len(taken) < size:
            fresh = self._next_pass()
            more = size - len(taken)
            taken, self._left = np.concatenate([taken, fresh[:more]]), fresh[more:]
        return taken

    def _next_pass(self) -> npt.NDArray[np.int64]:
        rng = self._streams.generator(self._purpose, *self._keys, self._passes)
        self._passes += 1
        return self.shard if self._ordered else rng.permutation(self.shard)


class Position(NamedTuple):
    """Where a worker is in its data: samples of its shard that were taken, steps and chunks begun.

    `chunk` is the size of the chunk that its batches come from, 0 if they come from the shard, and `of_chunk`
    how many samples of that were taken.
    """

    taken: int
    steps: int
    chunks: int = 0
    chunk: int = 0
    of_chunk: int = 0


@dataclass(slots=True)
class Job:
    """A step to be computed: a batch, and the chance its augmentation may use."""

    worker: int
    number: int
    indices: npt.NDArray[np.int64]


@dataclass(slots=True)
class Batch:
    """What a step computes on: samples that have been read, (size, ...), and their labels, (size,)."""

    inputs: Tensor
    labels: Tensor


@dataclass(slots=True)
class StepResult:
    """What a step gave: the mean gradient and loss of its samples, and the buffers after it."""

    gradient: Tensor
    buffers: Tensor
    loss: float


def loss_of(outputs: Tensor, targets: Tensor, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
    """Return the cross-entropy of logits where targets are classes, the squared error where they are numbers.

    Shapes
    ------
    outputs : float32, (B, classes) or (B, 1)      targets : int64 or float32, (B,)

    Notes
    -----
    The squared error is (output - target)^2; MLlib's linear regression takes half of it.
    """
    if targets.is_floating_point():
        return functional.mse_loss(outputs.squeeze(1), targets, reduction=reduction)
    return functional.cross_entropy(outputs, targets, reduction=reduction)


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
    """

    SCAN = 8192  # samples read at a time; bounds memory

    def __init__(
        self,
        model: FlatModel,
        data: Dataset,
        shards: Sequence[npt.NDArray[np.int64]],
        streams: Streams,
        ordered: bool = False,
    ) -> None:
        self.model, self.data, self._streams, self._ordered = model, data, streams, ordered
        self._shards = [Batches(shard, streams, worker, ordered) for worker, shard in enumerate(shards)]
        self._batches = list(self._shards)
        self._chunks = [0] * len(shards)
        self._steps = [0] * len(shards)

    def assign(self, worker: int, samples: int) -> None:
        """Let a worker's batches come from a chunk: the next `samples` of its shard, or all of it.

        The chunk is gone through again and again, reshuffled on every pass unless shards are `ordered`,
        until the worker is assigned the next one, or all are given back their shards (`unassign`). Call it
        before each step that begins a chunk, as the worker loop's `chunk` says.
        """
        shard = self._shards[worker]
        chunk = shard.shard if samples >= len(shard.shard) else shard.take(samples)
        number = self._chunks[worker]
        self._chunks[worker] += 1
        self._batches[worker] = Batches(chunk, self._streams, worker, self._ordered, "chunk", number)

    def position(self, worker: int) -> Position:
        """Return where a worker is in its data."""
        batches, shard = self._batches[worker], self._shards[worker]
        of_chunk = (0, 0) if batches is shard else (len(batches.shard), batches.taken)
        return Position(shard.taken, self._steps[worker], self._chunks[worker], *of_chunk)

    def go_to(self, worker: int, position: Position) -> None:
        """Let a worker go on from a position: it draws what it drew from there."""
        whole = position.chunk >= len(self._shards[worker].shard)
        self._shards[worker].skip_to(position.taken - (0 if whole else position.chunk))
        self._batches[worker] = self._shards[worker]
        self._chunks[worker], self._steps[worker] = position.chunks, position.steps
        if position.chunk:
            self._chunks[worker] -= 1
            self.assign(worker, position.chunk)
            self._batches[worker].skip_to(position.of_chunk)

    def unassign(self) -> None:
        """Let every worker's batches come from its shard again."""
        self._batches = list(self._shards)

    def start(self, worker: int, batch_size: int) -> Job:
        """Draw the worker's next batch; costs no arithmetic."""
        number = self._steps[worker]
        self._steps[worker] += 1
        return Job(worker, number, self._batches[worker].take(batch_size))

    def result(self, job: Job, parameters: Tensor, buffers: Tensor) -> StepResult:
        """Read the batch and compute the step; see `read` and `compute`."""
        return self.compute(self.read(job), parameters, buffers)

    def read(self, job: Job) -> Batch:
        """Fetch the samples of a batch, decode and augment them: no more than the batch is touched."""
        where = torch.from_numpy(job.indices)
        return self._augmented(job, self.data.train_x[where], self.data.train_y[where])

    def scan(self, job: Job) -> Batch:
        """Read the worker's whole shard, and keep the samples of the batch; gives what `read` gives.

        It is what a MapReduce task does, which has no index: `read` takes the time of the batch, `scan` that
        of the shard, however small the batch is.
        """
        chosen = np.zeros(len(self.data.train_y), dtype=bool)
        chosen[job.indices] = True
        found, inputs, labels = [], [], []
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
        return self._augmented(job, torch.cat(inputs)[at], torch.cat(labels)[at])

    def _pieces(self, worker: int) -> int:
        return -(-len(self._shards[worker].shard) // self.SCAN)

    def _augmented(self, job: Job, inputs: Tensor, labels: Tensor) -> Batch:
        if self.data.augment is not None:
            inputs = self.data.augment(inputs, self._streams.generator("augment", job.worker, job.number))
        return Batch(inputs, labels)

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
        loss = loss_of(model.module(batch.inputs), batch.labels)
        return StepResult(model.gradient(loss), model.buffers.clone(), loss.item())


class Evaluator:
    """Evaluates a model on the validation set and on a fixed sample of the training set.

    Parameters
    ----------
    train_sample : int
        How many training samples the training loss is taken over; the first of a named stream's shuffle.
    test_sample : int
        How many validation samples a worker or a server takes a quick test loss over.
    """

    BATCH = 1000  # bounds memory; larger is not faster on a CPU

    def __init__(
        self,
        model: FlatModel,
        data: Dataset,
        streams: Streams,
        train_sample: int = 2000,
        test_sample: int = 500,
    ) -> None:
        self.model, self.data = model, data
        order = streams.generator("evaluation").permutation(len(data.train_y))
        self._sample = torch.from_numpy(np.sort(order[:train_sample]))
        order = streams.generator("evaluation", 1).permutation(len(data.val_y))
        self._test_sample = torch.from_numpy(np.sort(order[:test_sample]))

    def evaluate(self, parameters: Tensor, buffers: Tensor) -> dict[str, float]:
        """Return `train_loss`, and with validation data `val_loss`, and `val_accuracy` of classes."""
        self.model.load(parameters, buffers)
        self.model.module.eval()
        data = self.data
        values = {"train_loss": self._over(data.train_x, data.train_y, self._sample)[0]}
        if len(data.val_y):
            all_of_them = torch.arange(len(data.val_y))
            values["val_loss"], accuracy = self._over(data.val_x, data.val_y, all_of_them)
            values |= {"val_accuracy": accuracy} if data.task == "classification" else {}
        return values

    def loss(self, which: Literal["train", "test"], parameters: Tensor, buffers: Tensor) -> float:
        """Return the mean loss over a fixed sample of the training or the validation set.

        The first is what AdaComm's F is taken over, the second what Hermes calls the test loss.
        """
        self.model.load(parameters, buffers)
        self.model.module.eval()
        data = self.data
        if which == "train":
            return self._over(data.train_x, data.train_y, self._sample)[0]
        return self._over(data.val_x, data.val_y, self._test_sample)[0]

    def sample_size(self, which: Literal["train", "test"]) -> int:
        """Return how many samples `loss` is taken over."""
        return len(self._sample if which == "train" else self._test_sample)

    def _over(self, inputs: Tensor, labels: Tensor, where: Tensor) -> tuple[float, float]:
        loss, right = 0.0, 0
        with torch.inference_mode():
            for part in torch.split(where, self.BATCH):
                outputs, y = self.model.module(inputs[part]), labels[part]
                loss += float(loss_of(outputs, y, "sum"))
                right += int((outputs.argmax(1) == y).sum())
        return loss / len(where), right / len(where)
