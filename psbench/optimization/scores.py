"""Metrics of the validation set besides loss and accuracy, by name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from psbench.core import Part, parameter
from psbench.optimization.losses import as_vector

if TYPE_CHECKING:
    from torch import Tensor


class Metric(Part):
    """A number from the outputs for the whole validation set and its targets."""

    domain = "metric"
    #: whether it is given all that a model answers with, and not the logits alone where it has some
    of_all: ClassVar[bool] = False
    #: whether it is given the flat gradient of the training loss in the place of the outputs
    of_gradient: ClassVar[bool] = False
    #: whether the smaller value is the better one; None if that is not declared
    lower_is_better: ClassVar[bool | None] = False

    def value(self, outputs: Any, targets: Tensor) -> float:
        """Return the metric; tensors are on the CPU and hold the whole validation set."""
        raise NotImplementedError(f"{type(self).__name__} must define value")

    def column(self, name: str) -> str:
        """Return the name of the evaluated value of the metric called `name`."""
        return f"{'train' if self.of_gradient else 'val'}_{name}"


class TopKAccuracy(Metric):
    """The share of targets that are among the k classes with the largest logits."""

    name = "top_k"
    source = "ImageNet's top-5"

    k: int = parameter(5, "classes that count as a hit", ge=1)

    def value(self, outputs: Any, targets: Tensor) -> float:
        """Return the share, 0 to 1."""
        targets = as_vector(outputs, targets)
        best = outputs.topk(min(self.k, outputs.shape[-1]), dim=-1).indices
        return float((best == targets.unsqueeze(-1)).any(-1).float().mean())


class MacroF1(Metric):
    """The mean over classes of F1, the harmonic mean of precision and recall."""

    name = "macro_f1"
    source = "sklearn.metrics.f1_score"

    def value(self, outputs: Any, targets: Tensor) -> float:
        """Return F1, 0 to 1."""
        from sklearn.metrics import f1_score

        found = outputs.argmax(-1).flatten().numpy()
        return float(f1_score(targets.flatten().numpy(), found, average="macro", zero_division=0))


class Perplexity(Metric):
    """The exponential of the mean cross-entropy: the number of tokens the model hesitates between."""

    name = "perplexity"
    lower_is_better = True
    source = "Jelinek et al. 1977"

    def value(self, outputs: Any, targets: Tensor) -> float:
        """Return the perplexity, from 1."""
        from psbench.optimization.losses import CrossEntropy

        mean = float(CrossEntropy().mean(outputs, targets))
        return math.exp(mean) if mean < 700 else math.inf


class GradientNorm(Metric):
    """The squared norm of the gradient of the training loss, of which convergence theorems speak.

    Evaluated as `train_gradient_norm_sq`, over the samples of the training loss and with the model in
    evaluation mode. On a sample of N training samples it is larger by about sigma^2 / N on average, where
    sigma^2 is the variance of the gradient of one sample.
    """

    name = "gradient_norm_sq"
    lower_is_better = True
    of_gradient = True
    source = "Ghadimi and Lan 2013"

    def value(self, outputs: Any, targets: Tensor) -> float:
        """Return the squared Euclidean norm of the gradient given as `outputs`."""
        return float(outputs.double().square().sum())


class MAE(Metric):
    """The mean absolute error, on the scale of the targets in training."""

    name = "mae"
    lower_is_better = True
    source = "sklearn.metrics.mean_absolute_error"

    def value(self, outputs: Any, targets: Tensor) -> float:
        """Return the error."""
        return float((outputs.reshape(targets.shape) - targets).abs().mean())


class R2(Metric):
    """The share of the targets' variance that the outputs explain."""

    name = "r2"
    source = "sklearn.metrics.r2_score"

    def value(self, outputs: Any, targets: Tensor) -> float:
        """Return R squared: 1 is perfect, 0 the mean as an answer."""
        from sklearn.metrics import r2_score

        return float(r2_score(targets.numpy(), outputs.reshape(targets.shape).numpy()))
