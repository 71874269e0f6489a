"""Loss and accuracy of a model on the validation set and on samples of the training set."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from psbench.data import Dataset
from psbench.seeds import Streams
from psbench.training.loss import loss_of
from psbench.training.model import FlatModel

#: keys of the streams that choose samples
_STREAM: dict[str, tuple[int, ...]] = {"train": (), "test": (1,)}


class Evaluator:
    """Evaluates a model on the validation set and on a fixed sample of the training set.

    Parameters
    ----------
    train_sample : int
        How many training samples the training loss is taken over; the first of a named stream's shuffle.
    test_sample : int
        How many validation samples a test loss is taken over, unless `loss` is given another number.
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
        self._streams = streams
        self._usual = {"train": train_sample, "test": test_sample}
        self._samples: dict[tuple[str, int], Tensor] = {}  # by set and size
        self._sample = self._chosen("train", 0)

    def evaluate(self, parameters: Tensor, buffers: Tensor) -> dict[str, float]:
        """Return `train_loss`, and `val_loss` with validation data; with classes the accuracies too.

        `train_loss` and `train_accuracy` are taken over the same fixed sample of the training set.
        """
        self.model.load(parameters, buffers)
        self.model.module.eval()
        data = self.data
        values: dict[str, float] = {}
        values["train_loss"], accuracy = self._over(data.train_x, data.train_y, self._sample)
        values |= {"train_accuracy": accuracy} if data.task == "classification" else {}
        if len(data.val_y):
            all_of_them = torch.arange(len(data.val_y))
            values["val_loss"], accuracy = self._over(data.val_x, data.val_y, all_of_them)
            values |= {"val_accuracy": accuracy} if data.task == "classification" else {}
        return values

    def loss(
        self, which: Literal["train", "test"], parameters: Tensor, buffers: Tensor, samples: int = 0
    ) -> float:
        """Return the mean loss over a fixed sample of the training or the validation set.

        The first is what AdaComm's F may be measured on, the second what Hermes calls the test loss.
        `samples` is their number, or as many as there are; 0 is the number given to the evaluator. A larger
        sample has the smaller one in it.
        """
        where = self._chosen(which, samples)
        self.model.load(parameters, buffers)
        self.model.module.eval()
        data = self.data
        if which == "train":
            return self._over(data.train_x, data.train_y, where)[0]
        return self._over(data.val_x, data.val_y, where)[0]

    def sample_size(self, which: Literal["train", "test"], samples: int = 0) -> int:
        """Return how many samples `loss` is taken over."""
        return len(self._chosen(which, samples))

    def _chosen(self, which: Literal["train", "test"], samples: int) -> Tensor:
        key = which, samples or self._usual[which]
        if key not in self._samples:
            labels = self.data.train_y if which == "train" else self.data.val_y
            order = self._streams.generator("evaluation", *_STREAM[which]).permutation(len(labels))
            self._samples[key] = torch.from_numpy(np.sort(order[: key[1]]))
        return self._samples[key]

    def _over(self, inputs: Tensor, labels: Tensor, where: Tensor) -> tuple[float, float]:
        loss, right = 0.0, 0
        with torch.inference_mode():
            for part in torch.split(where, self.BATCH):
                outputs, y = self.model.module(inputs[part]), labels[part]
                loss += float(loss_of(outputs, y, "sum"))
                right += int((outputs.argmax(1) == y).sum())
        return loss / len(where), right / len(where)
