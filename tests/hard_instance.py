"""Experiments on the hard function of the lower bound with its oracle, and on quadratics with known L."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor, nn

from psbench.arrays import Doubles
from psbench.optimal import Bound
from psbench.optimal.bounds import GAP, LARGEST, SMOOTHNESS
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster

#: speeds of the workers; a step of one sample takes 2 ms at speed 1
SPEED = [1.0, 0.8, 0.5, 0.1]
STEP_S = tuple(2e-3 / speed for speed in SPEED)
#: the squared gradient norm to be reached on the hard function without scaling: with L = 152 and eps = 1/2
#: the proof's scale lambda is 1
EPS = 0.5
#: entries of the hard function, and the chance with which its oracle shows the next one
COORDINATES, CHANCE = 16, 0.1


def psi(x: Doubles) -> Doubles:
    """Return Psi: 0 up to 1/2, then exp(1 - 1 / (2x - 1)^2)."""
    found: Doubles = np.where(x > 0.5, np.exp(1 - 1 / np.where(x > 0.5, 2 * x - 1, 1) ** 2), 0)
    return found


def phi(x: Doubles) -> Doubles:
    """Return Phi: sqrt(e) times the integral of exp(-t^2 / 2) up to x."""
    found: Doubles = math.sqrt(2 * math.pi * math.e) * ndtr(x)
    return found


def psi_slope(x: Doubles) -> Doubles:
    """Return the derivative of Psi."""
    found: Doubles = psi(x) * 4 / np.where(x > 0.5, 2 * x - 1, 1) ** 3
    return found


def phi_slope(x: Doubles) -> Doubles:
    """Return the derivative of Phi."""
    found: Doubles = np.exp(0.5 - 0.5 * x**2)
    return found


def chain(x: Doubles) -> float:
    """Return F_T(x) (Carmon et al. 2020; Arjevani et al. 2022), T the number of entries."""
    before = np.append(1, x[:-1])
    return float((psi(-before) * phi(-x) - psi(before) * phi(x)).sum())


def chain_gradient(x: Doubles) -> Doubles:
    """Return the gradient of F_T."""
    before, after = np.append(1, x[:-1]), x[1:]
    found = -psi(-before) * phi_slope(-x) - psi(before) * phi_slope(x)
    found[:-1] += -psi_slope(-x[:-1]) * phi(-after) - psi_slope(x[:-1]) * phi(after)
    return found


def progress(x: Doubles) -> int:
    """Return the number of the last entry that is not 0, from 1; 0 without one."""
    return int(np.flatnonzero(x).max(initial=-1)) + 1


class Chain(nn.Module):
    """F_T whose gradient shows the next coordinate only for samples that are 1, 1/chance times as large."""

    def __init__(self, coordinates: int, chance: float) -> None:
        super().__init__()
        self.chance = chance
        self.x = nn.Parameter(torch.zeros(coordinates))

    def forward(self, seen: Tensor) -> Tensor:
        """Return a loss for each sample with that gradient, and with F_T's value."""
        x = self.x.detach().double().numpy()
        shown = np.tile(chain_gradient(x), (len(seen), 1))
        shown[:, progress(x) :] *= seen.reshape(-1, 1).numpy() / self.chance
        return chain(x) + torch.from_numpy(shown).float() @ (self.x - self.x.detach())


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


def experiment(strategy: Any, model: nn.Module, samples: Any, optimizer: Any, stop: Any, seed: int) -> Any:
    """Return an experiment of steps of one sample, drawn with replacement, evaluated after every update."""
    targets = np.zeros(len(samples))
    named = {"name": strategy} if isinstance(strategy, str) else strategy
    return toy_experiment(
        {**named, "selection": "with_replacement"},
        data=(samples, targets, samples[:1] + 0.5, targets[:1]),
        sharding=shards,
        model=model,
        loss=mean,
        cluster=toy_cluster(SPEED),
        batch_size=len(SPEED),
        optimizer=optimizer,
        metrics=["gradient_norm_sq"],
        evaluate_every=1 / len(samples),
        stop=stop,
        seed=seed,
    )


def hard(strategy: Any, seed: int, shows: float | None = None) -> tuple[Any, Bound]:
    """Return an experiment on the hard function, and its bound.

    The rate is so large that a coordinate that is seen is done with at once, in any strategy.

    Parameters
    ----------
    strategy : name or mapping
    seed : int
    shows : float, optional
        The chance with which the oracle shows the next coordinate, if it is not that of the proof.
    """
    chance = CHANCE if shows is None else shows
    of_a_worker = [1.0] + [0.0] * (round(1 / chance) - 1)
    samples = np.repeat(of_a_worker, len(SPEED)).reshape(-1, 1)
    bound = Bound(STEP_S, SMOOTHNESS, LARGEST**2 / CHANCE, float(GAP * COORDINATES))
    assert bound.hard(EPS)[0] == COORDINATES
    target = {"metric": "train_gradient_norm_sq", "at_most": EPS}
    stop = {"seconds": 2 * bound.unavoidable(EPS), "target": target}
    optimizer = {"name": "sgd", "lr": 1.0}
    return experiment(strategy, Chain(COORDINATES, chance), samples, optimizer, stop, seed), bound


def quadratic(strategy: Any, optimizer: Any, updates: int, like_data: bool = True) -> tuple[Any, Bound]:
    """Return an experiment on a quadratic, and the bound of its exact L, sigma^2 and Delta.

    With unlike data every worker's loss has its own minimum.
    """
    rng = np.random.default_rng(5)
    curvature, workers = np.array([2.0, 1.0, 0.6, 0.1]), len(SPEED)
    noise = rng.normal(size=(20, len(curvature)))
    noise -= noise.mean(0)
    own = np.zeros((workers, len(curvature))) if like_data else rng.normal(size=(workers, len(curvature)))
    own -= own.mean(0)
    samples = (noise[:, None] + own).reshape(-1, len(curvature))  # dealt to the workers one by one
    pull = np.array([1.0, -1.0, 0.5, 0.2])
    model = Quadratic(torch.tensor(curvature).float(), torch.tensor(pull).float())
    variance = float((noise**2).sum(1).mean())
    bound = Bound(STEP_S, float(curvature.max()), variance, float((pull**2 / curvature).sum() / 2), like_data)
    return experiment(strategy, model, samples, optimizer, {"updates": updates}, seed=0), bound
