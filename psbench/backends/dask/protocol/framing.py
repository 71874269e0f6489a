"""Tensors as the payload of a message: several packed into one, or a slice with the model's buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from psbench.core.strategy import Strategy

#: tensors by name, such as a model with its optimizer's tensors as `optimizer/...`
State: TypeAlias = dict[str, Tensor]
#: what follows the name of a tensor whose entries have 64 bits
_WIDE = " (float64)"


def pack(tensors: State) -> tuple[list[list[Any]], Tensor]:
    """Return the names and shapes of tensors, and their entries one after another (a copy).

    All are of 32 bits. Numbers of 64, such as counts of a part, travel as two entries each, bit by bit.
    """
    shapes, parts = [], []
    for name, tensor in tensors.items():
        wide = tensor.dtype is torch.float64
        shapes.append([name + _WIDE if wide else name, list(tensor.shape)])
        flat = tensor.detach().reshape(-1)
        parts.append(flat.view(torch.float32) if wide else flat)
    return shapes, torch.cat(parts) if parts else torch.empty(0)


def unpack(shapes: Sequence[Sequence[Any]], flat: Tensor | None) -> State:
    """Return the tensors that `pack` put together: views, but of those of 64 bits.

    Raises
    ------
    ValueError
        If there are more entries or fewer than the shapes say.
    """
    flat = torch.empty(0) if flat is None else flat
    tensors, start = {}, 0
    for name, shape in shapes:
        wide = name.endswith(_WIDE)
        end = start + int(torch.Size(shape).numel()) * (2 if wide else 1)
        if end > len(flat):
            break
        entries = flat[start:end].clone().view(torch.float64) if wide else flat[start:end]
        tensors[name.removesuffix(_WIDE)] = entries.view(shape)
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


def padded(part: Tensor) -> Tensor:
    """Return a part that is not empty: a message without entries brings no payload to wait for.

    >>> padded(torch.zeros(0)).tolist(), padded(torch.ones(2)).tolist()
    ([0.0], [1.0, 1.0])
    """
    return part if len(part) else part.new_zeros(1)


def split(payload: Tensor, length: int, num_buffers: int) -> tuple[Tensor, Tensor]:
    """Return slice and buffers; `length` counts the slice's entries if they are 32-bit floats."""
    if payload.dtype != torch.uint8:
        return payload[:length], payload[length:]
    end = len(payload) - 4 * num_buffers
    return payload[:end], payload[end:].clone().view(torch.float32)
