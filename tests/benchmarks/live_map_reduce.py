"""Mini-batches live: a parameter server and one Dask graph a mini-batch, on the same two workers."""

from __future__ import annotations

import torch

from psbench.backends.dask.local_cluster import local_cluster
from psbench.core.log import Kind
from psbench.experiment import Experiment
from tests.benchmarks.live import steps_a_second
from tests.benchmarks.measure import Row, Rows, in_turns

#: rows like those of HIGGS, 28 features; each worker's partition is half of them
SAMPLES = 100_000
#: samples of a mini-batch, and what is to be reached: the thesis' smallest, and all (gradient descent)
SIZES = {500: 8.23, SAMPLES: None}
STRATEGIES = ("bsp", "asp", "map_reduce")
#: of a run, without its start
SECONDS = 2.0


def _experiment(strategy: str, size: int, scheduler: str) -> Experiment:
    return Experiment(
        data={
            "name": "synthetic_table",
            "layout": "higgs",
            "samples": SAMPLES * 10 // 8,
            "val_fraction": 0.2,
        },
        model="logistic",
        strategy=strategy,
        backend="dask",
        scheduler=scheduler,
        batch_size=size,
        cluster={"name": "homogeneous", "workers": 2},
        stop={"seconds": SECONDS},
        evaluate_every=1e9,
        optimizer={"name": "sgd", "lr": 0.01},
    )


def _rate(strategy: str, size: int, scheduler: str) -> float:
    """Return the mini-batches that a run gets through in a second; each worker pushes half of one."""
    return steps_a_second(_experiment(strategy, size, scheduler), Kind.PUSH) / 2


def run() -> Rows:
    """Measure all strategies in turns, one size after the other, in the same processes."""
    torch.set_num_threads(1)
    with local_cluster(4) as cluster:
        return [row for size in SIZES for row in _rows(size, cluster.scheduler_address)]


def _rows(size: int, scheduler: str) -> Rows:
    sides = [lambda name=name: _rate(name, size, scheduler) for name in STRATEGIES]
    *servers, jobs = in_turns(sides, 3)
    least = SIZES[size]
    what = f"live, logistic, {SAMPLES:,} rows, mini-batches of {size:,}, 2 workers, mini-batches/s"
    rates = zip(STRATEGIES, servers, strict=False)
    return [
        Row(
            f"{what}: {name} / map_reduce",
            f"{rate:,.0f}/s",
            f"{jobs:,.0f}/s",
            rate / jobs,
            least,
            least and 30,
        )
        for name, rate in rates
    ]
