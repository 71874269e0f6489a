"""Loss, accuracy and metrics of a model on the validation set and on samples of the training set."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from psbench.data import Dataset
from psbench.errors import ParameterError
from psbench.models.construction import one_line
from psbench.models.drawing import drawing_from
from psbench.seeds import Streams
from psbench.training.accuracy import right_answers
from psbench.training.losses import CROSS_ENTROPY, Loss
from psbench.training.model import FlatModel
from psbench.training.scores import Metric

#: keys of the streams that choose samples
_STREAM: dict[str, tuple[int, ...]] = {"train": (), "test": (1,)}
_NO_METRICS: Mapping[str, Metric] = {}


class Evaluator:
    """Evaluates a model on the validation set and on a fixed sample of the training set.

    Parameters
    ----------
    train_sample : int
        How many training samples the training loss is taken over; the first of a named stream's shuffle.
    test_sample : int
        How many validation samples a test loss is taken over, unless `loss` is given another number.
    loss : Loss
    metrics : mapping of name to Metric
        Evaluated on the validation set.
    """

    BATCH = 1000  # bounds memory; larger is not faster on a CPU
    PARTS = ("train", "val")

    def __init__(
        self,
        model: FlatModel,
        data: Dataset,
        streams: Streams,
        train_sample: int = 2000,
        test_sample: int = 500,
        *,
        loss: Loss = CROSS_ENTROPY,
        metrics: Mapping[str, Metric] = _NO_METRICS,
    ) -> None:
        self.model, self.data = model, data
        self._loss, self._metrics = loss, metrics
        self._streams = streams
        self._usual = {"train": train_sample, "test": test_sample}
        self._samples: dict[tuple[str, int], Tensor] = {}  # by set and size
        self._sample = self._chosen("train", 0)

    def evaluate(self, parameters: Tensor, buffers: Tensor) -> dict[str, float]:
        """Return `train_loss`, and `val_loss` and metrics with validation data; with classes accuracies too.

        `train_loss` and `train_accuracy` are taken over the same fixed sample of the training set. A metric
        goes by `val_` and its name.

        Raises
        ------
        ParameterError
            If a metric cannot be computed.
        """
        values: dict[str, float] = {}
        for part in self.PARTS:
            values |= self.evaluate_part(part, parameters, buffers)
        return values

    def evaluate_part(self, part: str, parameters: Tensor, buffers: Tensor) -> dict[str, float]:
        """Return what `evaluate` finds on one of the `PARTS`; they may be evaluated anywhere."""
        self._load(parameters, buffers)
        return self._on_training() if part == "train" else self._on_validation()

    def _on_training(self) -> dict[str, float]:
        loss, accuracy = self._over(self.data.train_x, self.data.train_y, self._sample)
        return {"train_loss": loss} | ({} if accuracy is None else {"train_accuracy": accuracy})

    def _on_validation(self) -> dict[str, float]:
        data = self.data
        if not len(data.val_y):
            return {}
        outputs: list[Any] | None = [] if self._metrics else None
        loss, accuracy = self._over(data.val_x, data.val_y, torch.arange(len(data.val_y)), outputs)
        values = {"val_loss": loss} | ({} if accuracy is None else {"val_accuracy": accuracy})
        return values | ({} if outputs is None else self._measured(_joined(outputs)))

    def loss(
        self, which: Literal["train", "test"], parameters: Tensor, buffers: Tensor, samples: int = 0
    ) -> float:
        """Return the mean loss over a fixed sample of the training or the validation set.

        The first is what AdaComm's F may be measured on, the second what Hermes calls the test loss.
        `samples` is their number, or as many as there are; 0 is the number given to the evaluator. A larger
        sample has the smaller one in it.
        """
        where = self._chosen(which, samples)
        self._load(parameters, buffers)
        data = self.data
        if which == "train":
            return self._over(data.train_x, data.train_y, where)[0]
        return self._over(data.val_x, data.val_y, where)[0]

    def sample_size(self, which: Literal["train", "test"], samples: int = 0) -> int:
        """Return how many samples `loss` is taken over."""
        return len(self._chosen(which, samples))

    def _load(self, parameters: Tensor, buffers: Tensor) -> None:
        self.model.load(parameters, buffers)
        self.model.module.eval()

    def _chosen(self, which: Literal["train", "test"], samples: int) -> Tensor:
        key = which, samples or self._usual[which]
        if key not in self._samples:
            labels = self.data.train_y if which == "train" else self.data.val_y
            order = self._streams.generator("evaluation", *_STREAM[which]).permutation(len(labels))
            self._samples[key] = torch.from_numpy(np.sort(order[: key[1]]))
        return self._samples[key]

    def _over(
        self, inputs: Tensor, labels: Tensor, where: Tensor, keep: list[Any] | None = None
    ) -> tuple[float, float | None]:
        """Return loss and accuracy over some samples; outputs are added to `keep`, on the CPU."""
        loss, right, targets = 0.0, 0, 0
        device = self.model.device
        with torch.inference_mode(), self._drawing():
            for part in torch.split(where, self.BATCH):
                y = labels[part].to(device)
                outputs = self.model.module(inputs[part].to(device))
                loss += float(self._loss.total(outputs, y))
                found = right_answers(outputs, y)
                right += found or 0
                targets += 0 if found is None else y.numel()
                if keep is not None:
                    keep.append(_on_cpu(outputs))
        return loss / len(where), right / targets if targets else None

    def _drawing(self) -> AbstractContextManager[None]:
        """Have a forward that draws numbers draw the same in every evaluation."""
        if not self.model.draws:
            return nullcontext()
        return drawing_from(self._streams.integer("forward of an evaluation"), self.model.device)

    def _measured(self, outputs: Any) -> dict[str, float]:
        found = {}
        for name, metric in self._metrics.items():
            try:
                found[f"val_{name}"] = metric.value(outputs, self.data.val_y)
            except Exception as error:
                raise ParameterError(
                    f"metric {name!r} cannot be computed from the outputs for the {len(self.data.val_y)} "
                    f"validation samples: {one_line(error)}"
                ) from error
        return found


def _on_cpu(outputs: Any) -> Any:
    return _each(lambda parts: parts[0].cpu(), [outputs])


def _joined(batches: list[Any]) -> Any:
    return _each(torch.cat, batches)


def _each(function: Any, batches: list[Any]) -> Any:
    """Apply a function to the tensors at each place of several outputs of one structure."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {name: _each(function, [batch[name] for batch in batches]) for name in first}
    if isinstance(first, tuple | list):
        found = [_each(function, list(parts)) for parts in zip(*batches, strict=True)]
        return type(first)(*found) if hasattr(first, "_fields") else type(first)(found)
    return function(batches) if isinstance(first, Tensor) and first.dim() else first
