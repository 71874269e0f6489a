"""Whole tensors encoded as 32-bit or 16-bit floats."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def encode(tensor: Tensor, codec: str) -> Tensor:
    """Return the encoded tensor; a number too large for the codec becomes infinite and is found by `finite`.

    Examples
    --------
    >>> import torch
    >>> encode(torch.tensor([1.0001, 1e6]), "fp16")
    tensor([1., inf], dtype=torch.float16)
    """
    return {"none": tensor.float, "fp16": tensor.half}[codec]()


def decode(tensor: Tensor) -> Tensor:
    """Return the 32-bit floats of an encoded tensor, without -0.0, which is a marker."""
    found = tensor.float()
    return found if found is tensor else found.add_(0.0)


def over_the_wire(tensor: Tensor, codec: str) -> Tensor:
    """Return a tensor after encoding and decoding; the same object if the codec is exact."""
    return tensor if codec == "none" else decode(encode(tensor, codec))
