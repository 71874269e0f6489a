"""Live partial reduce of the CNN by a group of two workers against All-Reduce of the same two."""

from __future__ import annotations

from psbench.core.log import Kind
from psbench.experiment import Experiment
from psbench.strategies import all_reduce, partial_reduce
from tests.benchmarks.live import steps_a_second
from tests.benchmarks.measure import Pictures, Row, Rows, in_turns

STEPS, BATCH = 150, 32


def run() -> Rows:
    """Measure both in turns; both make the same model, and a step is one of each worker."""
    experiments = [
        Experiment(
            data=Pictures(),
            model="cnn",
            strategy=strategy,
            backend="dask",
            batch_size=2 * BATCH,
            cluster={"name": "homogeneous", "workers": 2},
            stop={"updates": updates},
            evaluate_every=1e9,
            optimizer={"name": "sgd", "lr": 0.01, "momentum": 0.9},
        )
        # without a server a run counts the updates of each worker
        for strategy, updates in ((partial_reduce(group_size=2), 2 * STEPS), (all_reduce(), STEPS))
    ]
    ours, theirs = in_turns(
        [lambda each=each: steps_a_second(each, Kind.PUSH) / 2 for each in experiments], 3
    )
    what = "live partial reduce, CNN, one group of 2 workers / All-Reduce"
    return [Row(what, f"{ours:,.1f} steps/s", f"{theirs:,.1f} steps/s", ours / theirs, 0.8, 1.0)]
