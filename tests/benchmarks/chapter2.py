"""Mini-batches to converge, as in the thesis' Tables 2.5 and 2.6, on look-alikes of its data.

    python -m tests.benchmarks.chapter2

Runs in virtual time: the count of mini-batches does not depend on how long one takes. What agrees with the
thesis is what must: MapReduce and the synchronous parameter server need equally many under gradient descent.
(Here they do under SGD too, as they draw the same mini-batches.) How many there are is of these made-up
numbers and not of HIGGS; nor does the thesis give its rates and its criterion. An asynchronous update is of
a worker's part of a mini-batch, at that part of the rate; so it is to move the model by less than that part
of the tolerance.
"""

from __future__ import annotations

import argparse
from math import log
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from psbench.experiment import Experiment
from psbench.runs.execution import run

STRATEGIES = {"map_reduce": "MapReduce", "bsp": "synchronous", "asp": "asynchronous"}
#: MLlib's default, and where to give up
TOLERANCE, MOST = 0.001, 20_000
#: the rate follows 1 / sqrt(t) in steps, each at so many times the mini-batches of the one before
STEP = 1.1


class Case(NamedTuple):
    """A model on its data, its first rate, the sizes of mini-batches, and what the thesis counts."""

    name: str
    layout: str
    model: Any
    lr: float
    batches: tuple[int | None, ...]
    thesis: tuple[str, ...]


#: None: the whole set. Rates are chosen by hand so that all strategies descend
CASES = (
    Case(
        *("logistic", "higgs", "logistic", 0.5),
        (None, 2000, 500),
        ("317 / 317 / 137", "774 / 737 / 1006", "1375 / 1644 / 2449"),
    ),
    Case(
        *("linear", "year_prediction_msd", "linear", 0.1),
        (None, 2000, 500),
        ("3104 / 3104 / 1328", "2678 / 2773 / 1042", "2438 / 2540 / 1121"),
    ),
    Case(
        *("perceptron", "higgs", {"name": "mlp", "hidden": [15, 15]}, 2.0),
        (None,),
        ("72 / 72 / 118",),
    ),
)


def experiment(case: Case, strategy: str, batch: int | None, samples: int, workers: int) -> Experiment:
    """Return a run until an update moves the model by less than MLlib's tolerance.

    The rate of the t-th mini-batch is MLlib's lr / sqrt(t), in steps of 5 %. With a rate that stays, SGD's
    noise keeps the model moving and no run would end.
    """
    train = samples - round(0.2 * samples)
    share = workers if strategy == "asp" else 1
    size = batch or train
    steps = [STEP**k for k in range(1, int(log(MOST, STEP)) + 1)]
    return Experiment(
        data={"name": "synthetic_table", "layout": case.layout, "samples": samples},
        model=case.model,
        strategy=strategy,
        batch_size=size,
        cluster={"workers": workers},
        # shards of equal sizes, so that under gradient descent everybody's part is its shard
        sharding={"name": "stratified", "rotate": True},
        optimizer={
            "name": "sgd",
            "lr": case.lr,
            "milestones": [t * size / train for t in steps],
            "gamma": STEP**-0.5,
        },
        stop={"tolerance": TOLERANCE / share, "updates": MOST * share},
        evaluate_every=1e9,
    )


def count(planned: Experiment) -> tuple[str, float]:
    """Return the mini-batches that a run took, and its last training loss."""
    summary = run(planned).summary()
    ended = "moved the model" in summary["reason"]
    return f"{summary['mini_batches']:.0f}" if ended else f"> {MOST}", summary["final"]["train_loss"]


def table(samples: int, workers: int) -> Table:
    """Run every case and return the counts."""
    headings = ("model", "mini-batch", *STRATEGIES.values(), "training loss", "thesis")
    found = Table(*headings, title=f"mini-batches to converge: {samples} rows, {workers} workers")
    for case in CASES:
        for batch, thesis in zip(case.batches, case.thesis, strict=True):
            planned = [experiment(case, strategy, batch, samples, workers) for strategy in STRATEGIES]
            counts, losses = zip(*map(count, planned), strict=True)
            size = "all (GD)" if batch is None else str(batch)
            cell = " / ".join(f"{loss:.3f}" for loss in losses)
            found.add_row(case.name, size, *counts, cell, thesis)
    return found


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=20_000, help="rows of each look-alike")
    parser.add_argument("--workers", type=int, default=4)
    asked = parser.parse_args()
    Console(width=130).print(table(asked.samples, asked.workers))


if __name__ == "__main__":
    main()
