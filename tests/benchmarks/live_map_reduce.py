"""Small mini-batches live: a parameter server and one Dask graph a mini-batch, on the same two workers."""

from __future__ import annotations

import torch

from psbench.core.log import Kind
from psbench.experiment import Experiment
from tests.benchmarks.live import steps_a_second
from tests.benchmarks.measure import Row, Rows, in_turns

BATCH = 32
#: updates of a run: about three seconds each
UPDATES = {"bsp": 3000, "asp": 6000, "map_reduce": 200}


def _experiment(strategy: str) -> Experiment:
    return Experiment(
        data="digits",
        model="logistic",
        strategy=strategy,
        backend="dask",
        batch_size=BATCH,
        cluster={"name": "homogeneous", "workers": 2},
        stop={"updates": UPDATES[strategy]},
        evaluate_every=1e9,
        optimizer={"name": "sgd", "lr": 0.01},
    )


def _rate(strategy: str) -> float:
    """Return the mini-batches of `BATCH` samples that a run gets through in a second."""
    rate = steps_a_second(_experiment(strategy), Kind.PUSH)
    return rate / 2  # each of the two workers pushes half a mini-batch


def run() -> Rows:
    """Measure all three in turns."""
    torch.set_num_threads(1)
    bsp, asp, jobs = in_turns([lambda name=name: _rate(name) for name in UPDATES], 3)
    what = f"live, logistic regression on digits, mini-batches of {BATCH}, 2 workers, mini-batches/s"
    return [
        Row(f"{what}: {name} / map_reduce", f"{ours:,.0f}/s", f"{jobs:,.0f}/s", ours / jobs, 8.23, 30.0)
        for name, ours in (("bsp", bsp), ("asp", asp))
    ]
