"""Number of correct predictions of a classifier."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from psbench.optimization.losses import logits_of


def right_answers(outputs: Any, targets: Tensor) -> int | None:
    """Return the number of correct predictions; None if the outputs are not logits of classes."""
    found = which_right(outputs, targets)
    return None if found is None else int(found.sum())


def which_right(outputs: Any, targets: Tensor) -> Tensor | None:
    """Return whether each target has the largest logit; None if the outputs are not logits of classes.

    Shapes
    ------
    outputs : (B, C); (B, T, C) for targets (B, T); (B, C, H, W) for targets (B, H, W); or (B, 1), one logit
    for two classes      targets : int64, (B, ...)
    """
    outputs = logits_of(outputs)
    if not isinstance(outputs, Tensor) or targets.is_floating_point():
        return None
    if outputs.dim() != targets.dim() + 1:
        return None
    if outputs.dim() == 2 and outputs.shape[1] == 1:
        return (outputs[:, 0] > 0) == targets
    found = outputs.argmax(-1 if outputs.dim() == 3 else 1)
    return found == targets if found.shape == targets.shape else None
