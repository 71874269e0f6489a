"""Tensors as the payload of a message: several packed into one, or a slice with the model's buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from psbench.core.strategy import Strategy

#: tensors by name, such as a model with its optimizer's tensors as `optimizer/...`
State: TypeAlias = dict[str, Tensor]


def pack(tensors: State) -> tuple[list[list[Any]], Tensor]:
    """Return the names and shapes of tensors, and their entries one after another (a copy)."""
    shapes = [[name, list(tensor.shape)] for name, tensor in tensors.items()]
    parts = [tensor.detach().reshape(-1) for tensor in tensors.values()]
    return shapes, torch.cat(parts) if parts else torch.empty(0)


def unpack(shapes: Sequence[Sequence[Any]], flat: Tensor | None) -> State:
    """Return the tensors that `pack` put together, as views.

    Raises
    ------
    ValueError
        If there are more entries or fewer than the shapes say.
    """
    flat = torch.empty(0) if flat is None else flat
    tensors, start = {}, 0
    for name, shape in shapes:
        end = start + int(torch.Size(shape).numel())
        if end > len(flat):
            break
        tensors[name] = flat[start:end].view(shape)
        start = end
    if start != len(flat) or len(tensors) != len(shapes):
        raise ValueError(f"{len(flat)} entries do not fill the shapes {list(shapes)}")
    return tensors


def is_bare(composition: Strategy) -> bool:
    """Return whether vectors travel as 32-bit floats both ways."""
    communication = composition.communication
    return communication.codec.name == communication.codec_down.name == "none"


def with_buffers(part: Tensor, buffers: Tensor) -> Tensor:
    """Return a slice with the buffers behind it, which no codec encodes.

    >>> with_buffers(torch.tensor([7], dtype=torch.uint8), torch.tensor([1.0])).tolist()
    [7, 0, 0, 128, 63]
    """
    if not buffers.numel():
        return part
    return torch.cat([part, buffers.view(torch.uint8) if part.dtype == torch.uint8 else buffers])


def split(payload: Tensor, length: int, num_buffers: int) -> tuple[Tensor, Tensor]:
    """Return slice and buffers; `length` counts the slice's entries if they are 32-bit floats."""
    if payload.dtype != torch.uint8:
        return payload[:length], payload[length:]
    end = len(payload) - 4 * num_buffers
    return payload[:end], payload[end:].clone().view(torch.float32)
