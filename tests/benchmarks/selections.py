"""Time in which each selection chooses a mini-batch of 128 from a shard of 60,000 samples, and learns.

Numbers of samples are drawn by chance: no model is computed. `online_batch` has to stay below a millisecond,
for which it keeps its order from step to step; beside each row is what sorting all losses takes.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable

import numpy as np

from psbench.core.selection import KnownOfData, SampleGroups, Selection
from psbench.seeds import Streams
from psbench.strategies import selection as parts
from psbench.training.chooser import Chooser
from tests.benchmarks.measure import Row, Rows

SAMPLES, BATCH, CLASSES, STEPS, ROUNDS = 60_000, 128, 10, 20, 10
#: without warm-ups: a rule is measured where it is in force
RULES: tuple[Selection, ...] = (
    parts.WithReplacement(),
    parts.Curriculum(column="score"),
    parts.OnlineBatch(),
    parts.RecencyBias(warm_up=0.0),
    parts.InstanceHardness(warm_up=0.0),
    parts.Importance(candidates=0.0),
    parts.DataAware(),
)
LIMIT_MS = 1.0


def run() -> Rows:
    """Return a row for each selection."""
    return [_row(selection) for selection in RULES]


def _row(selection: Selection) -> Row:
    chosen_ms, sorted_ms = _measure(selection)
    return Row(
        what=f"{selection.name}: {BATCH} of {SAMPLES}",
        ours=f"{chosen_ms:.3f} ms",
        other=f"{sorted_ms:.2f} ms to sort",
        value=chosen_ms,
        at_least=LIMIT_MS if selection.name == "online_batch" else None,
        unit=" ms",
        lower_is_better=True,
    )


def _measure(selection: Selection) -> tuple[float, float]:
    """Return the milliseconds of a mini-batch and of a sort of all losses."""
    labels = np.arange(SAMPLES) % CLASSES
    groups = SampleGroups(labels, labels, tuple(map(str, range(CLASSES))))
    scores = np.random.default_rng(0).random(SAMPLES)
    known = KnownOfData(groups, CLASSES, lambda samples: labels[samples], lambda name: scores)
    chooser = Chooser(selection, np.arange(SAMPLES), Streams(0), 0, known)
    rng = np.random.default_rng(1)

    def found(where: np.ndarray) -> dict[str, np.ndarray]:
        numbers = {"loss": rng.random(len(where)), "norm": rng.random(len(where))}
        numbers["predicted"] = rng.integers(CLASSES, size=len(where))
        return {name: numbers[name] for name in selection.remembers}

    def step() -> None:
        chosen = chooser.choose(BATCH, {}, found)
        chooser.learn(chosen.positions, found(chosen.positions))

    for _ in range(5):
        step()
    return _least_ms(step, STEPS), _least_ms(lambda: np.argsort(-scores, kind="stable"), 2)


def _least_ms(do: Callable[[], object], times: int) -> float:
    """Return the milliseconds of a call, in the quickest of several rounds."""
    return 1e3 * min(timeit.repeat(do, timer=time.process_time, number=times, repeat=ROUNDS)) / times
