"""How numbers are written on the wire."""

from __future__ import annotations

import torch
from torch import Tensor

_TYPES = {"none": torch.float32, "fp16": torch.float16}


def encode(tensor: Tensor, codec: str) -> Tensor:
    """Return what travels; a number too large for the codec becomes infinite and is found by `finite`.

    Examples
    --------
    >>> encode(torch.tensor([1.0001, 1e6]), "fp16")
    tensor([1., inf], dtype=torch.float16)
    """
    return tensor.to(_TYPES[codec])


def decode(tensor: Tensor) -> Tensor:
    """Return 32-bit floats from what travelled."""
    return tensor.float()


def over_the_wire(tensor: Tensor, codec: str) -> Tensor:
    """Return what arrives of a tensor; itself if nothing is lost on the way."""
    return tensor if codec == "none" else decode(encode(tensor, codec))
