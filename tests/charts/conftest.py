from __future__ import annotations

from collections.abc import Callable

import pytest

from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run

RULE = {"name": "empirical", "window": 1, "threshold": 0.9}


def small(strategy: object, seed: int = 0) -> Experiment:
    return Experiment(
        strategy=strategy, cluster={"workers": 3, "speed": [1, 1, 0.5]}, stop={"epochs": 3}, seed=seed
    )


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Experiment]:
    return small


@pytest.fixture(scope="session")
def runs() -> list[Run]:
    """All-Reduce, ASP with two seeds each, and a switching strategy that switches."""
    experiments = [small(name, seed) for name in ("all_reduce", "asp") for seed in (0, 1)]
    return [run(e) for e in [*experiments, small({"name": "strategy_switch", "rule": RULE})]]
