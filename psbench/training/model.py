"""A module whose parameters are one flat vector, as they travel and as servers hold them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class FlatModel:
    """A module whose parameters and floating buffers are each one flat vector.

    The module's tensors are views, so loading a model is one copy and reading it costs nothing. Whole-number
    buffers (BatchNorm's count of batches) stay with the module: nothing that is trained reads them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        named = list(module.named_parameters())
        #: the tensors in the order of the vector: name, entries
        self.layout = [(name, tensor.numel()) for name, tensor in named]
        self._own = own = [tensor for _, tensor in named]
        self.parameters = torch.cat([p.detach().reshape(-1) for p in own]).float()
        _as_views(own, self.parameters)
        stats = [b for b in module.buffers() if b.is_floating_point()]
        self.buffers = torch.cat([b.reshape(-1) for b in stats]) if stats else torch.zeros(0)
        _as_views(stats, self.buffers)

    def load(self, parameters: Tensor, buffers: Tensor) -> None:
        """Take over parameters and buffers; both are copied."""
        self.parameters.copy_(parameters)
        self.buffers.copy_(buffers)

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss as one new vector; a parameter without influence has 0."""
        parts = torch.autograd.grad(loss, self._own, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])


def _parts(tensors: Sequence[Tensor], flat: Tensor) -> list[Tensor]:
    sizes = [t.numel() for t in tensors]
    return [part.view_as(t) for t, part in zip(tensors, torch.split(flat, sizes), strict=True)]


def _as_views(tensors: Sequence[Tensor], flat: Tensor) -> None:
    for tensor, part in zip(tensors, _parts(tensors, flat), strict=True):
        tensor.data = part
