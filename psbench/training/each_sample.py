"""Values of each sample of a mini-batch, for selections with a memory of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from psbench.arrays import Array, Doubles
from psbench.errors import ParameterError
from psbench.optimization.losses import Loss, logits_of


def weighted_mean(outputs: Any, targets: Tensor, loss: Loss, weights: Doubles) -> Tensor:
    """Return the mean of the samples' losses times their weights: (1/B) sum of w_i l_i."""
    losses = loss.of_each(outputs, targets)
    return (losses * torch.from_numpy(weights).to(losses)).mean()


def numbers_of_each(outputs: Any, targets: Tensor, loss: Loss, finds: Sequence[str]) -> dict[str, Array]:
    """Return the requested values of each sample by name; see `psbench.core.selection.FINDINGS`.

    Raises
    ------
    ParameterError
        If the outputs are not one tensor, or have no classes of which one is predicted.
    """
    return {name: _FINDS[name](outputs, targets, loss) for name in finds}


def _loss(outputs: Any, targets: Tensor, loss: Loss) -> Array:
    with torch.no_grad():
        found: Array = loss.of_each(outputs, targets).double().cpu().numpy()
    return found


def _predicted(outputs: Any, targets: Tensor, loss: Loss) -> Array:
    logits = logits_of(outputs)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or targets.is_floating_point():
        raise ParameterError(
            "selection: needs the predicted class, but the outputs are not a row of logits per sample"
        )
    found: Array = logits.detach().argmax(1).cpu().numpy()
    return found


def _norm(outputs: Any, targets: Tensor, loss: Loss) -> Array:
    """Return the norm of the gradient of each sample's loss with respect to the model's outputs."""
    logits = logits_of(outputs)
    if not isinstance(logits, Tensor):
        raise ParameterError(
            "selection: needs norms of gradients with respect to the outputs, but these are not one tensor"
        )
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss.of_each(leaf, targets).sum(), leaf)
    found: Array = slope.flatten(1).norm(dim=1).double().cpu().numpy()
    return found


_FINDS: dict[str, Callable[[Any, Tensor, Loss], Array]] = {
    "loss": _loss,
    "predicted": _predicted,
    "norm": _norm,
}
