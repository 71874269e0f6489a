"""Steps of an optimizer that leave entries without a gradient alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from psbench.optimization.optimizer import Optimizer
from psbench.optimization.update import OptimizerSteps

#: suffix of a number of the optimizer's, such as its steps, that has a value for each entry
_EACH = "/each"
#: which entries have had a step, 1.0 or 0.0
_STEPPED = "stepped"


class _Piece(NamedTuple):
    """Consecutive entries that have had the same steps."""

    start: int
    stop: int
    steps: OptimizerSteps


class PiecewiseSteps:
    """An optimizer's steps on a vector; entries without a gradient stay unchanged, as in torch.

    As long as all entries have a gradient they are one piece. An entry that has none is neither moved, by its
    momentum or the weight decay, nor is a step counted for it; see `absent`.

    Parameters
    ----------
    spec : Optimizer
    parameters : float32 tensor, (num_params,)
    """

    def __init__(self, spec: Optimizer, parameters: Tensor) -> None:
        self._spec, self._parameters = spec, parameters
        self._momentum: float | None = None
        self._pieces = [_Piece(0, len(parameters), spec.update(parameters))]

    def step(self, gradient: Tensor, lr: float, absent: Tensor | None = None) -> None:
        """Step along a gradient, except at absent entries."""
        if absent is not None:
            self._cut(_bounds(absent))
        for start, stop, steps in self._pieces:
            if absent is None or not absent[start]:
                steps.step(gradient[start:stop] if len(self._pieces) > 1 else gradient, lr)

    def set_momentum(self, momentum: float) -> None:
        self._momentum = momentum
        for piece in self._pieces:
            piece.steps.set_momentum(momentum)

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors by torch's names; of several pieces, copies.

        A number that differs from piece to piece is a vector. Zeros stand for a piece that had no step.
        """
        states = [piece.steps.state() for piece in self._pieces]
        if len(states) == 1:
            return states[0]
        sizes = [piece.stop - piece.start for piece in self._pieces]
        found: dict[str, Tensor] = {}
        for state in of_one_form(states, sizes):
            for name, value in state.items():
                found[name] = torch.cat([found[name], value]) if name in found and value.dim() else value
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `OptimizerSteps`."""
        vectors = {name: value for name, value in state.items() if value.dim()}
        each = [value for name, value in vectors.items() if name.endswith(_EACH) or name == _STEPPED]
        bounds = sorted({at for value in each for at in _bounds(value)})
        self._pieces = [
            _Piece(start, stop, self._made(start, stop))
            for start, stop in pairwise([0, *bounds, len(self._parameters)])
        ]
        for start, stop, steps in self._pieces:
            if _STEPPED in state and not state[_STEPPED][start]:
                continue
            own = {name: value for name, value in state.items() if name not in vectors}
            if len(self._pieces) > 1:
                own = {name: value.clone() for name, value in own.items()}
            for name, value in vectors.items():
                if name.endswith(_EACH):
                    own[name.removesuffix(_EACH)] = value[start].clone()
                elif name != _STEPPED:
                    own[name] = value[start:stop]
            steps.load_state(own)

    def _cut(self, bounds: Sequence[int]) -> None:
        """Cut the pieces at these entries too."""
        found: list[_Piece] = []
        for piece in self._pieces:
            inner = [at for at in bounds if piece.start < at < piece.stop]
            found += self._parts(piece, [piece.start, *inner, piece.stop]) if inner else [piece]
        self._pieces = found

    def _parts(self, piece: _Piece, bounds: Sequence[int]) -> list[_Piece]:
        state, found = piece.steps.state(), []
        for start, stop in pairwise(bounds):
            steps = self._made(start, stop)
            here = slice(start - piece.start, stop - piece.start)
            if state:
                steps.load_state({n: (v[here] if v.dim() else v).clone() for n, v in state.items()})
            found.append(_Piece(start, stop, steps))
        return found

    def _made(self, start: int, stop: int) -> OptimizerSteps:
        whole = (start, stop) == (0, len(self._parameters))
        spec = self._spec if whole else self._spec.of_range(self._parameters, start, stop)
        steps = spec.update(self._parameters if whole else self._parameters[start:stop])
        if self._momentum is not None:
            steps.set_momentum(self._momentum)
        return steps


def of_one_form(states: Sequence[Mapping[str, Tensor]], sizes: Sequence[int]) -> list[dict[str, Tensor]]:
    """Return the states of consecutive pieces with the same names, so that vectors can be joined.

    Parameters
    ----------
    states : sequence of mapping
        What `PiecewiseSteps.state` returns for each piece; empty for one that had no step.
    sizes : sequence of int
        Entries of each piece.
    """
    names = (name.removesuffix(_EACH) for state in states for name in state if name != _STEPPED)
    every = list(dict.fromkeys(names))
    if not every:
        return [{} for _ in states]
    numbers = {n: [s[n] for s in states if n in s and not s[n].dim()] for n in every}
    vectors = {n for n in every if not numbers[n] and not any(n + _EACH in state for state in states)}
    pairs = list(zip(states, sizes, strict=True))
    stepped = [state.get(_STEPPED, torch.full((size,), float(bool(state)))) for state, size in pairs]
    alike = all(bool(own.all()) for own in stepped)
    found: list[dict[str, Tensor]] = []
    for state, size, steps in zip(states, sizes, stepped, strict=True):
        own: dict[str, Tensor] = {}
        for name in every:
            if name in vectors:
                own[name] = state.get(name, torch.zeros(size))
            elif alike and len(numbers[name]) == len(states) and len({float(v) for v in numbers[name]}) == 1:
                own[name] = state[name]
            else:
                number = state.get(name, torch.tensor(0.0))
                own[name + _EACH] = state.get(name + _EACH, number.expand(size).clone())
        found.append(own if alike else own | {_STEPPED: steps})
    return found


def _bounds(values: Tensor) -> list[int]:
    """Return the positions where values change."""
    found: list[int] = ((values[1:] != values[:-1]).nonzero().flatten() + 1).tolist()
    return found
