"""Optimizer steps on one flat vector: torch's optimizers, and SGD and Adam written out.

torch's SGD spends about ten times as long on its checks and hooks as on the arithmetic of a small model, so
the same arithmetic stands here, operation by operation in the same order: the bits are torch's. Building any
of torch's optimizers also imports torch's compiler, which takes half as long as importing torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

#: the name that torch gives the buffer of the momentum
_BUFFER = "momentum_buffer"
#: what torch's Adam adds to the root of the mean square
_EPS = 1e-8


#: a weight decay, and which entries have it; None: all
Decay: TypeAlias = tuple[float, Tensor | None]


@lru_cache(64)
def _as_tensor(number: float, dtype: torch.dtype) -> Tensor:
    """Return a number as a tensor: torch converts a Python number at each call, which doubles the time."""
    return torch.tensor(number, dtype=dtype)


def _decayed(gradient: Tensor, parameters: Tensor, decay: Decay) -> Tensor:
    """Return a gradient with an L2 penalty's."""
    weight, decays = decay
    if not weight:
        return gradient
    return gradient.add(parameters if decays is None else parameters * decays, alpha=weight)


class OptimizerSteps(Protocol):
    """Takes optimizer steps on a vector that it changes in place, and keeps the optimizer's tensors."""

    def step(self, gradient: Tensor, lr: float) -> None:
        """Step along a gradient, which is not modified."""

    def set_momentum(self, momentum: float) -> None:
        """Use this momentum from now on; its buffer stays as it is."""

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors by torch's names; not copied."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Set the state from tensors that `state` returned, without copying."""


class TorchUpdate:
    """The steps of one of torch's optimizers.

    Parameters
    ----------
    parameters : float32 tensor, (num_params,)
    optimizer : torch.optim.Optimizer
        Of that one tensor.
    decays : bool tensor, (num_params,), or None
        Which entries have the optimizer's weight decay; the others have none. None: all.
    """

    def __init__(
        self, parameters: Tensor, optimizer: torch.optim.Optimizer, decays: Tensor | None = None
    ) -> None:
        self._optimizer = optimizer
        if decays is None:
            self._pieces = [parameters]
            return
        # stretches of entries that decay and do not, in turn, are groups of torch's own
        bounds = (torch.diff(decays.int()).nonzero().flatten() + 1).tolist()
        self._pieces = list(torch.tensor_split(parameters, bounds))
        first = optimizer.param_groups[0]
        plain = [piece for piece, at in zip(self._pieces, [0, *bounds], strict=True) if not decays[at]]
        first["params"] = [piece for piece, at in zip(self._pieces, [0, *bounds], strict=True) if decays[at]]
        if plain:
            optimizer.add_param_group({"params": plain, "weight_decay": 0.0})

    def step(self, gradient: Tensor, lr: float) -> None:
        """See `OptimizerSteps`."""
        self._set("lr", lr)
        for piece, part in zip(self._pieces, self._split(gradient), strict=True):
            piece.grad = part
        self._optimizer.step()
        for piece in self._pieces:
            piece.grad = None

    def _split(self, vector: Tensor) -> Sequence[Tensor]:
        return torch.split(vector, [len(piece) for piece in self._pieces])

    def _set(self, name: str, value: float) -> None:
        for group in self._optimizer.param_groups:
            group[name] = value

    def set_momentum(self, momentum: float) -> None:
        self._set("momentum", momentum)

    def state(self) -> dict[str, Tensor]:
        """See `OptimizerSteps`."""
        states = [self._optimizer.state.get(piece, {}) for piece in self._pieces]
        if len(states) == 1:
            return {name: value for name, value in states[0].items() if isinstance(value, Tensor)}
        return {
            name: torch.cat([each[name] for each in states]) if value.dim() else value
            for name, value in states[0].items()
            if isinstance(value, Tensor)
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `OptimizerSteps`."""
        vectors = {name: self._split(value) for name, value in state.items() if value.dim()}
        for place, piece in enumerate(self._pieces):
            own = {name: vectors[name][place] if name in vectors else state[name].clone() for name in state}
            self._optimizer.state[piece] = dict(state) if len(self._pieces) == 1 else own


class SGDUpdate:
    """The steps of `torch.optim.SGD`, bit by bit.

    Parameters
    ----------
    parameters : float32 tensor, (num_params,)
    momentum : float
    weight_decay : (float, bool tensor or None)
        And which entries have it; None: all.
    nesterov : bool

    Source
    ------
    The algorithm in the documentation of `torch.optim.SGD`, without dampening.
    """

    def __init__(self, parameters: Tensor, momentum: float, weight_decay: Decay, nesterov: bool) -> None:
        self._parameters = parameters
        self.set_momentum(momentum)
        self._weight_decay, self._nesterov = weight_decay, nesterov
        self._buffer: Tensor | None = None

    def step(self, gradient: Tensor, lr: float) -> None:
        """See `OptimizerSteps`."""
        if self._weight_decay[0]:
            gradient = _decayed(gradient, self._parameters, self._weight_decay)
        if self._momentum:
            gradient = self._with_momentum(gradient)
        self._parameters.add_(gradient, alpha=-lr)

    def _with_momentum(self, gradient: Tensor) -> Tensor:
        if self._buffer is None:
            self._buffer = gradient.clone()
        else:
            self._buffer.mul_(self._factor).add_(gradient)
        return gradient.add(self._buffer, alpha=self._momentum) if self._nesterov else self._buffer

    def set_momentum(self, momentum: float) -> None:
        self._momentum = momentum
        self._factor = _as_tensor(momentum, self._parameters.dtype)

    def state(self) -> dict[str, Tensor]:
        return {} if self._buffer is None else {_BUFFER: self._buffer}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._buffer = state.get(_BUFFER)


class AdamUpdate:
    """The steps of `torch.optim.Adam`, bit by bit.

    Parameters
    ----------
    parameters : float32 tensor, (num_params,)
    beta1, beta2 : float
    weight_decay : (float, bool tensor or None)
        And which entries have it; None: all.

    Source
    ------
    The algorithm in the documentation of `torch.optim.Adam`, without AMSGrad.
    """

    def __init__(self, parameters: Tensor, beta1: float, beta2: float, weight_decay: Decay) -> None:
        self._parameters, self._betas, self._weight_decay = parameters, (beta1, beta2), weight_decay
        self._state: dict[str, Tensor] = {}

    def step(self, gradient: Tensor, lr: float) -> None:
        """See `OptimizerSteps`."""
        if not self._state:
            zeros = torch.zeros_like(self._parameters)
            self._state = {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        gradient = _decayed(gradient, self._parameters, self._weight_decay)
        number, mean, square = (self._state[name] for name in ("step", "exp_avg", "exp_avg_sq"))
        number += 1
        step, (beta1, beta2) = number.item(), self._betas
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (square.sqrt() / (1 - beta2**step) ** 0.5).add_(_EPS)
        self._parameters.addcdiv_(mean, root, value=-(lr / (1 - beta1**step)))

    def set_momentum(self, momentum: float) -> None:
        """Do nothing: the decay of Adam's means is not a momentum that a switch could reduce."""

    def state(self) -> dict[str, Tensor]:
        return dict(self._state)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._state = dict(state)
