"""Live All-Reduce of the CNN by two workers against DistributedDataParallel (gloo), two ranks."""

from __future__ import annotations

import sys

from psbench.core.log import Kind
from psbench.experiment import Experiment
from tests.benchmarks.live import peer, steps_a_second
from tests.benchmarks.measure import Pictures, Row, Rows, in_turns

STEPS, BATCH = 150, 32


def _experiment() -> Experiment:
    return Experiment(
        data=Pictures(),
        model="cnn",
        strategy="all_reduce",
        backend="dask",
        batch_size=2 * BATCH,
        cluster={"name": "homogeneous", "workers": 2},
        stop={"updates": STEPS},
        evaluate_every=1e9,
        optimizer={"name": "sgd", "lr": 0.01, "momentum": 0.9},
    )


def run() -> Rows:
    """Measure both in turns; a step is one update of all."""
    sides = [
        lambda: steps_a_second(_experiment(), Kind.PUSH) / 2,
        lambda: peer(sys.executable, "ddp.py", (STEPS, BATCH)),
    ]
    ours, ddp = in_turns(sides, 3)
    what = "live All-Reduce, CNN, 2 workers / DistributedDataParallel (gloo)"
    return [Row(what, f"{ours:,.1f} steps/s", f"{ddp:,.1f} steps/s", ours / ddp, 1.0, 1.3)]
