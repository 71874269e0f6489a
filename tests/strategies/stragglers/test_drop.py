"""Dropping stragglers: who is dropped, when, how many, and who comes back."""

import pytest
import torch
from toybox import at_night

import psbench as ps
from psbench import strategies
from psbench.core.engine import Engine
from psbench.core.events import Push
from psbench.core.log import EventLog, Kind
from psbench.core.view import ClusterView
from psbench.strategies.stragglers import DropStragglers
from psbench.testing import ScriptedCluster, check_strategy, toy_experiment
from psbench.testing.toys import toy_cluster


def changes(cluster_or_run, kind):
    """Return (seconds, worker) of the rows of a kind."""
    rows = cluster_or_run.log.of_kind(kind)
    return list(zip(rows["time_s"].tolist(), rows["worker"].tolist(), strict=True))


def test_a_worker_is_dropped_at_its_last_slow_push_which_counts():
    strategy = strategies.drop_stragglers(window=2, patience=3)
    cluster = ScriptedCluster(strategy, [1.0, 1.0, 1.0, 4.0])
    cluster.run(until=30)
    # its step time is known at its second push, and slow three times in a row at its fourth
    assert changes(cluster, Kind.DROP) == [(16.0, 3)]
    applied = cluster.log.of_kind(Kind.APPLY)
    assert (applied["worker"] == 3).sum() == 4
    # the barrier of the other three opens every second from then on
    assert cluster.engine.view.version == 4 + 14
    assert cluster.engine.view.pushes == 4 * 4 + 14 * 3


def dropped_workers(strategy, times):
    """Return the workers dropped when workers push in turn with these seconds a step, round by round."""
    engine = Engine(
        strategy, ClusterView(num_workers=len(times), dataset_size=100, global_batch=8), log=EventLog()
    )
    flights = {r.worker: r.ticket for r in engine.begin(range(len(times)))}
    number, dropped = 0, []
    for at in range(len(times[0])):
        for worker, seconds in enumerate(times):
            if worker in dropped:
                continue
            version = engine.view.workers[worker].base_version
            push = Push(
                number, worker, flights[worker], version, 2, steps=2, stats={"compute_s": 2 * seconds[at]}
            )
            number += 1
            for action in engine.handle(push, float(number)):
                name = type(action).__name__
                if name == "Release":
                    flights[action.worker] = action.ticket
                elif name == "Drop":
                    dropped.append(action.worker)
    return dropped


def asp(**values):
    return strategies.drop_stragglers(consistency="asp", **values)


@pytest.mark.parametrize(
    ("slow", "dropped"),
    [
        ([2.1] * 6, [2]),  # over twice the median of 1
        ([2.0] * 6, []),
        ([3, 3, 1, 1, 3, 3], []),  # a window of two: 3, 2, 1, 2, 3
        ([3, 3, 3, 1, 1, 1], [2]),
        ([9, 1, 1, 1, 1, 1], []),  # slow once
        ([1, 9, 1, 1, 1, 1], [2]),  # slow in two windows
    ],
)
def test_slow_is_above_the_factor_times_the_median_for_so_many_windows(slow, dropped):
    assert dropped_workers(asp(window=2, patience=2), [[1] * 6, [1] * 6, slow, [1] * 6, [1] * 6]) == dropped


def test_at_most_so_many_are_dropped_and_one_always_stays():
    times = [[1] * 9, [1] * 9, [1] * 9, [5] * 9, [5] * 9]
    assert len(dropped_workers(asp(window=1, patience=1, most=0.2), times)) == 1
    assert sorted(dropped_workers(asp(window=1, patience=1, most=0.4), times)) == [3, 4]
    assert dropped_workers(asp(window=1, patience=1, most=0.19), times) == []
    assert DropStragglers(most=1.0).allowed(4) == 3
    assert DropStragglers(most=0.29).allowed(100) == 29


def test_one_that_was_dropped_may_come_back_and_is_watched_anew():
    cluster = ScriptedCluster(
        strategies.drop_stragglers(window=1, patience=2, most=0.4, readmit_after_s=3.5), [1.0, 1.0, 4.0]
    )
    cluster.run(until=25)
    # it comes back at 11.5 s, begins when the barrier opens at 12, and is slow at 16 and 20
    assert changes(cluster, Kind.DROP) == [(8.0, 2), (20.0, 2)]
    assert changes(cluster, Kind.READMIT) == [(11.5, 2), (23.5, 2)]


def test_a_resumed_run_draws_no_batch_again_of_who_was_dropped(tmp_path):
    stragglers = {
        "name": "drop_stragglers",
        "factor": 1.25,
        "window": 1,
        "patience": 2,
        "readmit_after_s": 0.015,
    }
    whole = ps.run(
        toy_experiment(
            {"name": "local_sgd", "local_steps": 2, "stragglers": stragglers | {"most": 0.5}},
            cluster=toy_cluster([1.0, 0.8, 0.55]),
            stop={"updates": 6},
            checkpoint_every=0.1,
        ),
        folder=tmp_path / "whole",
    )
    (dropped, _), (back, _) = (changes(whole, kind)[0] for kind in (Kind.DROP, Kind.READMIT))
    assert 0 < dropped < back < whole.log.rows()["time_s"][-1]
    for number, checkpoint in enumerate(whole.meta["checkpoints"]):
        resumed = ps.resume(checkpoint, folder=tmp_path / str(number))
        assert torch.equal(resumed.parameters, whole.parameters)


def test_who_was_dropped_begins_under_the_next_strategy():
    first = strategies.drop_stragglers(window=1, patience=1, most=0.5)
    switch = strategies.strategy_switch(first=first, second="asp", rule={"name": "after", "fraction": 0.5})
    done = ps.run(toy_experiment(switch, cluster=toy_cluster([1.0, 1.0, 0.2]), stop={"epochs": 4}))
    (dropped,), (back,), (over,) = (changes(done, k) for k in (Kind.DROP, Kind.READMIT, Kind.HANDOVER))
    assert dropped[1] == back[1] == 2
    assert dropped[0] < back[0] == over[0]
    pushes = done.log.of_kind(Kind.PUSH)
    assert 2 in pushes["worker"][pushes["time_s"] > over[0]]


@pytest.mark.parametrize("values", [{"most": 0.0}, {"factor": 5.0}])
def test_where_nobody_is_to_be_dropped_it_is_bsp(values):
    ours, bsp = (
        ps.run(toy_experiment(s, stop={"epochs": 6})) for s in (strategies.drop_stragglers(**values), "bsp")
    )
    assert torch.equal(ours.parameters, bsp.parameters)


@pytest.mark.slow
def test_without_the_slowest_a_barrier_opens_as_often_as_the_others_can():
    machines = toy_cluster([1.0, 1.0, 1.0, 0.1])
    ours, bsp = (
        ps.run(toy_experiment(s, cluster=machines, stop={"epochs": 20})) for s in ("drop_stragglers", "bsp")
    )
    assert ours.meta["time_s"] < 0.4 * bsp.meta["time_s"]
    assert ps.replay(ours) == len(ours.log)


eager = {"window": 1, "patience": 1, "factor": 1.1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("consistency", "readmit_after_s"),
    [
        *(("bsp", None), ("k_bsp", 2.0)),
        *at_night(("asp", 2.0), ("ssp", None), ("k_asp", None), ("elastic_bsp", 2.0)),
    ],
)
def test_the_contract_is_kept_where_many_are_dropped(consistency, readmit_after_s):
    again = {"most": 1.0} if readmit_after_s is None else {"most": 0.9, "readmit_after_s": readmit_after_s}
    check_strategy(strategies.drop_stragglers(consistency=consistency, **eager, **again), clusters=1)


@pytest.mark.parametrize("strategy", [{"name": "selsync", "delta": 0.0}, {"name": "d_psgd_step_first"}])
def test_the_model_of_a_dropped_worker_is_in_no_mean(strategy):
    """Of two workers one is left, and the run's model is its model, as under a barrier."""
    drops = {"name": "drop_stragglers", "factor": 1.2, "window": 1, "patience": 2, "most": 0.5}
    found, expected = (
        ps.run(
            toy_experiment(
                each | {"stragglers": drops},
                cluster=toy_cluster([1.0, 0.25]),
                batch_size=8,
                stop={"epochs": 3},
            )
        )
        for each in (strategy, {"name": "bsp"})
    )
    assert len(found.log.of_kind(Kind.DROP)["worker"]) == len(expected.log.of_kind(Kind.DROP)["worker"]) == 1
    torch.testing.assert_close(found.parameters, expected.parameters)
    assert found.metrics["val_loss"].tolist() == pytest.approx(expected.metrics["val_loss"].tolist())
