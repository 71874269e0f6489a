"""Live Hogwild, MLP on digits, two workers with one model in shared memory, against ASP with a server."""

from __future__ import annotations

from psbench.core.log import Kind
from psbench.experiment import Experiment
from psbench.strategies import asp, hogwild
from tests.benchmarks.live import steps_a_second
from tests.benchmarks.measure import Row, Rows, in_turns

STEPS, BATCH = 1500, 32


def run() -> Rows:
    """Measure both in turns; a step is one gradient."""
    experiments = [
        Experiment(
            data="digits",
            model="mlp",
            strategy=strategy,
            backend="dask",
            batch_size=2 * BATCH,
            cluster={"name": "homogeneous", "workers": 2},
            stop={"updates": STEPS},
            evaluate_every=1e9,
            optimizer={"name": "sgd", "lr": 0.01},
        )
        for strategy in (hogwild(write_s=0), asp())
    ]
    ours, theirs = in_turns([lambda each=each: steps_a_second(each, Kind.PUSH) for each in experiments], 2)
    what = "live Hogwild, MLP on digits, 2 workers / ASP"
    return [Row(what, f"{ours:,.0f} steps/s", f"{theirs:,.0f} steps/s", ours / theirs, 0.9, 1.2)]
