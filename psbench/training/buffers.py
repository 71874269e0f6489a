"""The buffers of a module that training changes, as one vector of 32-bit floats."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import TypeAlias

import torch
from torch import Tensor, nn

from psbench.errors import ParameterError

#: a buffer: the module that has it, its name there, and where its values are
_Slot: TypeAlias = tuple[nn.Module, str, Tensor]


class Buffers:
    """A module's buffers as one flat vector.

    Buffers of 32-bit floats are views of it. Floats of other sizes, and whole numbers and booleans that the
    forward changes, follow them, converted; whole numbers that it does not change (masks, positions, and
    BatchNorm's count of batches, which only a cumulative average reads) stay with the module.

    Parameters
    ----------
    module : nn.Module
    changed : collection of str
        Names of the buffers of whole numbers or booleans that the forward changes and reads.

    Notes
    -----
    Our reading: a whole number is averaged as a float and rounded where it is used. A count to which every
    worker of a barrier adds one thus counts barriers. Float64 is rounded to float32 on its way.
    """

    def __init__(self, module: nn.Module, changed: Collection[str] = ()) -> None:
        named = {name: buffer for name, buffer in module.named_buffers() if _travels(name, buffer, changed)}
        names = sorted(named, key=lambda name: named[name].dtype != torch.float32)  # stable: views first
        buffers = [named[name] for name in names]
        self.flat = (
            torch.cat([b.detach().reshape(-1).float() for b in buffers]) if buffers else torch.zeros(0)
        )
        self._views: list[_Slot] = []
        self._others: list[_Slot] = []
        pieces = torch.split(self.flat, [b.numel() for b in buffers])
        for name, buffer, piece in zip(names, buffers, pieces, strict=True):
            (owner, own), part = owner_of(module, name), piece.view_as(buffer)
            if buffer.dtype == torch.float32:
                buffer.data = part
                self._views.append((owner, own, buffer))
            else:
                self._others.append((owner, own, part))

    def load(self, values: Tensor) -> None:
        """Set the buffers from a vector."""
        if not (self._views or self._others):
            return
        self.flat.copy_(values)
        for owner, name, view in self._views:
            if owner._buffers[name] is not view:  # a forward has put another tensor in its place
                owner._buffers[name] = view
        for owner, name, part in self._others:
            owner._buffers[name] = _converted(part, getattr(owner, name).dtype)

    def values(self) -> Tensor:
        """Return the buffers' values as a new vector; without buffers, always the same empty vector."""
        return self._values() if self._views or self._others else self.flat

    @torch.no_grad()
    def _values(self) -> Tensor:
        for owner, name, view in self._views:
            if owner._buffers[name] is not view:
                view.copy_(getattr(owner, name))
                owner._buffers[name] = view
        for owner, name, part in self._others:
            part.copy_(getattr(owner, name))
        return self.flat.clone()


def owner_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the layer that holds the named buffer, and its name there; supports scripted modules."""
    *path, own = name.split(".")
    owner: nn.Module = functools.reduce(getattr, path, module)
    return owner, own


def _travels(name: str, buffer: Tensor, changed: Collection[str]) -> bool:
    if buffer.is_complex() and name in changed:
        raise ParameterError(
            f"buffer {name!r} has complex numbers and changes in the forward pass; use two buffers of floats"
        )
    return buffer.is_floating_point() or name in changed


def _converted(values: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.bool:
        return values >= 0.5
    return values.to(dtype, copy=True) if dtype.is_floating_point else values.round().to(dtype)
