"""Experiments on the hard function of the lower bound with its oracle, and on quadratics with known L."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from psbench.optimal import Bound
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster

#: speeds of the workers; a step of one sample takes 2 ms at speed 1
SPEED = [1.0, 0.8, 0.5, 0.1]
STEP_S = tuple(2e-3 / speed for speed in SPEED)
#: the squared gradient norm to be reached on the hard function without scaling: with L = 152 and eps = 1/2
#: the proof's scale lambda is 1
EPS = 0.5


def psi(x: Tensor) -> Tensor:
    """Return Psi: 0 up to 1/2, then exp(1 - 1 / (2x - 1)^2)."""
    above = torch.where(x > 0.5, 2 * x - 1, torch.ones_like(x))
    return torch.where(x > 0.5, torch.exp(1 - above**-2), torch.zeros_like(x))


def phi(x: Tensor) -> Tensor:
    """Return Phi: sqrt(e) times the integral of exp(-t^2 / 2) up to x."""
    return torch.special.ndtr(x) * np.sqrt(2 * np.pi * np.e)


def chain(x: Tensor) -> Tensor:
    """Return F_T(x) (Carmon et al. 2020; Arjevani et al. 2022), T the number of entries."""
    before = torch.cat([torch.ones_like(x[:1]), x[:-1]])
    return (psi(-before) * phi(-x) - psi(before) * phi(x)).sum()


def chain_gradient(x: Tensor) -> Tensor:
    """Return the gradient of F_T."""
    with torch.enable_grad():
        leaf = x.detach().double().requires_grad_()
        (found,) = torch.autograd.grad(chain(leaf), leaf)
    return found


def progress(x: Tensor) -> int:
    """Return the number of the last entry that is not 0, from 1; 0 without one."""
    found = torch.nonzero(x)
    return int(found[-1]) + 1 if len(found) else 0


class Chain(nn.Module):
    """F_T whose gradient shows the next coordinate only for samples that are 1, 1/chance times as large."""

    def __init__(self, coordinates: int, chance: float) -> None:
        super().__init__()
        self.chance = chance
        self.x = nn.Parameter(torch.zeros(coordinates))

    def forward(self, seen: Tensor) -> Tensor:
        """Return a loss for each sample with that gradient, and with F_T's value."""
        gradient, at = chain_gradient(self.x).float(), progress(self.x)
        shown = torch.ones(len(seen), len(self.x))
        shown[:, at:] = seen.reshape(-1, 1) / self.chance
        value = chain(self.x.detach().double()).float()
        return value + (shown * gradient) @ (self.x - self.x.detach())


class Quadratic(nn.Module):
    """1/2 x' A x - (b + noise)' x, with a diagonal A."""

    def __init__(self, curvature: Tensor, pull: Tensor) -> None:
        super().__init__()
        self.register_buffer("curvature", curvature)
        self.register_buffer("pull", pull)
        self.x = nn.Parameter(torch.zeros(len(curvature)))

    def forward(self, noise: Tensor) -> Tensor:
        """Return the loss of each sample."""
        return 0.5 * (self.curvature * self.x**2).sum() - (self.pull + noise) @ self.x


def mean(outputs: Tensor, targets: Any) -> Tensor:
    """Return the mean of the samples' losses, which the model computes."""
    return outputs.mean()


def shards(samples: Any, workers: int, rng: Any) -> Any:
    """Deal samples in order, so that all workers have the same numbers of both kinds."""
    return np.arange(len(samples.train_y)).reshape(-1, workers).T


def experiment(strategy: Any, model: nn.Module, samples: Any, every: float, **changes: Any) -> Any:
    """Return an experiment of steps of one sample, drawn with replacement, evaluated `every` so many."""
    targets = np.zeros(len(samples))
    named = {"name": strategy} if isinstance(strategy, str) else strategy
    settings: dict[str, Any] = {
        "data": (samples, targets, samples + 0.5, targets),
        "sharding": shards,
        "model": model,
        "loss": mean,
        "cluster": toy_cluster(SPEED),
        "batch_size": len(SPEED),
        "metrics": ["gradient_norm_sq"],
        "evaluate_every": every / len(samples),
    }
    return toy_experiment({**named, "selection": "with_replacement"}, **settings | changes)


def hard(strategy: Any, coordinates: int, chance: float, seconds: float, seed: int) -> tuple[Any, Bound]:
    """Return an experiment on the hard function, and its bound.

    The rate is so large that a coordinate that is seen is done with at once, in any strategy.
    """
    of_a_worker = [1.0] + [0.0] * (round(1 / chance) - 1)
    samples = np.repeat(of_a_worker, len(SPEED)).reshape(-1, 1)
    bound = Bound(STEP_S, 152.0, 0.0 if chance == 1 else 529 / chance, 12.0 * coordinates)
    model, optimizer = Chain(coordinates, chance), {"name": "sgd", "lr": 1.0}
    stop = {"seconds": seconds}
    return experiment(strategy, model, samples, 1, optimizer=optimizer, stop=stop, seed=seed), bound
