"""FlexRR: work moves from who lags to who is ahead, and none is lost on the way."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toybox import at_night

import psbench as ps
from psbench import strategies
from psbench.core.actions import Tell
from psbench.core.events import Push, Report
from psbench.core.log import Kind
from psbench.core.view import ClusterView, Status, WorkerView
from psbench.errors import ParameterError
from psbench.strategies.communication import MicroSteps
from psbench.strategies.stragglers import FlexRR
from psbench.strategies.stragglers.flex_rr import moved
from psbench.testing import ScriptedCluster, check_strategy, toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload
from psbench.training.trainer import StepTask, Trainer


def rounds(log):
    """Return the samples of each worker's push, barrier by barrier."""
    applied, sizes = log.of_kind(Kind.APPLY), {}
    for version, worker, samples in zip(
        applied["version"].tolist(), applied["worker"].tolist(), applied["samples"].tolist(), strict=True
    ):
        sizes.setdefault(version, {})[worker] = samples
    return [sizes[version] for version in sorted(sizes)]


# -------------------------------------------------------------------- the worker's half


def half(batch=16, pieces=4, number=7):
    made = MicroSteps(pieces=pieces).worker_policy()
    made.on_orders({"round": number, "batch": batch})
    return made


def sizes(made, batch=16):
    """Return the pieces that a worker does until it pushes."""
    found = []
    while True:
        found.append(made.step_samples(batch))
        verdict = made.after_step({})
        if verdict == "push":
            return found
        assert verdict == "report"


@given(st.integers(1, 300), st.integers(1, 40))
def test_the_pieces_are_the_batch(batch, pieces):
    found = sizes(half(batch, pieces))
    assert sum(found) == batch
    assert len(found) <= pieces
    assert len(set(found[:-1])) <= 1
    assert found[-1] <= found[0]


def test_orders_change_what_is_left():
    made = half()
    made.after_step({})
    made.on_orders({"round": 7, "quota": 10})
    assert sizes(made) == [4, 2]
    made = half()
    made.on_orders({"round": 7, "quota": 27})
    assert sizes(made) == [4] * 6 + [3]


def test_orders_that_come_too_late_make_the_present_piece_the_last():
    made = half()
    made.after_step({})
    made.on_orders({"round": 7, "quota": 2})  # 4 are done, and 4 more begun
    assert sizes(made) == [4]


def test_orders_of_another_round_change_nothing():
    made = half()
    made.on_orders({"round": 6, "quota": 1})
    assert sizes(made) == [4] * 4
    made.on_orders({"round": 7, "quota": 100})  # it has pushed
    made.on_orders({"round": 8, "batch": 16})
    assert sizes(made) == [4] * 4


@pytest.mark.slow
def test_a_straggler_part_may_order_the_batch_as_well():
    made = half()
    made.on_orders({"round": 8, "batch": 16, "batch_size": 6})
    assert sizes(made) == [2, 2, 2]
    check_strategy(strategies.lb_bsp(communication="micro_steps"), clusters=1)


# -------------------------------------------------------------------- how much is moved


@given(st.integers(1, 100), st.integers(1, 100), st.integers(0, 99), st.integers(0, 99))
def test_what_is_moved_makes_progress_equal(fast_quota, slow_quota, fast_share, slow_share):
    fast, slow = fast_share / 100 * fast_quota, slow_share / 100 * slow_quota
    if fast_share <= slow_share or slow == 0:
        return
    samples = moved((fast, fast_quota), (slow, slow_quota))
    assert 0 <= samples <= slow_quota
    exact = (fast * slow_quota - slow * fast_quota) / (fast + slow)
    assert fast / (fast_quota + exact) == pytest.approx(slow / (slow_quota - exact))
    assert abs(samples - exact) <= 0.5


def test_the_example_in_whole():
    # batches of 16 in pieces of 2; worker 1 takes four times as long for each
    cluster = ScriptedCluster(strategies.flex_rr(), [1.0, 4.0], samples=16)
    cluster.run(until=3.5)
    tells = [(now, a) for now, _, actions in cluster.history for a in actions if isinstance(a, Tell)]
    # at 3 s worker 0 has done 6 of 16 and worker 1, halfway through its first piece, perhaps 1: 6/27 is 1/5
    assert tells == [(3.0, Tell(1, {"round": 0, "quota": 5})), (3.0, Tell(0, {"round": 0, "quota": 27}))]
    cluster.run(until=15)
    assert rounds(cluster.log)[0] == {0: 27, 1: 5}
    assert cluster.log.of_kind(Kind.APPLY)["time_s"].tolist() == [14.0, 14.0]  # BSP: 32


@pytest.mark.parametrize(("threshold", "first"), [(5 / 16, 4.0), (5 / 16 - 1e-9, 3.0)])
def test_a_difference_of_the_threshold_moves_nothing(threshold, first):
    """At 3 s worker 0 has done 6 of 16, and worker 1, halfway through its first piece, 1 of 16."""
    cluster = ScriptedCluster(strategies.flex_rr(threshold=threshold), [1.0, 4.0], samples=16)
    cluster.run(until=4.5)
    assert min(now for now, _, actions in cluster.history for a in actions if isinstance(a, Tell)) == first


# -------------------------------------------------------------------- conservation


@pytest.mark.slow
@given(
    st.integers(1, 5),
    st.integers(1, 12),
    st.sampled_from([0.05, 0.2, 0.5]),
    st.integers(0, 2**20),
    st.booleans(),
)
def test_the_samples_of_a_barrier_are_the_global_batch(workers, pieces, threshold, seed, whole):
    rng = np.random.default_rng(seed)
    speed = rng.uniform(0.1, 1.0, workers)

    def seconds(worker, number):
        return float(rng.integers(1, 6) if whole else rng.exponential() / speed[worker])

    strategy = strategies.flex_rr(pieces=pieces, threshold=threshold)
    cluster = ScriptedCluster(strategy, seconds, num_workers=workers, samples=24)
    for _ in range(150):
        for action in cluster.step():
            if isinstance(action, Tell):  # nobody is told who has pushed
                assert cluster.engine.view.workers[action.worker].status == Status.COMPUTING
    assert len(rounds(cluster.log)) >= 2
    assert {sum(found.values()) for found in rounds(cluster.log)} == {24 * workers}


def test_messages_that_take_less_than_a_micro_step_lose_nothing():
    cluster = toy_cluster([1.0, 0.5, 0.25], latency_s=1e-4)
    done = ps.run(toy_experiment("flex_rr", cluster=cluster, batch_size=96, stop={"updates": 20}))
    assert len(done.log.of_kind(Kind.TELL)["worker"]) > 20
    assert {sum(found.values()) for found in rounds(done.log)} == {96}


def late(latency_s):
    """Run barriers whose orders often come too late: a micro-step of the fast one takes about 5 ms."""
    cluster = toy_cluster([1.0, 0.5, 0.1], latency_s=latency_s, step_time="shifted_exponential")
    return ps.run(toy_experiment("flex_rr", cluster=cluster, batch_size=96, stop={"updates": 30}))


@pytest.mark.slow
def test_what_orders_that_come_too_late_leave_undone_another_does():
    together = [sum(found.values()) for found in rounds(late(0.005).log)]
    assert together.count(96) >= 28


@pytest.mark.slow
def test_where_nobody_is_left_to_do_it_the_rest_is_weighed_right():
    done = late(0.05)
    together = [sum(found.values()) for found in rounds(done.log)]
    assert set(together) != {96}
    assert all(48 < samples < 192 for samples in together)
    weights = done.log.of_kind(Kind.APPLY)["loss"].reshape(30, 3)
    assert weights.sum(axis=1) == pytest.approx(1.0)


def test_a_push_that_is_short_of_its_quota_is_made_up_for():
    view = ClusterView(3, 100, 48)
    view.workers = {w: WorkerView(w, Status.COMPUTING, base_version=0, batch_size=16) for w in range(3)}
    part = FlexRR()
    for worker in range(3):
        part.on_release(worker, view)
    for worker in range(3):
        part.on_report(Report(worker, 1, {"done": 2.0, "piece": 2.0}), view)
    view.workers[0].status = Status.PUSHED
    assert part.on_push(Push(0, 0, 1, 0, samples=11), view) == [Tell(1, {"round": 0, "quota": 21})]
    view.workers[1].status = Status.PUSHED
    assert part.on_push(Push(1, 1, 1, 0, samples=40), view) == [Tell(2, {"round": 0, "quota": 6})]
    view.workers[2].status = Status.PUSHED
    assert part.on_push(Push(2, 2, 1, 0, samples=6), view) == []


# -------------------------------------------------------------------- identities


def test_in_one_piece_it_is_bsp():
    one, bsp = (ps.run(toy_experiment(s)) for s in (strategies.flex_rr(pieces=1), "bsp"))
    assert torch.equal(one.parameters, bsp.parameters)


def test_equal_workers_are_bsp_to_rounding():
    machines = toy_cluster([1.0, 1.0, 1.0])
    cut, bsp = (ps.run(toy_experiment(s, cluster=machines)) for s in (strategies.flex_rr(pieces=3), "bsp"))
    assert not len(cut.log.of_kind(Kind.TELL)["worker"])
    assert set(cut.log.of_kind(Kind.PUSH)["steps"].tolist()) == {2}  # 4 samples in pieces of 2
    torch.testing.assert_close(cut.parameters, bsp.parameters, rtol=1e-5, atol=1e-6)


def test_an_update_is_the_mean_gradient_of_the_samples_whoever_took_them(monkeypatch):
    taken, result = [], Trainer.result

    def spied(self, job, parameters, buffers):
        taken.append(job.indices)
        return result(self, job, parameters, buffers)

    monkeypatch.setattr(Trainer, "result", spied)
    machines = toy_cluster([1.0, 0.25])
    experiment = toy_experiment("flex_rr", cluster=machines, batch_size=48, stop={"updates": 1})
    done = ps.run(experiment)
    assert [*rounds(done.log)[0].values()] == [41, 7]
    workload = Workload.build(experiment)
    begun, buffers = workload.server().parameters, workload.server().buffers
    whole = result(workload.trainer(), StepTask(0, 0, np.concatenate(taken)), begun, buffers)
    torch.testing.assert_close(done.parameters, begun - 0.1 * whole.gradient, rtol=1e-5, atol=1e-6)


# -------------------------------------------------------------------- what it is for


@pytest.mark.slow
def test_a_barrier_opens_nearly_as_early_as_with_work_shared_by_speed():
    machines = toy_cluster([1.0, 1.0, 1.0, 0.25])
    values = {"cluster": machines, "batch_size": 96, "stop": {"updates": 20}}
    flex, bsp = (ps.run(toy_experiment(s, **values)).meta["time_s"] for s in ("flex_rr", "bsp"))
    assert flex < 0.5 * bsp
    done = ps.run(toy_experiment("flex_rr", **values))
    assert ps.replay(done) == len(done.log)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (
            {"stragglers": "flex_rr"},
            "flex_rr uses the workers' progress within a batch, which every_step does not report",
        ),
        (
            {"stragglers": "flex_rr", "communication": "micro_steps", "consistency": "asp"},
            "flex_rr changes batch sizes at barriers, but asp has none",
        ),
    ],
)
def test_what_it_needs(parts, reason):
    with pytest.raises(ParameterError, match=reason):
        ps.Strategy(**{"consistency": "bsp"} | parts)


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["asp", "k_bsp", *at_night("bsp", "ssp", "k_batch_asp")])
def test_micro_steps_go_with_every_consistency(consistency):
    check_strategy(strategies.bsp(consistency=consistency, communication="micro_steps"), clusters=1)
