"""Experiments on the hard function of the lower bound, and on quadratics with known constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from psbench.optimal import Bound, hard_problem
from psbench.optimal.bounds import GAP, LARGEST, SMOOTHNESS
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster

#: speeds of the workers; a step of one sample takes 2 ms at speed 1
SPEED = [1.0, 0.8, 0.5, 0.1]
STEP_S = tuple(2e-3 / speed for speed in SPEED)
#: entries of the hard function, the chance with which its oracle shows the next one, and the target
COORDINATES, CHANCE, EPS = 16, 0.1, 0.5
#: of the hard function without scaling: with L = 152 and eps = 1/2 the proof's scale is 1
HARD = Bound(STEP_S, SMOOTHNESS, LARGEST**2 / CHANCE, GAP * COORDINATES)


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


def experiment(strategy: Any, **fields: Any) -> Any:
    """Return an experiment of steps of one sample, drawn with replacement, evaluated after every update."""
    named = {"name": strategy} if isinstance(strategy, str) else strategy
    return toy_experiment(
        {**named, "selection": "with_replacement"},
        cluster=toy_cluster(SPEED),
        metrics=["gradient_norm_sq"],
        evaluate_every=1 / len(fields["data"][0]),
        **fields,
    )


def hard(strategy: Any, seed: int, is_shown: bool = False) -> Any:
    """Return an experiment on the hard function, which ends at the target or after twice its lower bound.

    The rate is so large that a coordinate that is seen is done with at once, in any strategy.

    Parameters
    ----------
    is_shown : bool
        Whether the oracle always shows the next coordinate, as it must not.
    """
    fields = hard_problem(HARD, EPS)
    if is_shown:
        fields["model"].chance = 1.0
        fields["data"][0][:] = 1.0
    target = {"metric": "train_gradient_norm_sq", "at_most": EPS}
    stop = {"seconds": 2 * HARD.unavoidable(EPS), "target": target}
    return experiment(strategy, optimizer={"name": "sgd", "lr": 1.0}, stop=stop, seed=seed, **fields)


def quadratic(strategy: Any, lr: float, updates: int, like_data: bool = True) -> tuple[Any, Bound]:
    """Return an experiment on a quadratic, and the bound of its exact L, sigma^2 and Delta.

    With unlike data every worker's loss has its own minimum.
    """
    rng = np.random.default_rng(5)
    curvature, workers = np.array([2.0, 1.0, 0.6, 0.1]), len(SPEED)
    noise = rng.normal(size=(20, len(curvature)))
    noise -= noise.mean(0)
    own = np.zeros((workers, len(curvature))) if like_data else rng.normal(size=(workers, len(curvature)))
    own -= own.mean(0)
    pull = np.array([1.0, -1.0, 0.5, 0.2])
    variance = float((noise**2).sum(1).mean())
    bound = Bound(STEP_S, float(curvature.max()), variance, float((pull**2 / curvature).sum() / 2), like_data)
    dealt = hard_problem(HARD, EPS)
    samples = (noise[:, None] + own).reshape(-1, len(curvature))  # dealt to the workers one by one
    targets = np.zeros(len(samples))
    fields = dealt | {
        "data": (samples, targets, samples[:1] + 0.5, targets[:1]),
        "model": Quadratic(torch.tensor(curvature).float(), torch.tensor(pull).float()),
    }
    optimizer = {"name": "sgd", "lr": lr}
    return experiment(strategy, optimizer=optimizer, stop={"updates": updates}, **fields), bound
