"""The loss that is minimised and reported."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional


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
