"""Entries without a gradient, which torch's optimizers skip: marked by -0.0.

-0.0 is the neutral element of floating-point addition: a sum of gradients, each by a positive weight, is -0.0
where all of them are, and else the sum of the others. So a mark passes through rings, servers and buffered
pushes without a message of its own, and a parameter counts as unused in an update only if all of its pushes
have no gradient for it, as in DistributedDataParallel. Gradients that are there have no -0.0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: the bits of -0.0 as a whole number, which is the least of all
_BITS = -(2**31)
_ZERO = torch.zeros(())  # torch converts a Python number at each call, which doubles the time


def absent_entries(gradient: Tensor) -> Tensor | None:
    """Return the mask of absent gradients; None if no entry is absent.

    Shapes
    ------
    gradient : float32 (read fast) or another float type, (entries,)

    >>> absent_entries(torch.tensor([0.0, -0.0]))
    tensor([False,  True])
    """
    if not gradient.numel():
        return None
    if gradient.dtype is not torch.float32:
        found = (gradient == 0) & torch.signbit(gradient)
        return found if found.any() else None
    bits = gradient.view(torch.int32)
    return bits == _BITS if int(bits.min()) == _BITS else None


def absent_in_all(gradients: Sequence[Tensor]) -> Tensor | None:
    """Return the mask of entries absent from every gradient; None if there is none."""
    found: Tensor | None = None
    for gradient in gradients:
        here = absent_entries(gradient)
        if here is None:
            return None
        found = here if found is None else found & here
    return found


def without_marks(gradient: Tensor) -> Tensor:
    """Turn -0.0 into 0.0 in place, and return the gradient."""
    return gradient.add_(_ZERO)


def mark(gradient: Tensor) -> None:
    gradient.fill_(-0.0)
