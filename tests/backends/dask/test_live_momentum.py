"""Momentum at a switch, live: servers and replicas use the part of it that the engine says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from threaded_run import ThreadedRun

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import run_simulated
from psbench.core.log import EventLog, Kind
from psbench.experiment import Experiment
from psbench.training.build import Workload

SERVERS = {"name": "bsp", "placement": {"name": "parameter_server", "servers": 2}}


def experiment(first: Any, second: Any, momentum: str) -> Experiment:
    pair = {"name": "strategy_switch", "first": first, "second": second, "momentum": momentum}
    pair |= {"rule": {"name": "after", "fraction": 0.5}, "ramp_updates": 4}
    return Experiment(
        strategy=pair,
        cluster={"workers": 3, "step_time": "constant"},
        batch_size=36,
        stop={"epochs": 0.5},
        backend="dask",
    )


def simulated(spec: Experiment) -> torch.Tensor:
    parameters = run_simulated(Workload.build(spec), EventLog(), Control()).parameters
    assert parameters is not None
    return parameters


@pytest.mark.parametrize(
    ("first", "second", "momentum"),
    [
        *(("all_reduce", SERVERS, policy) for policy in ("scaled", "ramped")),
        *((SERVERS, "all_reduce", policy) for policy in ("off", "ramped_additive")),
    ],
)
def test_it_trains_the_simulators_model(first: Any, second: Any, momentum: str) -> None:
    spec = experiment(first, second, momentum)
    done = ThreadedRun(spec).run()
    assert done.error is None
    assert done.log.rows()["kind"].tolist().count(Kind.HANDOVER) == 1
    expected = {policy: simulated(experiment(first, second, policy)) for policy in (momentum, "keep")}
    torch.testing.assert_close(done.parameters, expected[momentum], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(done.parameters, expected["keep"], rtol=1e-4, atol=1e-5)
