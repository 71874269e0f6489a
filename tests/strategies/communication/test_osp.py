"""OSP: computing goes on while gradients travel; none is lost, and none counts twice."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toybox import at_night

import psbench as ps
from psbench import strategies
from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.actions import Handover
from psbench.core.events import Push, SwitchRequested
from psbench.core.log import EventLog, Kind
from psbench.core.view import ClusterView
from psbench.errors import ParameterError
from psbench.metrics import timeline
from psbench.strategies.aggregation import Accumulated
from psbench.testing import ScriptedCluster, check_strategy, toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload
from psbench.training.trainer import Trainer

RATE = 0.1  # of the toy experiment


# -------------------------------------------------------------------- identities


@pytest.mark.parametrize("local_steps", [1, 4])
def test_without_communication_time_equal_workers_are_bsp(local_steps):
    equal = toy_cluster([1.0, 1.0, 1.0], bandwidth_mbit_s=1e300, server_bandwidth_mbit_s=1e300)
    osp, bsp = (
        ps.run(toy_experiment(s, cluster=equal)) for s in (strategies.osp(local_steps=local_steps), "bsp")
    )
    assert set(osp.log.of_kind(Kind.PUSH)["steps"]) == {1}
    assert torch.equal(osp.parameters, bsp.parameters)


def test_one_worker_is_sgd_however_long_messages_take():
    slow = toy_cluster([1.0], latency_s=0.012)
    osp = ps.run(toy_experiment(strategies.osp(local_steps=4), cluster=slow, stop={"updates": 6}))
    steps = int(osp.log.of_kind(Kind.APPLY)["steps"].sum())
    assert steps > 6
    sgd = ps.run(toy_experiment("bsp", cluster=toy_cluster([1.0]), stop={"updates": steps}))
    torch.testing.assert_close(osp.parameters, sgd.parameters, rtol=1e-5, atol=1e-6)


# -------------------------------------------------------------------- conservation


def counted(cluster):
    """Return the steps begun, and those in pushes, in hand and under way."""
    pushed = sum(e.steps for _, e, _ in cluster.history if isinstance(e, Push))
    in_hand = sum(own.loop._steps for own in cluster._workers.values())
    return sum(cluster._taken), pushed + in_hand + len(cluster._busy)


@pytest.mark.slow
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**20), st.booleans())
def test_every_step_is_in_one_push(local_steps, workers, seed, whole):
    rng = np.random.default_rng(seed)

    def seconds(worker, number):
        return float(rng.integers(1, 4) if whole else rng.exponential())

    cluster = ScriptedCluster(strategies.osp(local_steps=local_steps), seconds, num_workers=workers)
    for _ in range(80):
        cluster.step()
        begun, found = counted(cluster)
        unspoken = sum(e[4].steps for e in cluster._heap if isinstance(e[4], Push))  # made, not handled yet
        assert begun == found + unspoken
    assert cluster.engine.view.version > 5


def test_the_server_moves_by_all_that_was_computed_and_no_more(monkeypatch):
    computed = []
    result = Trainer.result

    def spied(self, job, parameters, buffers):
        step = result(self, job, parameters, buffers)
        computed.append(step.gradient.clone())
        return step

    monkeypatch.setattr(Trainer, "result", spied)
    cluster = toy_cluster([1.0, 0.6, 0.3], latency_s=0.004)
    experiment = toy_experiment(strategies.osp(local_steps=3), cluster=cluster, stop={"updates": 9})
    simulation = Simulation(Workload.build(experiment), EventLog(), Control())
    begun = simulation.cluster.server.parameters.clone()
    simulation.run()
    applied = (begun - simulation.cluster.server.parameters) * 3 / RATE
    workers = simulation.cluster.workers._workers.values()
    kept = [worker.model.state.vector("gradient") for worker in workers]
    under_way = [
        payload
        for payload, _ in (
            *simulation.cluster.workers.exchange._carried.values(),
            *simulation.cluster.payloads.values(),
        )
    ]
    assert len(computed) > 9 * 3  # some pushes were of several steps
    torch.testing.assert_close(applied + sum(kept) + sum(under_way), sum(computed), rtol=1e-4, atol=1e-5)


def test_a_switch_waits_for_the_steps_that_are_in_no_push_yet():
    for seconds in ([1.0, 1.5, 4.0], [1.0, 1.0, 3.0]):
        switch = strategies.strategy_switch(first="osp", second="asp")
        cluster = ScriptedCluster(switch, seconds, changes=[(9.5, SwitchRequested())], epochs=20)
        while not any(isinstance(a, Handover) for a in cluster.history[-1][2]):
            cluster.step()
        reported = sum(event.steps for _, event, _ in cluster.history if isinstance(event, Push))
        view = cluster.engine.view
        # those that begin anew are under way: nothing else is
        assert sum(cluster._taken) == reported + len(cluster._busy)
        assert view.committed == view.pushes
        assert not view.pending


# -------------------------------------------------------------------- time


def rounds(local_steps):
    """Return what worker 0 does after its first push, in milliseconds; a step takes 5, an exchange 24."""
    cluster = toy_cluster([1.0, 1.0, 1.0], latency_s=0.012)
    strategy = strategies.osp(local_steps=local_steps)
    found = timeline(ps.run(toy_experiment(strategy, cluster=cluster, stop={"updates": 12})).log)
    lasted = (1000 * (found["end_s"] - found["start_s"])).round(3)
    seen = (found["worker"] == 0) & (found["start_s"] > 0.0169) & (lasted > 0)
    return list(zip(found["phase"][seen], lasted[seen], strict=True))


@pytest.mark.slow
def test_nobody_waits_if_the_exchange_is_shorter_than_the_steps_meanwhile():
    assert {phase for phase, _ in rounds(5)} == {"compute"}
    assert rounds(5) == rounds(8)  # the answer comes while the fifth step is made


def test_what_the_steps_do_not_hide_of_an_exchange_is_waited_for():
    assert rounds(1)[:6] == [("compute", 5), ("send", 7), ("pull", 12)] * 2
    assert rounds(4)[:6] == [("compute", 20), ("pull", 4)] * 3


def test_the_slowest_sets_the_pace_until_the_others_may_go_on():
    times = {}
    for strategy in ("bsp", strategies.osp(local_steps=1), strategies.osp(local_steps=4)):
        done = ps.run(toy_experiment(strategy, stop={"epochs": 4}))
        times[done.experiment.strategy.spec()["communication"].get("local_steps", 0)] = done.meta["time_s"]
    assert times[4] < 0.6 * times[1] <= 0.6 * times[0] * 1.02


# -------------------------------------------------------------------- what fits


def test_a_push_weighs_as_its_workers_batch_however_many_steps_it_took():
    pushes = [Push(0, 0, 1, 0, samples=6, steps=3), Push(1, 1, 1, 0, samples=6, steps=1)]
    assert Accumulated().on_commit(pushes, ClusterView(2, 1, 1))[0].weights == [0.25, 0.75]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"communication": "osp"}, "mean would count each as one step"),
        ({"aggregation": "accumulated"}, "under every_step it is a mean"),
        (
            {"communication": "osp", "aggregation": "accumulated", "placement": "all_reduce"},
            "workers under osp change theirs",
        ),
        (
            {"communication": "osp", "aggregation": "accumulated", "consistency": "k_bsp"},
            "k_bsp would cancel that work",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(parts, reason):
    with pytest.raises(ParameterError, match=reason):
        ps.Strategy(**{"consistency": "bsp"} | parts)


def test_with_a_mean_two_steps_would_move_the_model_as_far_as_one():
    # what the first refusal above spares: Mean weighs by samples, so a sum of three counts three times over
    pushes = [Push(0, 0, 1, 0, samples=12, steps=3), Push(1, 1, 1, 0, samples=4, steps=1)]
    assert strategies.bsp().aggregation.on_commit(pushes, ClusterView(2, 1, 1))[0].weights == [0.75, 0.25]
    assert Accumulated().on_commit(pushes, ClusterView(2, 1, 1))[0].weights == [0.5, 0.5]


@pytest.mark.slow
@pytest.mark.parametrize(
    "consistency", ["bsp", "ssp", "k_asp", *at_night("asp", "dssp", "k_batch_asp", "elastic_bsp")]
)
def test_it_goes_with_every_consistency_that_voids_nothing(consistency):
    check_strategy(strategies.osp(consistency=consistency), clusters=1)
