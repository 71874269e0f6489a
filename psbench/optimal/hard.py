"""The hard function of the lower bound, with its oracle, as a problem to run strategies on.

Source
------
Carmon et al. 2020 (the function F_T), Arjevani et al. 2022 (its oracle); Lemma 1 and Theorem 19 of Tyurin and
Richtarik 2024 (scale and chance).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor, nn

from psbench.arrays import Doubles, Integers
from psbench.errors import ParameterError
from psbench.optimal.bounds import SMOOTHNESS, Bound


def psi(x: Doubles) -> Doubles:
    """Return Psi: 0 up to 1/2, then exp(1 - 1 / (2x - 1)^2)."""
    found: Doubles = np.where(x > 0.5, np.exp(1 - 1 / _above(x) ** 2), 0.0)
    return found


def phi(x: Doubles) -> Doubles:
    """Return Phi: sqrt(e) times the integral of exp(-t^2 / 2) up to x."""
    found: Doubles = math.sqrt(2 * math.pi * math.e) * ndtr(x)
    return found


def _above(x: Doubles) -> Doubles:
    found: Doubles = np.where(x > 0.5, 2 * x - 1, 1.0)
    return found


def _psi_slope(x: Doubles) -> Doubles:
    return psi(x) * 4 / _above(x) ** 3


def _phi_slope(x: Doubles) -> Doubles:
    found: Doubles = np.exp(0.5 - 0.5 * x**2)
    return found


def chain(x: Doubles) -> float:
    """Return F_T(x), T the number of entries.

    Examples
    --------
    >>> round(chain(np.zeros(3)), 6) == round(-float(phi(np.array(0.0))), 6)
    True
    """
    before = np.append(1.0, x[:-1])
    return float((psi(-before) * phi(-x) - psi(before) * phi(x)).sum())


def chain_gradient(x: Doubles) -> Doubles:
    """Return the gradient of F_T."""
    before, after = np.append(1.0, x[:-1]), x[1:]
    found = -psi(-before) * _phi_slope(-x) - psi(before) * _phi_slope(x)
    found[:-1] += -_psi_slope(-x[:-1]) * phi(-after) - _psi_slope(x[:-1]) * phi(after)
    return found


def progress(x: Doubles) -> int:
    """Return the number of the last entry that is not 0, from 1; 0 without one."""
    return int(np.flatnonzero(x).max(initial=-1)) + 1


class HardFunction(nn.Module):
    """f(x) = L l^2 / 152 F_T(x / l), whose stochastic gradient shows the next coordinate only now and then.

    Its samples are 0 or 1. The gradient of a sample is that of f, except that entries beyond the last one
    that is not 0 are divided by the chance of a 1, and multiplied with the sample.

    Parameters
    ----------
    bound : Bound
        Of which L, sigma^2 and Delta are.
    target : float
        eps; the scale is l = 152 sqrt(2 eps) / L.
    """

    def __init__(self, bound: Bound, target: float) -> None:
        super().__init__()
        coordinates, self.chance = bound.hard(target)
        if not coordinates:
            raise ParameterError(
                f"hard function: it has no coordinate at the target {target:g}; give a target below "
                f"L Delta / 3648 = {bound.smoothness * bound.gap / 3648:.3g}"
            )
        self.scale = SMOOTHNESS * math.sqrt(2 * target) / bound.smoothness
        self.height = bound.smoothness * self.scale**2 / SMOOTHNESS
        self.x = nn.Parameter(torch.zeros(coordinates))

    def forward(self, seen: Tensor) -> Tensor:
        """Return a loss for each sample, with its gradient and the value f(x)."""
        x = self.x.detach().double().numpy() / self.scale
        shown = np.tile(self.height / self.scale * chain_gradient(x), (len(seen), 1))
        shown[:, progress(x) :] *= seen.reshape(-1, 1).numpy() / self.chance
        return self.height * chain(x) + torch.from_numpy(shown).float() @ (self.x - self.x.detach())


def hard_problem(bound: Bound, target: float) -> dict[str, Any]:
    """Return fields of an experiment on the hard function: `data`, `sharding`, `model`, `loss`, `batch_size`.

    Every step of a worker takes one sample. Its strategy needs the selection `with_replacement`: the oracle
    answers each time by chance.

    Parameters
    ----------
    bound : Bound
        With like data.
    target : float
        eps, such that sigma^2 / (1058 eps), at least 1, is a whole number.

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> from psbench import Experiment, run
    >>> bound = Bound((2e-3,) * 3, smoothness=152, variance=529, gap=12 * 4)
    >>> problem = hard_problem(bound, 0.5) | {"cluster": {"workers": 3}, "stop": {"updates": 9}}
    >>> done = run(Experiment(strategy={"name": "asp", "selection": "with_replacement"}, **problem))
    >>> done.log.evaluations()[0]["train_loss"] > -12 * 4
    True
    """
    model, workers = HardFunction(bound, target), len(bound.step_s)
    rows = round(1 / model.chance)
    if abs(rows * model.chance - 1) > 1e-9 or not bound.like_data:
        raise ParameterError(
            f"hard function: sigma^2 / (1058 eps) is {1 / model.chance:.6g}; give like data, and a target "
            "for which it is a whole number"
        )
    samples = np.repeat([1.0] + [0.0] * (rows - 1), workers).reshape(-1, 1)  # dealt to the workers one by one
    targets = np.zeros(len(samples))
    return {
        "data": (samples, targets, samples[:1] + 0.5, targets[:1]),
        "sharding": _dealt,
        "model": model,
        "loss": _mean,
        "batch_size": workers,
    }


def _dealt(data: Any, workers: int, rng: Any) -> Integers:
    """Deal samples to the workers one by one, so that all have the same."""
    found: Integers = np.arange(len(data.train_y)).reshape(-1, workers).T
    return found


def _mean(outputs: Tensor, targets: Any) -> Tensor:
    """Return the mean of the samples' losses, which the model computes."""
    return outputs.mean()
