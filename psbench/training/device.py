"""Where gradients are computed; the wire and the servers are in host memory."""

from __future__ import annotations

import torch
from torch import Tensor

from psbench.errors import ParameterError


def device_of(name: str) -> torch.device:
    """Return the device of that name: "cpu", "cuda", or "auto" for a GPU where there is one.

    Raises
    ------
    ParameterError
        If a GPU is asked for and torch sees none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ParameterError("device: 'cuda', but torch sees no GPU here; use 'cpu', or 'auto'")
    return torch.device("cuda" if name != "cpu" and available else "cpu")


def to_host(tensor: Tensor) -> Tensor:
    """Return a tensor in host memory: itself if it is there, else a copy, pinned, so that it travels fast."""
    return tensor if tensor.device.type == "cpu" else _pinned(tensor)


def for_device(name: str, tensor: Tensor) -> Tensor:
    """Return a copy in host memory, pinned where a device of that name is a GPU of this machine."""
    return _pinned(tensor) if name != "cpu" and torch.cuda.is_available() else tensor.clone()


def copied(tensor: Tensor) -> Tensor:
    """Return a copy in the same kind of host memory: pinned if the tensor is."""
    return _pinned(tensor) if torch.cuda.is_available() and tensor.is_pinned() else tensor.clone()


def _pinned(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
