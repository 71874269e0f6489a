"""Loss, accuracy and metrics of a model on the validation set and on samples of the training set."""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from psbench.arrays import Doubles, Integers
from psbench.core.selection import GROUP_ERROR, GROUP_LOSS
from psbench.data import Dataset
from psbench.data.several import Several
from psbench.errors import ParameterError
from psbench.models.construction import one_line
from psbench.models.rng import drawing_from
from psbench.optimization.losses import CROSS_ENTROPY, Loss, logits_of
from psbench.optimization.scores import Metric
from psbench.seeds import Streams
from psbench.training.accuracy import right_answers, which_right
from psbench.training.device import computed
from psbench.training.model import FlatModel

#: keys of the streams that choose samples
_STREAM: dict[str, tuple[int, ...]] = {"train": (), "test": (1,)}
_NO_METRICS: Mapping[str, Metric] = {}


class EvaluationPart(NamedTuple):
    """Samples `start` to `stop` of a set ("train" or "val") in an evaluation."""

    which: Literal["train", "val"]
    start: int
    stop: int


class Scores(NamedTuple):
    """Results of a part of an evaluation: sums of the loss, correct predictions, and number of targets.

    `counted` is how many samples each sum is of; a loss of a whole set is one of 1. `by_group` has the sums
    of the losses, and of the errors, over the samples of each neighbourhood, if there are some.
    """

    losses: list[float]
    counted: list[float]
    right: int
    targets: int
    metrics: dict[str, float]
    by_group: list[list[float]]


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
        Evaluated on the validation set, or on the gradient of the training loss.
    groups : (int64 array, int) or None
        The neighbourhood of each validation sample, and how many there are, where loss and errors of each are
        wanted.
    """

    BATCH = 1000  # bounds memory; larger is not faster on a CPU

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
        groups: tuple[Integers, int] | None = None,
    ) -> None:
        self.model, self.data, self.groups = model, data, groups
        self._loss = loss
        self._metrics = {name: each for name, each in metrics.items() if not each.of_gradient}
        self._of_gradient = {name: each for name, each in metrics.items() if each.of_gradient}
        self._streams = streams
        self._usual = {"train": train_sample, "test": test_sample}
        self._samples: dict[tuple[str, int], Tensor] = {}  # by set and size
        self._sample = self._chosen("train", 0)

    def evaluate(self, parameters: Tensor, buffers: Tensor) -> dict[str, float]:
        """Return `train_loss`; with validation data `val_loss` and metrics; with classes also accuracies.

        `train_loss`, `train_accuracy` and metrics of the gradient are taken over the same fixed sample of the
        training set. Any other metric goes by `val_` and its name.

        Raises
        ------
        ParameterError
            If a metric cannot be computed.
        """
        self._load(parameters, buffers)
        return self.joined([self._scores(part) for part in self.parts])

    @property
    def parts(self) -> list[EvaluationPart]:
        """The batches or sets of an evaluation, in order; each may be evaluated by any process.

        A set is one part if its forwards draw numbers, which follow one another, or if the loss or metrics
        need all of its outputs, or the gradient over all of it; else each batch is one.
        """
        found = []
        for which, size in (("train", len(self._sample)), ("val", len(self.data.val_y))):
            metrics = self._metrics if which == "val" else self._of_gradient
            of_all = not self._loss.adds_up or bool(metrics)
            is_whole = self.model.draws or of_all
            step = max(1, size) if is_whole else self.BATCH
            found += [EvaluationPart(which, at, min(at + step, size)) for at in range(0, size, step)]
        return found

    def evaluate_part(self, part: EvaluationPart, parameters: Tensor, buffers: Tensor) -> Scores:
        """Return the scores on one of the `parts`."""
        self._load(parameters, buffers)
        return self._scores(part)

    def joined(self, scores: Sequence[Scores]) -> dict[str, float]:
        """Return the result of `evaluate` from the scores of all parts in order."""
        values: dict[str, float] = {}
        for which in ("train", "val"):
            own = [pair for pair in zip(self.parts, scores, strict=True) if pair[0].which == which]
            if not own:
                continue
            values[f"{which}_loss"] = _mean([each for _, each in own])
            if targets := sum(each.targets for _, each in own):
                values[f"{which}_accuracy"] = sum(each.right for _, each in own) / targets
            for _, each in own:
                values |= {f"{which}_{name}": value for name, value in each.metrics.items()}
        scored = zip(self.parts, scores, strict=True)
        of_val = [each.by_group for part, each in scored if part.which == "val"]
        return values | self._by_group(of_val) if self.groups is not None else values

    def _by_group(self, parts: Sequence[list[list[float]]]) -> dict[str, float]:
        """Return loss and error rate of each neighbourhood with samples, from sums over them."""
        assert self.groups is not None
        counts = np.bincount(self.groups[0], minlength=self.groups[1])
        found = {}
        for h in np.flatnonzero(counts):
            loss, errors = (sum(sums[what][h] for sums in parts) / int(counts[h]) for what in (0, 1))
            found[f"{GROUP_LOSS}{h}"] = loss
            if not math.isnan(errors):  # else there are no classes
                found[f"{GROUP_ERROR}{h}"] = errors
        return found

    def _sums_by_group(self, where: Tensor, answers: Any, y: Tensor) -> Doubles:
        """Return the sums of losses and of errors over samples of each neighbourhood."""
        assert self.groups is not None
        own, count = self.groups[0][where.numpy()], self.groups[1]
        losses = self._loss.of_each(answers, self.data.as_given(y)).double().cpu().numpy()
        right, wrong = which_right(answers, y), np.full(len(y), np.nan)
        if right is not None:
            wrong = 1 - right.reshape(len(y), -1).double().mean(1).cpu().numpy()
        sums: Any = [np.bincount(own, each, minlength=count) for each in (losses, wrong)]
        return np.asarray(sums, dtype=np.float64)

    def _scores(self, part: EvaluationPart) -> Scores:
        data, stretch = self.data, slice(part.start, part.stop)
        if part.which == "train":
            where = self._sample[stretch]
            scores = self._over(data.train_x, data.train_y, where, [])
            if not self._of_gradient:
                return scores
            given = self._gradient(where), data.as_given(data.train_y[where])
            found = {name: metric.value(*given) for name, metric in self._of_gradient.items()}
            return scores._replace(metrics=found)
        outputs: list[Any] = []
        where = torch.arange(part.start, part.stop)
        scores = self._over(data.val_x, data.val_y, where, outputs, grouped=self.groups is not None)
        return scores._replace(metrics=self._measured(_joined(outputs))) if self._metrics else scores

    def gradient(self, parameters: Tensor, buffers: Tensor, where: Tensor) -> Tensor:
        """Return the gradient of the mean loss of training samples, with the model in evaluation mode.

        Parameters
        ----------
        where : int64 tensor
            Their indices.
        """
        self._load(parameters, buffers)
        return self._gradient(where)

    def _gradient(self, where: Tensor) -> Tensor:
        """Return the gradient at the model that is loaded, batch by batch where the loss adds up."""
        data, device, model = self.data, self.model.device, self.model
        size = self.BATCH if self._loss.adds_up else max(1, len(where))
        total, counted = torch.zeros(model.num_parameters), 0.0
        with torch.enable_grad(), self._drawing():
            for part in torch.split(where, size):
                answers = computed(model.module, data.train_x[part].to(device), model.precision)
                y = data.as_given(data.train_y[part].to(device))
                if self._loss.adds_up:
                    loss, samples = self._loss.total(answers, y)
                else:
                    loss, samples = self._loss.mean(answers, y), 1.0
                total += model.gradient(loss)
                counted += samples
        return total / counted

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
        inputs, labels = (data.train_x, data.train_y) if which == "train" else (data.val_x, data.val_y)
        return _mean([self._over(inputs, labels, where, [])])

    def sample_size(self, which: Literal["train", "test"], samples: int = 0) -> int:
        """Return the number of samples of `loss`."""
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
        self,
        inputs: Tensor | Several,
        labels: Tensor,
        where: Tensor,
        outputs: list[Any],
        grouped: bool = False,
    ) -> Scores:
        """Return the scores of some samples; append values for metrics and losses over all to `outputs`."""
        losses, counted, right, targets = list[float](), list[float](), 0, 0
        sums: Doubles = np.zeros((2, self.groups[1] if grouped and self.groups is not None else 0))
        device, adds_up = self.model.device, self._loss.adds_up
        # no inference mode: what a forward keeps (a cache, a scripted layer's plan) could not be trained on
        with torch.no_grad(), self._drawing():
            for part in torch.split(where, self.BATCH):
                y = labels[part].to(device)
                answers = computed(self.model.module, inputs[part].to(device), self.model.precision)
                if grouped:
                    sums = sums + self._sums_by_group(part, answers, y)
                found = right_answers(answers, y)
                right += found or 0
                targets += 0 if found is None else y.numel()
                if adds_up:
                    total = self._loss.total(answers, self.data.as_given(y))
                    losses.append(float(total.loss))
                    counted.append(total.samples)
                if self._metrics or not adds_up:
                    outputs.append(_each(lambda parts: parts[0].cpu(), [answers]))
            if not adds_up:
                losses, counted = [self._of_all(outputs, labels[where])], [1.0]
        return Scores(losses, counted, right, targets, {}, sums.tolist())

    def _of_all(self, outputs: list[Any], labels: Tensor) -> float:
        """Return the loss over all batches; its denominator may differ from the number of samples."""
        device = self.model.device
        joined = _each(lambda parts: parts[0].to(device), [_joined(outputs)])
        return float(self._loss.mean(joined, self.data.as_given(labels.to(device))))

    def _drawing(self) -> AbstractContextManager[None]:
        """Seed the forward pass, so that every evaluation draws the same random numbers."""
        if not self.model.draws:
            return nullcontext()
        return drawing_from(self._streams.integer("forward of an evaluation"), self.model.device)

    def _measured(self, outputs: Any) -> dict[str, float]:
        found = {}
        for name, metric in self._metrics.items():
            try:
                given = outputs if metric.of_all else logits_of(outputs)
                found[name] = metric.value(given, self.data.as_given(self.data.val_y))
            except Exception as error:
                raise ParameterError(
                    f"metric {name!r} cannot be computed from the outputs for the {len(self.data.val_y)} "
                    f"validation samples: {one_line(error)}"
                ) from error
        return found


def _mean(scores: Sequence[Scores]) -> float:
    """Return the mean loss over the samples; NaN if no sample counts."""
    count = sum(each for part in scores for each in part.counted)
    # in order: `sum` rounds otherwise from Python 3.12 on
    total = functools.reduce(operator.add, (loss for part in scores for loss in part.losses), 0.0)
    return total / count if count else math.nan


def _joined(batches: list[Any]) -> Any:
    try:
        return _each(torch.cat, batches)
    except RuntimeError as error:
        raise ParameterError(
            f"the outputs for all batches of {Evaluator.BATCH} samples cannot be concatenated for a loss "
            f"or a metric: {one_line(error)}"
        ) from error


def _each(function: Any, batches: list[Any]) -> Any:
    """Apply a function to corresponding tensors of several outputs with the same structure.

    What has no samples, as the loss that a model adds to its outputs, becomes its mean.
    """
    first = batches[0]
    if isinstance(first, Tensor):
        if first.dim():
            return function(batches)
        return torch.stack(batches).mean() if first.is_floating_point() else first
    if isinstance(first, (tuple, list)):
        found = [_each(function, list(parts)) for parts in zip(*batches, strict=True)]
        return type(first)(*found) if hasattr(first, "_fields") else type(first)(found)
    if isinstance(first, Mapping):
        changed: Any = copy.copy(first)  # of its own class, as Hugging Face's is
        for name in first:
            changed[name] = _each(function, [batch[name] for batch in batches])
        return changed
    if hasattr(first, "__dict__") and not callable(first):
        changed = copy.copy(first)
        for name in vars(first):
            object.__setattr__(changed, name, _each(function, [getattr(batch, name) for batch in batches]))
        return changed
    return first
