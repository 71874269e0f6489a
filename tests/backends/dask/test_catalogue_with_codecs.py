"""Every strategy of the catalogue over lossy connections to several servers, in virtual time and live."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import torch

from psbench.backends.replay import replay
from psbench.core.switching_strategy import SwitchingStrategy
from psbench.experiment import Experiment
from psbench.runs import run
from psbench.strategies import CATALOGUE

pytestmark = [pytest.mark.dask, pytest.mark.timeout(180)]

CODECS = [
    *({"name": "fp16"}, {"name": "top_k", "ratio": 0.1}, {"name": "random_k", "ratio": 0.1}),
    *({"name": "terngrad"}, {"name": "qsgd", "levels": 16}, {"name": "sign"}, {"name": "one_bit"}),
]
ASSIGNMENTS = ["contiguous", "layer", "hash", "size_threshold", "best_fit"]
#: rings and jobs have no servers; a switch is between two strategies, of which the second has servers
NO_SERVERS = {"all_reduce", "map_reduce"}
NAMES = sorted(set(CATALOGUE) - NO_SERVERS)
#: entries whose defaults are for longer runs
SMALLER = {"hermes": {"chunk_samples": 48, "passes": 1, "alpha": -0.1, "patience": 1}}
CASES = list(zip(NAMES, cycle(CODECS), cycle(ASSIGNMENTS), strict=False))


def over_any_wire(name: str, codec: dict[str, Any], assignment: str) -> dict[str, Any]:
    wire = {
        "codec": codec,
        "codec_down": codec,
        "placement": {"name": "parameter_server", "servers": 2, "assignment": assignment},
    }
    strategy = {"name": name} | SMALLER.get(name, {})
    if isinstance(CATALOGUE[name](), SwitchingStrategy):
        rule = {"name": "after", "fraction": 0.5}
        return strategy | {"rule": rule, "first": {"name": "bsp"} | wire, "second": {"name": "asp"} | wire}
    return strategy | wire


@pytest.mark.parametrize(("name", "codec", "assignment"), CASES, ids=lambda value: str(value))
def test_any_codec_and_any_assignment_on_any_strategy(name, codec, assignment, scheduler):
    simulated = Experiment(
        strategy=over_any_wire(name, codec, assignment),
        cluster={"workers": 2, "step_time": "constant"},
        optimizer={"name": "sgd", "lr": 0.02},
        batch_size=24,
        stop={"epochs": 0.3},
        evaluate_every=0.15,
    )
    live = simulated.but(backend="dask", scheduler=scheduler)
    for experiment in (simulated, live):
        done = run(experiment)
        assert done.meta["status"] == "finished", done.meta["reason"]
        assert torch.isfinite(done.parameters).all()
        evaluations = done.log.evaluations()
        assert evaluations[0]["train_loss"] > evaluations[-1]["train_loss"] > 0
        assert replay(done) == len(done.log)
