"""Small runs in which everything occurs that derived numbers depend on; all are made in seconds."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import psbench as ps
from psbench.errors import DoubtfulComposition
from psbench.results.run import Run
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster

#: links on which messages take time, so that pulls and sends are seen
LINKS = {"latency_s": 0.001, "bandwidth_mbit_s": 0.5, "server_bandwidth_mbit_s": 1.0}
FOUR = toy_cluster([1.0, 0.8, 0.5, 0.25], **LINKS)
#: workers 1 and 3 fail while they compute or wait, 1 comes back, and 2 is late
CHANGING = FOUR | {
    "failures": [{"worker": 1, "at_s": 0.031, "rejoin_s": 0.082}, {"worker": 3, "at_s": 0.093}],
    "joins": [{"worker": 2, "at_s": 0.047}],
}
SWITCH = {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.4}, "cost_s": 0.013}
RULE = {"name": "empirical", "window": 1, "threshold": 0.9}
MLP = {"name": "mlp", "hidden": [6]}
DIVERGING = {"strategy": "asp", "model": MLP, "optimizer": {"name": "sgd", "lr": 1e25}}
WHOLE = {"name": "custom", "consistency": "asp", "lr_scaling": "none"}
CODECS = {"codec": {"name": "top_k", "ratio": 0.25}, "codec_down": "fp16"}


def _experiments() -> dict[str, list[dict[str, Any]]]:
    """Return what distinguishes each run from the toy experiment; a list is of seeds or settings of one."""
    return {
        # 13 samples: batches of 5, 4 and 4
        "barrier": [{"strategy": "bsp", "batch_size": 13, "seed": seed} for seed in (0, 1, 2)],
        "bounded": [{"strategy": {"name": "ssp", "staleness_bound": 2}, "cluster": FOUR}],
        "no barrier": [{"strategy": "asp", "cluster": toy_cluster([1.0, 0.5, 0.25], **LINKS)}],
        # an evaluation goes through 1,440 training samples, and a thousand at a time
        "large": [
            {"strategy": "asp", "data": {"name": "mixture", "num_samples": 3200, "val_fraction": 0.4}}
            | {"batch_size": 480, "stop": {"epochs": 1}, "seed": seed}
            for seed in (0, 1)
        ],
        "skewed": [
            {"strategy": {"name": "ssp", "staleness_bound": 2}, "cluster": FOUR}
            | {"sharding": {"name": "dirichlet", "alpha": 0.2, "min_size": 2}}
        ],
        "losses": [{"strategy": "asp", "cluster": CHANGING, "seed": seed} for seed in (0, 1)],
        "losses at a barrier": [{"strategy": "bsp", "cluster": CHANGING}],
        "switch": [
            {"strategy": SWITCH, "cluster": FOUR, "stop": {"epochs": 4}, "seed": seed} for seed in (0, 1)
        ],
        "rule": [{"strategy": {"name": "strategy_switch", "rule": RULE}, "stop": {"epochs": 5}}],
        "codecs": [{"strategy": {"name": "k_asp", "k": 2} | CODECS, "cluster": FOUR}],
        "local steps": [{"strategy": {"name": "local_sgd", "local_steps": 3}, "cluster": FOUR}],
        "votes": [
            {"strategy": {"name": "selsync", "delta": 0.2}, "stop": {"epochs": 4}, "seed": seed}
            for seed in (0, 1)
        ],
        # workers 0 and 1 fail while they wait for the others' votes
        "lost votes": [
            {"strategy": {"name": "selsync", "delta": 1e9}}
            | {
                "cluster": toy_cluster(
                    [1.0, 0.5, 0.25],
                    failures=[
                        {"worker": 0, "at_s": 0.027, "rejoin_s": 0.052},
                        {"worker": 1, "at_s": 0.095},
                    ],
                )
            }
        ],
        "divergence": [DIVERGING],
        "overlap": [{"strategy": {"name": "osp", "local_steps": 2}, "cluster": FOUR}],
        "overlap and losses": [{"strategy": {"name": "osp", "local_steps": 2}, "cluster": CHANGING}],
        "overlap and a switch": [
            {"strategy": SWITCH | {"first": {"name": "osp", "local_steps": 2}}, "cluster": FOUR}
            | {"stop": {"epochs": 4}}
        ],
        "shared memory": [{"strategy": {"name": "hogwild", "write_s": 0.004}, "cluster": CHANGING}],
        "chunks": [
            {"strategy": {"name": "hermes", "chunk_samples": 16, "chunk_batch": 4, "passes": 1}}
            | {"cluster": FOUR, "stop": {"epochs": 8}}
        ],
        "cancelled": [{"strategy": {"name": "k_bsp", "k": 2}, "cluster": FOUR, "stop": {"epochs": 3}}],
        "discarded": [{"strategy": {"name": "backup_workers"}, "cluster": FOUR, "stop": {"epochs": 3}}],
        "dropped": [
            {"strategy": {"name": "drop_stragglers", "readmit_after_s": 0.05}, "stop": {"epochs": 4}}
            | {"cluster": toy_cluster([1.0, 0.9, 0.8, 0.1], **LINKS)}
        ],
        "moving": [
            {"strategy": {"name": "bsp", "servers": 3, "reassignment": {"name": "by_load", "every": 3}}}
            | {
                "cluster": toy_cluster([1.0, 0.5, 0.25], **LINKS | {"server_bandwidth_mbit_s": [1, 1, 0.2]}),
                "stop": {"epochs": 4},
                "model": MLP,
            }
        ],
        "ring": [{"strategy": "all_reduce", "cluster": FOUR, "batch_size": 14, "seed": s} for s in (0, 1)],
        "jobs": [{"strategy": "map_reduce", "cluster": FOUR, "stop": {"epochs": 1}}],
        "batches": [{"strategy": "lb_bsp", "cluster": FOUR, "stop": {"epochs": 4}}],
        "helpers": [
            {"strategy": "flex_rr", "stop": {"epochs": 4}, "batch_size": 48}
            | {"cluster": toy_cluster([1.0, 1.0, 1.0, 0.3], **LINKS)}
        ],
        "deadline": [{"strategy": "bsp", "cluster": FOUR, "stop": {"seconds": 0.205}}],
        "timing": [{"strategy": "asp", "cluster": FOUR, "timing_only": True}],
        "target": [
            {"strategy": "asp", "stop": {"epochs": 6, "target_accuracy": 0.9}, "seed": seed}
            for seed in (0, 1)
        ],
        # pushes of several workers, each at the whole rate, and of one alone
        "whole rates": [{"strategy": WHOLE, "cluster": FOUR}],
        "whole rates at last": [
            {"strategy": SWITCH | {"second": WHOLE}, "cluster": FOUR, "stop": {"epochs": 4}}
        ],
        "whole rates at first": [{"strategy": SWITCH | {"first": WHOLE}, "stop": {"epochs": 4}}],
        "whole rates of one": [{"strategy": WHOLE, "cluster": toy_cluster([1.0])}],
        "reading": [{"strategy": "asp", "cluster": toy_cluster([1.0, 0.5], read_seconds_per_sample=1e-3)}],
    }


def _resumed(folder: Path) -> Run:
    """Return a run that was resumed while workers were in the middle of their steps."""
    first = toy_experiment("asp", cluster=FOUR, checkpoint_every=1, stop={"epochs": 1.2})
    ps.run(first, folder=folder)
    return ps.resume(folder, {"stop.epochs": 2})


def _switched(folder: Path) -> Run:
    """Return a run that is told to switch after its first evaluation."""
    control = ps.Control()

    def switch(log: ps.EventLog) -> None:
        if len(log.evaluations()) == 2:
            control.switch()

    # waits by two bounds have two reasons
    first, second = ({"name": "ssp", "staleness_bound": bound} for bound in (1, 2))
    manual = {"name": "strategy_switch", "rule": "manual", "first": first, "second": second}
    experiment = toy_experiment(manual, cluster=FOUR, stop={"epochs": 3})
    return ps.run(experiment, control=control, observer=switch)


_MADE = {"resumed": _resumed, "switched by hand": _switched}
#: by name: the runs of one specification that differ in their seed
NAMES = [*_experiments(), *_MADE]


def make(folder: Path) -> dict[str, list[Run]]:
    """Make all runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulComposition)  # at whole rates
        runs = {
            name: [ps.run(toy_experiment(**each)) for each in listed]
            for name, listed in _experiments().items()
        }
    return runs | {name: [made(folder / name)] for name, made in _MADE.items()}
