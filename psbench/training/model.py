"""A module whose trained parameters are one flat vector, as in messages and on servers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from psbench.models.rng import may_draw
from psbench.optimization.absent import mark, without_marks
from psbench.training.buffers import Buffers
from psbench.training.device import to_host
from psbench.training.loss_scaling import scaled_gradient


class FlatModel:
    """A module whose trained parameters and changing buffers are one flat vector each.

    The parameters are views, so loading a model is one copy and reading it costs nothing. A parameter that is
    frozen (`requires_grad` is False) stays with the module: nothing changes it, so it is not sent. Tied
    parameters are one. Buffers are described in `Buffers`.

    Parameters
    ----------
    module : nn.Module
        Moved to the device, and changed.
    changed_buffers : collection of str
        See `Buffers`.
    device : torch.device or str
        Where gradients are computed; vectors that come and go are in host memory.
    precision : "bf16", "fp16" or None
        What the forward computes in, if not in float32.

    Attributes
    ----------
    layout : list of (str, int)
        The trained tensors in the order of the vector: name, entries.
    shapes : list of tuple of int
        Their sizes.
    draws : bool
        Whether the forward may draw random numbers.
    loaded : bool
        Whether a model was loaded: before, the vectors are those that the module was built with.
    """

    loaded = False

    def __init__(
        self,
        module: nn.Module,
        changed_buffers: Collection[str] = (),
        device: torch.device | str = "cpu",
        precision: str | None = None,
    ) -> None:
        self.precision = precision
        self.module, self.device = module.to(device), torch.device(device)
        self.changed_buffers = tuple(changed_buffers)
        named = [(name, tensor) for name, tensor in module.named_parameters() if tensor.requires_grad]
        self.layout = [(name, tensor.numel()) for name, tensor in named]
        self.shapes = [tuple(tensor.shape) for _, tensor in named]
        self._own = own = [tensor for _, tensor in named]
        self._flat = torch.cat([p.detach().reshape(-1) for p in own]).float()
        _as_views(own, self._flat)
        self._buffers = Buffers(module, changed_buffers)
        self.draws = may_draw(module)

    @property
    def parameters(self) -> Tensor:
        """The parameters, in host memory; on a GPU a copy."""
        return to_host(self._flat)

    @property
    def buffers(self) -> Tensor:
        """A copy of the buffers, in host memory."""
        return to_host(self._buffers.values())

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters."""
        return self._flat.numel()

    @property
    def num_buffers(self) -> int:
        """Number of transmitted buffer entries."""
        return self._buffers.flat.numel()

    def load(self, parameters: Tensor, buffers: Tensor) -> None:
        """Copy parameters and buffers into the module."""
        self.loaded = True
        self._flat.copy_(parameters)
        self._buffers.load(buffers)

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss as one new vector, marked at parameters without influence.

        See `psbench.optimization.absent`.
        """
        return scaled_gradient(loss, self._gradient) if self.precision == "fp16" else self._gradient(loss)

    def _gradient(self, loss: Tensor, repeats: bool = False) -> Tensor:
        parts = torch.autograd.grad(loss, self._own, allow_unused=True, retain_graph=repeats)
        # torch has sparse gradients for embeddings that ask for them
        dense = [part.to_dense() if part is not None and part.is_sparse else part for part in parts]
        pairs = zip(dense, self._own, strict=True)
        found = [p.detach().reshape(-1) if g is None else g.reshape(-1) for g, p in pairs]
        flat = without_marks(torch.cat(found))
        if any(part is None for part in parts):
            for part, piece in zip(parts, flat.split([len(each) for each in found]), strict=True):
                if part is None:
                    mark(piece)
        return to_host(flat)


def _parts(tensors: Sequence[Tensor], flat: Tensor) -> list[Tensor]:
    sizes = [t.numel() for t in tensors]
    return [part.view_as(t) for t, part in zip(tensors, torch.split(flat, sizes), strict=True)]


def _as_views(tensors: Sequence[Tensor], flat: Tensor) -> None:
    for tensor, part in zip(tensors, _parts(tensors, flat), strict=True):
        tensor.data = part
