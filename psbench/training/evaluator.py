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
