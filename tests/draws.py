"""Experiments made by chance from all that psbench registers, what is added later too."""

from __future__ import annotations

from typing import Any

import numpy as np

from psbench.core.part import Part
from psbench.errors import SpecError
from psbench.experiment import Experiment
from psbench.testing import toy_experiment
from psbench.testing.random_cluster import fitting_sizes
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload
from psbench_fuzz.compositions import draw_part, draw_strategy
from psbench_fuzz.compositions import registered as kinds

#: attempts at something valid before it is said that there is nothing
ATTEMPTS = 5000

__all__ = ["SHARDINGS", "draw_experiment", "draw_strategy", "kinds"]

#: all but those that need something of a person's: a column of a table, a function
SHARDINGS = [kind for kind in kinds("sharding") if kind.name not in ("column", "import")]


def draw_experiment(rng: np.random.Generator, *given: type[Part]) -> Experiment:
    """A toy experiment with slow links, failures and late joins; worker 0 always stays."""
    shardings = [kind for kind in given if kind.domain == "sharding"] or SHARDINGS
    for _ in range(ATTEMPTS):
        strategy = draw_strategy(rng, *given)
        sizes = fitting_sizes(strategy)
        size = sizes[rng.integers(len(sizes))]
        try:
            experiment = toy_experiment(
                strategy,
                cluster=draw_cluster(size, rng),
                sharding=draw_part(shardings[rng.integers(len(shardings))], rng),
                optimizer={"name": "sgd", "lr": 0.02, "momentum": float(rng.choice([0.0, 0.9]))},
                batch_size=4 * size,
                stop={"epochs": 1.5, "seconds": 0.6},
                evaluate_every=0.5,
                seed=int(rng.integers(1000)),
            )
            Workload.build(experiment)
        except SpecError:  # the optimizer has no momentum to reduce, or the data is too small for the shards
            continue
        return experiment
    raise AssertionError("no experiment found")


def draw_cluster(size: int, rng: np.random.Generator) -> dict[str, Any]:
    failures, joins = [], []
    for worker in range(1, size):
        at = 0.0
        if rng.random() < 0.25:
            at = float(rng.uniform(0.001, 0.1))
            joins.append({"worker": worker, "at_s": at})
        if rng.random() < 0.4:
            at += float(rng.uniform(0.001, 0.1))
            back = {"rejoin_s": at + float(rng.uniform(0.001, 0.1))} if rng.random() < 0.6 else {}
            failures.append({"worker": worker, "at_s": at, **back})
    links = [{}, {"latency_s": 0.0005}, {"latency_s": 0.001, "bandwidth_mbit_s": 1.0}]
    return toy_cluster(
        [float(speed) for speed in rng.choice([1.0, 0.5, 0.25], size)],
        step_time=str(rng.choice(["constant", "shifted_exponential", "pareto"])),
        failures=failures,
        joins=joins,
        **links[rng.integers(3)],
    )
