"""Muon by torch: orthogonalised momentum for matrices, AdamW for all other tensors."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from psbench.core import parameter
from psbench.errors import ParameterError
from psbench.optimization.optimizer import Optimizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from psbench.optimization.update import OptimizerSteps


class Muon(Optimizer):
    """In each matrix, steps along the orthogonalised momentum (all singular values 1); elsewhere AdamW.

    Both are torch's. A tensor of more than two dimensions is a matrix of as many rows as its first size. The
    rate of matrices is adjusted so that their steps are as large as AdamW's (`match_rms_adamw`), which lets
    one rate serve both.

    Notes
    -----
    Reduces to: AdamW for a model without matrices.
    The first and last layer are matrices as all others; the author leaves these to AdamW.
    """

    name = "muon"
    source = "torch.optim.Muon"
    per_tensor = True
    tensors = 3

    lr: float = parameter(0.001, "single-node learning rate", gt=0)
    momentum: float = parameter(0.95, "momentum of matrices", ge=0, lt=1)
    nesterov: bool = parameter(True, "Nesterov's form of the momentum")
    beta1: float = parameter(0.9, "decay of the mean, for tensors other than matrices", ge=0, lt=1)
    beta2: float = parameter(0.999, "decay of the squared mean, for tensors other than matrices", ge=0, lt=1)

    @model_validator(mode="after")
    def _is_in_torch(self) -> Self:
        import torch

        if not hasattr(torch.optim, "Muon"):
            raise ParameterError(
                f"optimizer 'muon': torch {torch.__version__} does not have it; install torch 2.9 or newer"
            )
        return self

    def update(self, parameters: torch.Tensor) -> OptimizerSteps:
        return _MuonUpdate(self, parameters)


class _MuonUpdate:
    """The steps of torch's Muon on views of a vector, and of its AdamW on the other entries."""

    def __init__(self, spec: Muon, parameters: Tensor) -> None:
        import torch

        self._whole, shapes = parameters, spec.shapes_of(parameters)
        self._pieces = [
            piece.view(shape[0], -1) if len(shape) > 1 else piece
            for piece, shape in zip(
                torch.split(parameters, [prod(each) for each in shapes]), shapes, strict=True
            )
        ]
        matrices = [piece for piece in self._pieces if piece.dim() == 2]
        others = [piece for piece in self._pieces if piece.dim() < 2]
        self._optimizers: list[torch.optim.Optimizer] = []
        if matrices:
            how: dict[str, Any] = {
                "momentum": spec.momentum,
                "nesterov": spec.nesterov,
                "weight_decay": spec.weight_decay,
            }
            muon = torch.optim.Muon(matrices, lr=spec.lr, adjust_lr_fn="match_rms_adamw", **how)
            self._optimizers.append(muon)
        if others:
            decay = 0.0 if spec.is_grouped else spec.weight_decay
            betas = spec.beta1, spec.beta2
            self._optimizers.append(torch.optim.AdamW(others, spec.lr, betas, weight_decay=decay))

    def step(self, gradient: Tensor, lr: float) -> None:
        parts = gradient.split([piece.numel() for piece in self._pieces])
        for piece, part in zip(self._pieces, parts, strict=True):
            piece.grad = part.view(piece.shape).clone()  # torch's momentum may change it
        self._set("lr", lr)
        for optimizer in self._optimizers:
            optimizer.step()
        for piece in self._pieces:
            piece.grad = None

    def _set(self, name: str, value: float) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                if name in group:
                    group[name] = value

    def set_momentum(self, momentum: float) -> None:
        self._set("momentum", momentum)

    def state(self) -> dict[str, Tensor]:
        """Return state vectors, with zeros for the other optimizer's entries; copies."""
        found: dict[str, Tensor] = {}
        start = 0
        for piece in self._pieces:
            for optimizer in self._optimizers:
                for name, value in optimizer.state.get(piece, {}).items():
                    if not value.dim():
                        found[name] = value.clone()
                        continue
                    whole = found.setdefault(name, self._whole.new_zeros(self._whole.shape))
                    whole[start : start + piece.numel()] = value.reshape(-1)
            start += piece.numel()
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        start = 0
        for piece in self._pieces:
            matrix, stop = piece.dim() == 2, start + piece.numel()
            for optimizer in self._optimizers:
                if ("momentum" in optimizer.param_groups[0]) == matrix:
                    optimizer.state[piece] = {
                        name: value[start:stop].view(piece.shape).clone() if value.dim() else value.clone()
                        for name, value in state.items()
                        if (name == "momentum_buffer") == matrix
                    }
            start = stop
