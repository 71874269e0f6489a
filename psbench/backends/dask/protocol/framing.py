"""Tensors in messages: by name, or a slice with the model's buffers."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from psbench.core.strategy import Strategy

#: tensors by name, such as a model with its optimizer's tensors as `optimizer/...`
StateDict: TypeAlias = dict[str, Tensor]
_NONE = torch.zeros(0)


def is_bare(composition: Strategy) -> bool:
    """Return whether vectors are sent as 32-bit floats both ways."""
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
    if not num_buffers:
        return payload, _NONE
    if payload.dtype != torch.uint8:
        return payload[:length], payload[length:]
    end = len(payload) - 4 * num_buffers
    return payload[:end], payload[end:].clone().view(torch.float32)
