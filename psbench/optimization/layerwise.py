"""Optimizers that scale the step of each tensor by the norms of its weights and of its step."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from psbench.core import parameter
from psbench.optimization.optimizer import Optimizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from psbench.optimization.update import OptimizerSteps


class LARS(Optimizer):
    """SGD with a per-tensor rate proportional to the ratio of weight norm to gradient norm.

    d = lambda (g + wd w) with lambda = trust |w| / (|g| + wd |w| + 1e-8), or 1 where |w| or |g| is 0;
    u <- momentum u + d; w <- w - lr u.

    Notes
    -----
    Reduces to: SGD in a tensor whose weights, or whose gradient, are 0.
    The paper has the rate inside the momentum, which is the same for a constant rate; biases are tensors as
    all others (`decay: matrices` leaves them without weight decay). Not checked against code of the authors.
    """

    name = "lars"
    source = "You et al. 2017 (LARS)"
    per_tensor = True
    tensors = 1

    momentum: float = parameter(0.9, "momentum", ge=0, lt=1)
    trust: float = parameter(0.001, "rate of a tensor with equal norms of gradient and weights", gt=0)

    def update(self, parameters: torch.Tensor) -> OptimizerSteps:
        return _LARSUpdate(self, parameters)


class LAMB(Optimizer):
    """Adam whose step for each tensor has the norm of the tensor's weights.

    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; u = m / (sqrt(v) + epsilon) + wd w;
    w <- w - lr |w|/|u| u, where the ratio is 1 if |w| or |u| is 0.

    Notes
    -----
    Reduces to: Adam without correction of the bias in a tensor whose weights are 0.
    As in cybertronai's pytorch-lamb there is no correction of the bias, and no bound on |w|.
    """

    name = "lamb"
    source = "You et al. 2020 (LAMB), Alg. 2"
    per_tensor = True
    tensors = 2

    lr: float = parameter(0.001, "single-node learning rate", gt=0)
    beta1: float = parameter(0.9, "decay of the mean", ge=0, lt=1)
    beta2: float = parameter(0.999, "decay of the squared mean", ge=0, lt=1)
    epsilon: float = parameter(1e-6, "added to the root of the squared mean", gt=0)

    def update(self, parameters: torch.Tensor) -> OptimizerSteps:
        return _LAMBUpdate(self, parameters)


class _Layerwise:
    """Base of LARS and LAMB: a vector's tensors, its weight decay, and the optimizer's state."""

    def __init__(self, spec: Optimizer, parameters: Tensor) -> None:
        self._sizes = [prod(shape) for shape in spec.shapes_of(parameters)]
        decays = spec.decays_of(parameters)
        self._parameters, self._state = parameters, dict[str, "Tensor"]()
        self._decay = spec.weight_decay if decays is None else spec.weight_decay * decays

    def _kept(self, name: str) -> Tensor:
        if name not in self._state:
            self._state[name] = self._parameters.new_zeros(self._parameters.shape)
        return self._state[name]

    def _split(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Return each tensor's entries."""
        return vector.split(self._sizes)

    def _norms(self, vector: Tensor) -> list[float]:
        return [float(part.norm()) for part in self._split(vector)]

    def _scaled(self, vector: Tensor, factors: list[float]) -> Tensor:
        """Return a vector with a factor for each tensor."""
        scaled = vector.clone()
        for part, factor in zip(self._split(scaled), factors, strict=True):
            part.mul_(factor)
        return scaled

    def set_momentum(self, momentum: float) -> None:
        """Do nothing: LAMB's means are not a momentum that a switch could reduce."""

    def state(self) -> dict[str, Tensor]:
        return dict(self._state)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._state = dict(state)


class _LARSUpdate(_Layerwise):
    def __init__(self, spec: LARS, parameters: Tensor) -> None:
        super().__init__(spec, parameters)
        self._momentum, self._trust = spec.momentum, spec.trust

    def step(self, gradient: Tensor, lr: float) -> None:
        penalty = self._parameters * self._decay
        norms = zip(self._norms(self._parameters), self._norms(gradient), self._norms(penalty), strict=True)
        factors = [self._trust * w / (g + p + 1e-8) if w and g else 1.0 for w, g, p in norms]
        buffer = self._kept("momentum_buffer")
        buffer.mul_(self._momentum).add_(self._scaled(gradient + penalty, factors))
        self._parameters.sub_(buffer, alpha=lr)

    def set_momentum(self, momentum: float) -> None:
        self._momentum = momentum


class _LAMBUpdate(_Layerwise):
    def __init__(self, spec: LAMB, parameters: Tensor) -> None:
        super().__init__(spec, parameters)
        self._betas, self._epsilon = (spec.beta1, spec.beta2), spec.epsilon

    def step(self, gradient: Tensor, lr: float) -> None:
        (beta1, beta2), mean, square = self._betas, self._kept("exp_avg"), self._kept("exp_avg_sq")
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        step = mean / square.sqrt().add_(self._epsilon) + self._parameters * self._decay
        norms = zip(self._norms(self._parameters), self._norms(step), strict=True)
        self._parameters.sub_(self._scaled(step, [w / u if w and u else 1.0 for w, u in norms]), alpha=lr)
