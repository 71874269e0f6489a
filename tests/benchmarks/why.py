"""`ps.why`: CPU seconds of a counterfactual beside the simulated run, and of a whole answer.

The run is ASP on cluster c2 and digits, 40 epochs; the counterfactual gives it BSP's staleness. Its schedule
is read once for all counterfactuals of a seed, and counts in the whole answer alone: four causes, five seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psbench as ps
from psbench.causes import Schedule, Staleness, recompute
from tests.benchmarks.measure import Row, Rows, in_turns

ASP = ps.Experiment(strategy="asp", cluster="c2", stop={"epochs": 40}, processes=1)
CAUSES = ("staleness", "rate", "momentum", "samples")
REPEATS, SEEDS, CORES = 3, 5, 2


def run() -> Rows:
    """Return a row for a counterfactual, and one for an answer."""
    a, b = (Schedule.of(ps.run(each)) for each in (ASP, ASP.but(strategy="bsp")))
    counterfactual, simulated = in_turns(
        [lambda: _cpu_s(lambda: recompute(a, [Staleness(a, b)])), lambda: _cpu_s(lambda: ps.run(ASP))],
        REPEATS,
    )
    whole = _cpu_s(
        lambda: ps.why(ASP, ASP.but(strategy="bsp"), CAUSES, seeds=SEEDS, processes=1, progress=False)
    )
    return [
        Row(
            what="a counterfactual: the staleness of BSP in ASP, c2, digits, 40 epochs",
            ours=f"{counterfactual:.2f} s CPU",
            other=f"the simulated run: {simulated:.2f} s CPU",
            value=counterfactual / simulated,
            at_least=1.1,
            lower_is_better=True,
        ),
        Row(
            what=f"an answer: {len(CAUSES)} causes, {SEEDS} seeds, ASP against BSP",
            ours=f"{whole:.0f} s CPU",
            other=f"{CORES} cores",
            value=whole / CORES,
            at_least=180.0,
            unit="s",
            lower_is_better=True,
        ),
    ]


def _cpu_s(do: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    began = time.process_time()
    do()
    return time.process_time() - began
