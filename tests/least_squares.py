"""Least squares of workers with unlike data, all of which each takes in a step: gradients in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from psbench.testing import toy_experiment
from psbench.training.build import Workload

WORKERS, SAMPLES, FEATURES = 3, 4, 2
_RNG = np.random.default_rng(7)
X = _RNG.normal(size=(WORKERS, SAMPLES, FEATURES)) * [[[1.0]], [[1.5]], [[0.6]]]
#: each worker's own optimum is somewhere else
Y = np.einsum("ijk,ik->ij", X, np.array([[3.0, -1.0], [-2.0, 2.0], [0.5, 4.0]]))


def gradient(worker: int, w: Any) -> Any:
    """Return a worker's gradient of the mean squared error."""
    return 2 / SAMPLES * X[worker].T @ (X[worker] @ w - Y[worker])


def optimum() -> Any:
    """Return where the mean of the workers' gradients is 0."""
    return np.linalg.lstsq(X.reshape(-1, FEATURES), Y.reshape(-1), rcond=None)[0]


def experiment(strategy: Any, workers: int = WORKERS, lr: float = 0.05, **changes: Any) -> Any:
    """Return an experiment on the data of the first workers, each of which takes all of its own in a step."""
    inputs, targets = X[:workers].reshape(-1, FEATURES), Y[:workers].reshape(-1)
    settings: dict[str, Any] = {
        "data": (inputs, targets, inputs + 1, targets),
        "sharding": lambda _, n, rng: np.arange(n * SAMPLES).reshape(n, SAMPLES),
        "model": model(),
        "loss": "mse",
        "cluster": {"workers": workers, "speed": [1.0, 0.7, 0.4][:workers], "step_time": "constant"},
        "batch_size": workers * SAMPLES,
        "optimizer": {"name": "sgd", "lr": lr},
    }
    return toy_experiment(strategy, **settings | changes)


def model() -> torch.nn.Module:
    """Return a linear model that begins at (1/2, -1/2)."""
    made = torch.nn.Linear(FEATURES, 1, bias=False)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([[0.5, -0.5]]))
    return made


def start(spec: Any) -> Any:
    """Return the parameters that a run begins with."""
    return Workload.build(spec).parameters.double().numpy()
