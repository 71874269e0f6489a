"""What a worker does in a step: a batch in, a gradient out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from psbench.data import Dataset
from psbench.seeds import Streams


class FlatModel:
    """A module whose parameters, gradients and floating buffers are each one flat vector.

    The module's tensors are views, so loading a model is one copy and flattening costs nothing. Whole-number
    buffers (BatchNorm's count of batches) stay with the module: nothing that is trained reads them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        own = list(module.parameters())
        self.parameters = torch.cat([p.detach().reshape(-1) for p in own]).float()
        self.gradient = torch.zeros_like(self.parameters)
        _as_views(own, self.parameters)
        for parameter, part in zip(own, _parts(own, self.gradient), strict=True):
            parameter.grad = part
        stats = [b for b in module.buffers() if b.is_floating_point()]
        self.buffers = torch.cat([b.reshape(-1) for b in stats]) if stats else torch.zeros(0)
        _as_views(stats, self.buffers)

    def load(self, parameters: Tensor, buffers: Tensor) -> None:
        """Take over parameters and buffers; both are copied."""
        self.parameters.copy_(parameters)
        self.buffers.copy_(buffers)


def _parts(tensors: Sequence[Tensor], flat: Tensor) -> list[Tensor]:
    sizes = [t.numel() for t in tensors]
    return [part.view_as(t) for t, part in zip(tensors, flat.split(sizes), strict=True)]


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
    """

    def __init__(
        self, shard: npt.NDArray[np.int64], streams: Streams, worker: int, ordered: bool = False
    ) -> None:
        self._shard, self._streams, self._worker, self._ordered = shard, streams, worker, ordered
        self._passes = 0
        self._left = shard[:0]

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
        rng = self._streams.generator("shuffle", self._worker, self._passes)
        self._passes += 1
        return self._shard if self._ordered else rng.permutation(self._shard)


@dataclass(slots=True)
class Job:
    """A step to be computed: a batch, and the chance its augmentation may use."""

    worker: int
    number: int
    indices: npt.NDArray[np.int64]


@dataclass(slots=True)
class StepResult:
    """What a step gave: the mean gradient and loss of its samples, and the buffers after it."""

    gradient: Tensor
    buffers: Tensor
    loss: float


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

    def __init__(
        self,
        model: FlatModel,
        data: Dataset,
        shards: Sequence[npt.NDArray[np.int64]],
        streams: Streams,
        ordered: bool = False,
    ) -> None:
        self.model, self.data, self._streams = model, data, streams
        self._batches = [Batches(shard, streams, worker, ordered) for worker, shard in enumerate(shards)]
        self._steps = [0] * len(shards)

    def start(self, worker: int, batch_size: int) -> Job:
        """Draw the worker's next batch; costs no arithmetic."""
        number = self._steps[worker]
        self._steps[worker] += 1
        return Job(worker, number, self._batches[worker].take(batch_size))

    def result(self, job: Job, parameters: Tensor, buffers: Tensor) -> StepResult:
        """Compute the step from the given model.

        Shapes
        ------
        parameters : float32, (num_params,)     buffers : float32, (num_buffers,)
        """
        model = self.model
        model.load(parameters, buffers)
        model.gradient.zero_()
        model.module.train()
        where = torch.from_numpy(job.indices)
        inputs, labels = self.data.train_x[where], self.data.train_y[where]
        if self.data.augment is not None:
            inputs = self.data.augment(inputs, self._streams.generator("augment", job.worker, job.number))
        loss = functional.cross_entropy(model.module(inputs), labels)
        torch.autograd.backward(loss)
        return StepResult(model.gradient.clone(), model.buffers.clone(), loss.item())


class Evaluator:
    """Evaluates a model on the validation set and on a fixed sample of the training set.

    Parameters
    ----------
    train_sample : int
        How many training samples the training loss is taken over; the first of a named stream's shuffle.
    """

    BATCH = 1000  # bounds memory; larger is not faster on a CPU

    def __init__(self, model: FlatModel, data: Dataset, streams: Streams, train_sample: int = 2000) -> None:
        self.model, self.data = model, data
        order = streams.generator("evaluation").permutation(len(data.train_y))
        sample = torch.from_numpy(np.sort(order[:train_sample]))
        self._train = (data.train_x[sample], data.train_y[sample])

    def evaluate(self, parameters: Tensor, buffers: Tensor) -> dict[str, float]:
        """Return `train_loss`, and `val_loss` and `val_accuracy` if there is validation data."""
        self.model.load(parameters, buffers)
        self.model.module.eval()
        values = {"train_loss": self._over(*self._train)[0]}
        if len(self.data.val_y):
            values["val_loss"], values["val_accuracy"] = self._over(self.data.val_x, self.data.val_y)
        return values

    def _over(self, inputs: Tensor, labels: Tensor) -> tuple[float, float]:
        loss, right = 0.0, 0
        with torch.inference_mode():
            for x, y in zip(inputs.split(self.BATCH), labels.split(self.BATCH), strict=True):
                logits = self.model.module(x)
                loss += float(functional.cross_entropy(logits, y, reduction="sum"))
                right += int((logits.argmax(1) == y).sum())
        return loss / len(labels), right / len(labels)
