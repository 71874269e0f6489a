"""Every strategy of the catalogue on MNIST, simulated: the accuracies in measurements.md.

    PSBENCH_DATA=... python -m tests.benchmarks.mnist_accuracy [NAME ...] [--epochs 2] [--out rows.jsonl]

The CNN of 110 k parameters on C2, nine workers of which four are slower; batch 128 in all, SGD with rate
0.05 and momentum 0.9, two epochs, seed 0. What differs for a strategy, and why, stands in `CHANGES`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from psbench.experiment import Experiment
from psbench.runs.execution import run
from psbench.strategies import CATALOGUE

#: changes of the experiment by strategy
CHANGES: dict[str, dict[str, Any]] = {
    # divides by its staleness only, so that at the beginning nine pushes move it as far as nine barriers
    "dyn_sgd": {"optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9}},
    # two pushes of a mean staleness of 3.5 at the whole rate diverge with this momentum (at epoch 1.4)
    "k_asp": {"strategy": {"name": "k_asp", "lr_scaling": "by_share"}},
    "k_batch_asp": {"strategy": {"name": "k_batch_asp", "lr_scaling": "by_share"}},
    # the empirical rule asks for losses that change by less than 1 %, and one of 0.04 always changes by more
    "strategy_switch": {"strategy": {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}}},
    # the run takes about a minute, which is one of the published intervals
    "adacomm": {"strategy": {"name": "adacomm", "interval_s": 5.0}},
    # the published chunk, 2,500 samples five times, is nearly all that a worker sees in two epochs
    "hermes": {
        "strategy": {"name": "hermes", "chunk_samples": 500, "passes": 1},
        "optimizer": {"name": "sgd", "lr": 0.05},
    },
    # Adam's usual rate; a hundred updates of whole gradients are an eighth of the run
    "one_bit_adam": {"optimizer": {"name": "sgd", "lr": 0.001}},
    # an outer momentum of .9 moves the model 7 and 10 times as far as the mean of the workers' steps
    "diloco": {"optimizer": {"name": "sgd", "lr": 0.005, "momentum": 0.9}},
    # of its outer step the others' share is a round old: at .7 it ends at 47 %, with a tenth of the rate too
    "eager_diloco": {
        "strategy": {"name": "eager_diloco", "outer_lr": 0.2},
        "optimizer": {"name": "sgd", "lr": 0.005, "momentum": 0.9},
    },
    "fedavgm": {"optimizer": {"name": "sgd", "lr": 0.005, "momentum": 0.9}},
    # 6.25 % of two epochs are too few steps to settle in, and nine times the momentum too much for ASP
    "sync_switch": {"strategy": {"name": "sync_switch", "fraction": 0.25, "momentum": "scaled"}},
}


def experiment(name: str, epochs: float) -> Experiment:
    """Return the experiment of a strategy."""
    values: dict[str, Any] = {
        "name": name,
        "data": {"name": "mnist"},
        "model": "cnn",
        "cluster": "c2",
        "strategy": name,
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "batch_size": 128,
        "stop": {"epochs": epochs},
    }
    return Experiment(**values | CHANGES.get(name, {}))


def measure(name: str, epochs: float) -> dict[str, Any]:
    """Run a strategy and return its row."""
    summary = run(experiment(name, epochs)).summary()
    facts = ("epochs", "time_s", "updates", "status", "bytes", "final", "wall_s")
    return {"name": name, "staleness": summary["staleness"]["mean"], **{k: summary[k] for k in facts}}


def main() -> int:
    """Run, print, and keep the rows."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.mnist_accuracy", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="strategies; all of the catalogue if none")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--out", type=Path, help="a file that rows are appended to, one JSON object a line")
    asked = parser.parse_args()
    for name in asked.names or CATALOGUE:
        line = json.dumps(measure(name, asked.epochs))
        print(line, flush=True)
        if asked.out is not None:
            with asked.out.open("a") as file:
                file.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
