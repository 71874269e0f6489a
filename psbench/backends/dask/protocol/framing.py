"""Slices and the model's buffers as one payload, written by a codec or as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from psbench.core.strategy import Strategy


def is_bare(composition: Strategy) -> bool:
    """Return whether vectors travel as 32-bit floats both ways."""
    communication = composition.communication
    return communication.codec.name == communication.codec_down.name == "none"


def with_buffers(part: Tensor, buffers: Tensor) -> Tensor:
    """Return a slice with the buffers behind it, which no codec writes.

    >>> with_buffers(torch.tensor([7], dtype=torch.uint8), torch.tensor([1.0])).tolist()
    [7, 0, 0, 128, 63]
    """
    if not len(buffers):
        return part
    return torch.cat([part, buffers.view(torch.uint8) if part.dtype == torch.uint8 else buffers])


def split(payload: Tensor, length: int, num_buffers: int) -> tuple[Tensor, Tensor]:
    """Return slice and buffers; `length` is that of the slice in 32-bit floats, if it is written so."""
    if payload.dtype != torch.uint8:
        return payload[:length], payload[length:]
    end = len(payload) - 4 * num_buffers
    return payload[:end], payload[end:].clone().view(torch.float32)
