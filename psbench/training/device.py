"""The device of gradient computations; servers and messages use host memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from psbench.data.several import answer
from psbench.errors import ParameterError

#: the types of the precisions with 16 bits
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def device_of(name: str) -> torch.device:
    """Return the device of that name: "cpu", "cuda", or "auto" for a GPU if available.

    Raises
    ------
    ParameterError
        If a GPU is asked for and torch sees none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ParameterError("device: 'cuda', but torch sees no GPU here; use 'cpu', or 'auto'")
    return torch.device("cuda" if name != "cpu" and available else "cpu")


def computed(module: nn.Module, inputs: Any, precision: str | None) -> Any:
    """Return a module's output for a batch: in 16 bits under torch's autocast, converted to float32."""
    if precision is None:
        return answer(module, inputs)
    device = next(module.parameters()).device.type
    with torch.autocast(device, dtype=_DTYPES[precision]):
        return _as_float32(answer(module, inputs))


def _as_float32(outputs: Any) -> Any:
    """Return outputs with 16-bit floats converted to float32, for accurate losses and metrics."""
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype in _DTYPES.values() else outputs
    if isinstance(outputs, (tuple, list)):
        found = [_as_float32(each) for each in outputs]
        return type(outputs)(*found) if hasattr(outputs, "_fields") else type(outputs)(found)
    if isinstance(outputs, Mapping):
        changed: Any = copy.copy(outputs)  # of its own class, as Hugging Face's is
        for name, value in outputs.items():
            changed[name] = _as_float32(value)
        return changed
    return outputs


def to_host(tensor: Tensor) -> Tensor:
    """Return a tensor in host memory: itself, or a pinned copy, which transfers fast."""
    return tensor if tensor.device.type == "cpu" else _pinned(tensor)


def for_device(name: str, tensor: Tensor) -> Tensor:
    """Return a copy in host memory, pinned if the device is a GPU of this machine."""
    return _pinned(tensor) if name != "cpu" and torch.cuda.is_available() else tensor.clone()


def copied(tensor: Tensor) -> Tensor:
    """Return a copy in the same kind of host memory: pinned if the tensor is."""
    return _pinned(tensor) if torch.cuda.is_available() and tensor.is_pinned() else tensor.clone()


def _pinned(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
