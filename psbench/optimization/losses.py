"""The losses that can be minimised, by name; the data's task chooses one unless the experiment does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from psbench.core import Part, parameter
from psbench.errors import ParameterError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: what a target is that torch's losses of classes leave out
IGNORED = -100


class Loss(Part):
    """The minimised loss: a number computed from the outputs for a batch and its targets.

    Shapes
    ------
    outputs : (B, ...); a tuple or mapping of them for a loss of one's own      targets : (B, ...)
    """

    domain = "loss"
    #: whether the loss of a set is what the `total`s of its batches come to; else `mean` is given all of it
    adds_up: ClassVar[bool] = False

    def mean(self, outputs: Any, targets: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define mean")

    def total(self, outputs: Any, targets: Tensor) -> Total:
        """Return the sum over a batch, and its number of samples; for a loss that `adds_up`."""
        raise NotImplementedError(f"{type(self).__name__} must define total, because it adds up samples")

    def of_each(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the loss of each sample, (B,), by default one sample after the other.

        Raises
        ------
        ParameterError
            If the outputs are not one tensor.
        """
        import torch

        outputs = logits_of(outputs)
        if not isinstance(outputs, torch.Tensor):
            raise ParameterError(
                f"loss {self.name!r}: the model returns {type(outputs).__name__}, so the loss of each "
                "sample is unknown; return one tensor"
            )
        rows = range(len(targets))
        return torch.stack([self.mean(outputs[i : i + 1], targets[i : i + 1]) for i in rows])

    def on(self, device: torch.device) -> Loss:
        return self


class Total(NamedTuple):
    """The sum of a loss over samples, and the number of samples."""

    loss: Tensor
    samples: float


class _OfTorch(Loss):
    """A loss of torch.nn.functional, which `source` names, and which takes a `reduction`."""

    adds_up = True

    def mean(self, outputs: Any, targets: Tensor) -> Tensor:
        return self.reduced(*self.aligned(self._tensor(outputs), targets), "mean")

    def total(self, outputs: Any, targets: Tensor) -> Total:
        """Return the sum over the batch's samples; a sample of several targets counts with their mean."""
        total = self.reduced(*self.aligned(self._tensor(outputs), targets), "sum")
        every, counted = self.counted(targets)
        each = every / max(1, len(targets))
        return Total(total if each == 1 else total / each, counted / each)

    def of_each(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the loss of each sample; of several targets, the mean over those that count."""
        outputs, aligned = self.aligned(self._tensor(outputs), targets)
        found = self.reduced(outputs, aligned, "none").reshape(len(targets), -1)
        every, counted = self.counted(targets)
        if every == counted:
            return found.mean(1)
        counts = [max(1, self.counted(each)[1]) for each in targets]
        return found.sum(1) / found.new_tensor(counts)

    def counted(self, targets: Tensor) -> tuple[int, int]:
        """Return the number of targets, and of those that the mean includes."""
        return targets.numel(), targets.numel()

    def _tensor(self, outputs: Any) -> Tensor:
        outputs = logits_of(outputs)
        if not hasattr(outputs, "dim"):
            raise ParameterError(
                f"loss {self.name!r} takes one tensor, but the model returns {type(outputs).__name__}; use "
                "a loss of your own, loss(outputs, targets)"
            )
        found: Tensor = outputs
        return found

    def aligned(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError(f"{type(self).__name__} must define aligned")

    def reduced(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        """Return torch's loss function; the fields of a loss are its keyword arguments."""
        from torch.nn import functional

        options = {name: getattr(self, name) for name in type(self).model_fields}
        found: Tensor = getattr(functional, self.source.rpartition(".")[2])(
            outputs, targets, reduction=reduction, **options
        )
        return found


class _OfClasses(_OfTorch):
    """Base of the losses of whole numbers: logits (B, C), or (B, T, C) for targets (B, T)."""

    def aligned(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits as (..., C), one row a target; images of classes, (B, C, H, W), stay as they are."""
        targets = as_vector(outputs, targets)
        if outputs.dim() == 3 and targets.dim() == 2:
            return outputs.flatten(0, 1), targets.flatten()
        return outputs, targets

    def counted(self, targets: Tensor) -> tuple[int, int]:
        """Count targets; torch ignores targets of -100, and counts a row of probabilities as one."""
        if targets.is_floating_point():
            rows = targets.numel() // targets.shape[1]
            return rows, rows
        return targets.numel(), int((targets != IGNORED).sum())


class _OfNumbers(_OfTorch):
    """Base of the losses of numbers: outputs as the targets, or (B, 1) for targets (B,)."""

    def aligned(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs in the targets' shape, and targets as numbers.

        Raises
        ------
        ParameterError
            If the shapes differ; torch would compare every output with every target.
        """
        if outputs.dim() == targets.dim() + 1:
            outputs = outputs.squeeze(-1)
        elif targets.dim() == outputs.dim() + 1:
            targets = targets.squeeze(-1)
        if outputs.shape != targets.shape:
            raise ParameterError(
                f"loss {self.name!r}: outputs of shape {tuple(outputs.shape)} do not fit targets of shape "
                f"{tuple(targets.shape)}"
            )
        return outputs, targets if targets.is_floating_point() else targets.to(outputs.dtype)


class CrossEntropy(_OfClasses):
    """Cross-entropy of logits, for classes and for next tokens; the default for both."""

    name = "cross_entropy"
    source = "torch.nn.functional.cross_entropy"

    label_smoothing: float = parameter(0.0, "share of the target spread over all classes", ge=0, le=1)


class NLL(_OfClasses):
    """Negative log-likelihood of log-probabilities, for models that end with a log-softmax."""

    name = "nll"
    source = "torch.nn.functional.nll_loss"


class Hinge(_OfClasses):
    """Multi-class hinge loss: a margin of 1 between the correct class and each other class."""

    name = "hinge"
    source = "torch.nn.functional.multi_margin_loss"


class BCE(_OfNumbers):
    """Binary cross-entropy of logits: one logit for two classes, or one for each of several labels."""

    name = "bce"
    source = "torch.nn.functional.binary_cross_entropy_with_logits"


class MSE(_OfNumbers):
    """Mean squared error, the default for numbers.

    Notes
    -----
    The squared error is (output - target)^2; MLlib's linear regression takes half of it.
    """

    name = "mse"
    source = "torch.nn.functional.mse_loss"


class L1(_OfNumbers):
    """Mean absolute error."""

    name = "l1"
    source = "torch.nn.functional.l1_loss"


class Huber(_OfNumbers):
    """Squared error for small errors, absolute error for large ones."""

    name = "huber"
    source = "torch.nn.functional.huber_loss"

    delta: float = parameter(1.0, "error at which the loss changes from squared to absolute error", gt=0)


def as_vector(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return column targets, (B, 1), as (B,) if the outputs have a row of logits for each.

    >>> import torch
    >>> as_vector(torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.int64)).shape
    torch.Size([4])
    """
    is_column = outputs.dim() == targets.dim() == 2 and targets.shape[1] == 1
    return targets[:, 0] if is_column and not targets.is_floating_point() else targets


def logits_of(outputs: Any) -> Any:
    """Return the logits of outputs with an attribute or key `logits`, as in Hugging Face models.

    Not those of a tuple: torchvision's GoogLeNet gives one whose other outputs have losses, too.
    """
    if isinstance(outputs, tuple):
        return outputs
    if isinstance(outputs, Mapping) and "logits" in outputs:
        return outputs["logits"]
    return getattr(outputs, "logits", outputs)


CROSS_ENTROPY = CrossEntropy()

#: the loss of a task unless the experiment gives one
_OF_TASK: dict[str, Loss] = {
    "classification": CROSS_ENTROPY,
    "sequence": CROSS_ENTROPY,
    "regression": MSE(),
}


def loss_for(given: Loss | None, task: str) -> Loss:
    """Return the loss that was given, or else the task's.

    Raises
    ------
    ParameterError
        If the task has none, as its targets may be anything.
    """
    if given is None and task not in _OF_TASK:
        raise ParameterError("loss: these targets need a loss of your own: loss=function(outputs, targets)")
    return _OF_TASK[task] if given is None else given
