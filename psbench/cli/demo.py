"""A tour in one command: compare three strategies in virtual time, then run one of them live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psbench.experiment import Experiment

SEEDS = 3
#: digits has 360 validation images: when its loss has settled, it still changes by a few per cent from epoch
#: to epoch, so the paper's 1 % would be met by luck (in 2 of 15 runs of 40 epochs under All-Reduce, rates
#: 0.05, 0.1 and 0.2). A threshold that follows this noise is met in all 15, at the rate 0.1 between epochs 12
#: and 18, which leaves the second half of the epochs to recover from the change.
_SWITCH = {"name": "strategy_switch", "rule": "noise_adaptive"}
_SHARED: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    "batch_size": 128,
    "stop": {"epochs": 40},
}


def simulated() -> list[Experiment]:
    """Return the three experiments on the heterogeneous cluster of the Strategy-Switch paper."""
    strategies = ("all_reduce", "asp", _SWITCH)
    return [Experiment(**_SHARED, cluster="c2", strategy=strategy) for strategy in strategies]


def live() -> Experiment:
    """Return Strategy-Switch for a local Dask cluster: one of three workers at half speed."""
    return Experiment(
        **_SHARED,
        name="strategy_switch, live",
        cluster={"workers": 3, "speed": [1, 1, 0.5]},
        strategy=_SWITCH,
        backend="dask",
    )


def planned(with_live: bool) -> list[tuple[str, Experiment]]:
    """Return the runs of the demo, each with its title for the progress bar."""
    runs = [(f"{one.title}, seed {seed}", one.but(seed=seed)) for one in simulated() for seed in range(SEEDS)]
    if with_live:
        runs.append(("strategy_switch, live on a Dask cluster of this machine", live()))
    return runs


def introduction(path: Path) -> str:
    """Return the text printed before the demo."""
    return (
        "All-Reduce, ASP and Strategy-Switch on the simulated cluster C2 (nine workers, two of them at a\n"
        f"quarter of the speed), {SEEDS} seeds each; then Strategy-Switch live: a parameter server and\n"
        f"three workers, one at half speed, as tasks on Dask. The report goes to {path}.\n"
    )
