"""ZeRO and FSDP: the updates of All-Reduce, more bytes, less memory."""

import pytest

import psbench as ps
from psbench.errors import ParameterError
from psbench.testing import toy_experiment
from psbench.training.workload import Workload

RING = {"workers": 4, "bandwidth_mbit_s": 1.0, "latency_s": 0.0, "step_time": "constant"}


def run(strategy, **link):
    return ps.run(toy_experiment(strategy, cluster=RING | link, stop={"updates": 5}, seed=2))


@pytest.mark.parametrize(("stage", "times"), [(1, 1.0), (2, 1.0), (3, 1.5)])
def test_the_models_are_those_of_all_reduce(stage, times):
    ring, sharded = run("all_reduce"), run({"name": "fsdp", "stage": stage})
    assert ring.meta["params_digest"] == sharded.meta["params_digest"]
    sums = [sum(each.summary()["bytes"].values()) for each in (ring, sharded)]
    assert sums[1] == pytest.approx(times * sums[0], rel=1e-3)
    seconds = [each.summary()["time_s"] for each in (ring, sharded)]
    computing = run("all_reduce", bandwidth_mbit_s=1e9).summary()["time_s"]
    assert seconds[1] - computing == pytest.approx(times * (seconds[0] - computing), rel=0.02)
    ps.replay(sharded)


def test_a_worker_has_room_for_more_samples():
    optimizer = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
    held = [
        Workload.build(toy_experiment(name, cluster=RING, optimizer=optimizer)).capacity[0]
        for name in ("all_reduce", "fsdp")
    ]
    assert held[0] < held[1]
    placement = ps.strategies.fsdp(stage=2).placement
    assert placement.worker_bytes(10, kept=1, num_workers=4) == 40 + 2 * 40 // 4


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"strategy": "fsdp", "backend": "dask"}, "live workers hold all of the model"),
        ({"strategy": "fsdp", "optimizer": "lamb"}, "each worker holds a share"),
        ({"strategy": {"name": "power_sgd", "placement": "sharded"}}, "holds a share of the model"),
        ({"strategy": {"name": "diloco", "placement": "sharded"}}, "holds a share of the model"),
    ],
)
def test_what_has_no_meaning_is_refused(values, says):
    with pytest.raises(ParameterError, match=says):
        toy_experiment(**values)
