"""SelSync: the flags' worked numbers, who is asked to push, and what it equals."""

import json
import math

import pytest
import torch
from local_runs import MOMENTUM, Watched, alone, close, trained
from toybox import at_night

from psbench import metrics, replay, strategies
from psbench.core.actions import Apply, Hold, Release
from psbench.core.engine import Engine
from psbench.core.events import Join, Leave, Push, Vote
from psbench.core.log import Kind
from psbench.core.view import ClusterView
from psbench.errors import ParameterError
from psbench.metrics import local_steps_ratio
from psbench.runs.execution import run
from psbench.strategies.communication import SelSync
from psbench.strategies.communication.selsync import ewma, injected_samples
from psbench.testing import ScriptedCluster, check_strategy, toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload

NEVER = 1e30
NORMS = [4.0, 4.4, 4.2, 6.0]


def flags(norms, **values):
    half = SelSync(**values).worker_policy()
    found = []
    for norm in norms:
        assert half.after_step({"grad_norm_sq": norm}) == "vote"
        found.append(half.vote_value())
    return found


def selsync(**values):
    return strategies.selsync(**values)


# -------------------------------------------------------------------- flags


def test_the_smoothed_norms():
    assert [round(ewma(NORMS[:i], 0.16), 5) for i in range(1, 5)] == [4.0, 4.064, 4.08576, 4.39204]
    assert [ewma(NORMS[:i], 1.0) for i in range(1, 5)] == NORMS


@pytest.mark.parametrize(
    ("smoothing", "changes"), [(1.0, [0.1, 0.0455, 0.4286]), (0.16, [0.016, 0.0054, 0.075])]
)
def test_the_changes(smoothing, changes):
    """The largest delta at which each step still synchronises is its change."""
    for step, change in enumerate(changes, start=1):
        means = [ewma(NORMS[: step + i], smoothing) for i in (0, 1)]
        assert abs(means[1] - means[0]) / means[0] == pytest.approx(change, abs=1e-4)
        assert flags(NORMS, smoothing=smoothing, delta=change + 1e-4)[step] == 0.0
        assert flags(NORMS, smoothing=smoothing, delta=change - 1e-4)[step] == 1.0


def test_with_delta_0_3_only_the_last_unsmoothed_step_synchronises():
    assert flags(NORMS, smoothing=1.0) == [1, 0, 0, 1]  # the first always does
    assert flags(NORMS, smoothing=0.16) == [1, 0, 0, 0]


def test_without_a_change_to_tell_it_synchronises():
    assert flags([0.0, 0.0, 5.0, 5.0], smoothing=1.0) == [1, 1, 1, 0]
    assert flags([5.0, math.nan, 5.0], smoothing=1.0) == [1, 1, 1]
    assert flags(NORMS, delta=0.0) == [1, 1, 1, 1]


def test_the_window_forgets():
    assert flags(NORMS, window=1, smoothing=0.16) == [1, 0, 0, 1]  # one norm is no mean
    half = SelSync(window=2, smoothing=0.5).worker_policy()
    for norm in (100.0, 4.0, 6.0):
        half.after_step({"grad_norm_sq": norm})
    assert half.norms == [4.0, 6.0]


def test_the_smoothing_is_a_hundredth_per_worker():
    cluster = ScriptedCluster("selsync", [1.0] * 16)
    assert [a.orders for a in cluster.history[0][2]] == [{"smoothing": 0.16}] * 16
    half = SelSync().worker_policy()
    half.on_orders({"smoothing": 0.16})
    assert half.smoothing == 0.16
    given = ScriptedCluster(selsync(smoothing=0.5), [1.0] * 16)
    assert [a.orders for a in given.history[0][2]] == [{}] * 16


# -------------------------------------------------------------------- votes


class Script:
    """Workers of an engine that vote and push as they are told to."""

    def __init__(self, workers, size=None):
        self.engine = Engine(
            selsync(), ClusterView(num_workers=size or workers, dataset_size=100, global_batch=workers)
        )
        self.engine.begin(range(workers))
        self.pushes = 0

    def _ticket(self, worker):
        return self.engine.view.workers[worker].ticket

    def votes(self, worker, flag):
        answer = self.engine.handle(Vote(worker, self._ticket(worker), flag, samples=1), 1.0)
        return self.simplified(answer)

    def pushed(self, worker):
        push = Push(self.pushes, worker, self._ticket(worker), self.engine.view.version, samples=1)
        self.pushes += 1
        return self.engine.handle(push, 2.0)

    @staticmethod
    def simplified(actions):
        named = {Release: lambda a: (a.worker, a.then), Hold: lambda a: (a.worker, a.reason)}
        return [named[type(a)](a) for a in actions if type(a) in named]


def test_all_wait_for_the_votes_and_go_on_if_nobody_wants_to_synchronise():
    script = Script(3)
    assert [script.votes(2, 0.0), script.votes(0, 0.0)] == [[(2, "vote")], [(0, "vote")]]
    assert script.votes(1, 0.0) == [(0, "step"), (1, "step"), (2, "step")]
    assert script.engine.view.samples == 3  # kept steps are progress
    assert script.engine.view.version == 0


@pytest.mark.parametrize("who", [0, 1, 2])
def test_one_flag_suffices(who):
    script = Script(3)
    answers = [script.votes(worker, float(worker == who)) for worker in (0, 1, 2)]
    assert answers[-1] == [(0, "push"), (1, "push"), (2, "push")]
    assert script.engine.view.samples == 0
    script.pushed(1), script.pushed(0)
    answer = script.pushed(2)
    assert [type(a) for a in answer] == [Apply, Release, Release, Release]
    assert [push.worker for push in answer[0].pushes] == [0, 1, 2]
    assert answer[0].numbers == {"keep": 0.0}
    assert script.engine.view.samples == 3
    # the flags of this round are forgotten
    assert [script.votes(worker, 0.0) for worker in (0, 1, 2)][-1] == [(0, "step"), (1, "step"), (2, "step")]


def test_nobody_waits_for_a_worker_that_has_gone():
    script = Script(3)
    script.votes(0, 0.0), script.votes(2, 0.0)
    assert script.simplified(script.engine.handle(Leave(1), 1.5)) == [(0, "step"), (2, "step")]
    again = Script(3)
    again.votes(0, 1.0), again.votes(2, 0.0)
    again.engine.handle(Leave(0), 1.5)  # and its flag goes with it
    assert again.votes(1, 0.0) == [(1, "step"), (2, "step")]


def test_a_newcomer_makes_the_others_synchronise():
    script = Script(2, size=3)
    assert script.simplified(script.engine.handle(Join(2), 0.5)) == [(2, "barrier")]
    script.votes(0, 0.0)
    assert script.votes(1, 0.0) == [(0, "push"), (1, "push")]
    script.pushed(0)
    answer = script.pushed(1)
    assert script.simplified(answer) == [(0, "step"), (1, "step"), (2, "step")]
    assert answer[0].numbers["keep"] == 0.0  # the newcomer has no model to be missed
    assert next(a for a in answer if isinstance(a, Release) and a.worker == 2).orders == {"smoothing": 0.03}


# -------------------------------------------------------------------- runs


@pytest.mark.slow
@pytest.mark.parametrize("aggregate", ["gradient", "parameters"])
@pytest.mark.parametrize("optimizer", [{"name": "sgd", "lr": 0.1}, MOMENTUM], ids=["plain", "momentum"])
def test_with_delta_0_it_is_bsp(aggregate, optimizer):
    always = trained(selsync(delta=0.0, aggregate=aggregate), optimizer=optimizer)
    bsp = trained("bsp", optimizer=optimizer)
    close(always.parameters, bsp.parameters)
    assert always.summary()["epochs"] == bsp.summary()["epochs"] == 2.0
    assert always.summary()["messages"]["vote"] == bsp.summary()["messages"]["push"]


def test_with_a_large_delta_nothing_but_flags_travels():
    watched = Watched(selsync(delta=NEVER))
    watched.until(lambda view: view.epoch > 1.99)
    rows = watched.log.rows()
    sent = rows["bytes"] > 0
    # a first model to each of the three, a first synchronisation, for no change can be told, and then nothing
    assert sent.sum() == 3 + 3 + 3
    assert rows["time_s"][sent].max() < 0.05
    votes = watched.log.of_kind(Kind.VOTE)
    assert len(votes["worker"]) == 48
    assert set(votes["loss"][3:].tolist()) == {0.0}


@pytest.mark.slow
def test_between_synchronisations_workers_are_independent():
    watched = Watched(selsync(delta=NEVER))
    common = torch.stack(watched.until(lambda view: view.version == 1)).mean(0)
    close(common, sum(alone(worker, 1) for worker in range(3)) / 3)
    apart = watched.until(lambda view: view.epoch > 1)
    assert not any(torch.equal(apart[0], other) for other in apart[1:])


def test_models_are_equal_after_averaging_models_and_not_gradients():
    for aggregate in ("parameters", "gradient"):
        watched = Watched(selsync(delta=1.5, smoothing=1.0, aggregate=aggregate))
        first, *others = watched.until(lambda view: view.version == 1)
        assert all(torch.equal(first, other) for other in others)  # nothing has come between them yet
        watched.until(lambda view: view.samples > 12 * view.version)  # a round without
        again = watched.view.version + 1
        first, *others = watched.until(lambda view, again=again: view.version == again)
        assert all(torch.equal(first, other) for other in others) == (aggregate == "parameters")


@pytest.mark.slow
def test_with_one_worker_it_is_plain_sgd():
    one = {"cluster": toy_cluster([1.0]), "batch_size": 8, "optimizer": MOMENTUM}
    for values in ({}, {"delta": 0.1, "smoothing": 1.0}, {"aggregate": "gradient"}):
        done = trained(selsync(**values), stop={"epochs": 2}, **one)
        close(done.parameters, alone(0, 24, **one))


@pytest.mark.parametrize("aggregate", ["parameters", "gradient"])
def test_runs_repeat_and_replay(aggregate):
    strategy = selsync(delta=1.5, smoothing=1.0, aggregate=aggregate)
    done, again = (trained(strategy) for _ in range(2))
    assert done.log.digest() == again.log.digest()
    assert replay(done) == len(done.log)
    assert 0 < done.summary()["local_steps"]["lssr"] < 1


def test_workers_come_and_go():
    cluster = toy_cluster([1.0, 0.5, 0.25]) | {
        "failures": [{"worker": 1, "at_s": 0.06, "rejoin_s": 0.1}],
    }
    for aggregate in ("parameters", "gradient"):
        done = trained(selsync(aggregate=aggregate), cluster=cluster, stop={"epochs": 3})
        later = done.log.of_kind(Kind.VOTE)
        assert 1 in later["worker"][later["time_s"] > 0.15]


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [{"aggregate": "gradient"}, *at_night({"delta": 0.0}, {"delta": NEVER}, {"smoothing": 1.0})],
    ids=str,
)
def test_it_keeps_the_contract(values):
    check_strategy(selsync(**values), clusters=1)


@pytest.mark.parametrize("consistency", ["asp", "ssp", "k_bsp"])
def test_all_are_told_to_push_so_a_barrier_must_wait_for_all(consistency):
    with pytest.raises(ParameterError, match="has no barrier"):
        selsync(consistency=consistency)


def test_its_exchange_of_gradients_needs_workers_that_step_by_themselves():
    with pytest.raises(ParameterError, match="to apply an aggregate"):
        strategies.bsp(aggregation={"name": "exchange", "aggregate": "gradient"})


# -------------------------------------------------------------------- LSSR


def test_the_ratio_of_local_steps():
    cluster = ScriptedCluster(selsync(delta=0.0), [1.0, 1.0])
    cluster.run(events=12)  # three rounds of votes and pushes
    assert local_steps_ratio(cluster.log) == {"local": 0, "synchronous": 6, "lssr": 0.0, "saving": 1.0}
    never = ScriptedCluster(selsync(delta=NEVER), [1.0, 1.0])
    never.run(events=2 + 2 + 6)  # one round, its pushes, and three rounds of votes
    assert local_steps_ratio(never.log) == {"local": 6, "synchronous": 2, "lssr": 0.75, "saving": 4.0}
    assert local_steps_ratio(ScriptedCluster("bsp", [1.0]).log) is None


def test_who_leaves_before_the_answer_took_neither_step():
    cluster = ScriptedCluster(selsync(delta=NEVER), [1.0, 4.0], changes=[(2.0, Leave(0)), (3.0, Join(0))])
    cluster.run(until=10.0)
    found = local_steps_ratio(cluster.log)
    votes = cluster.log.of_kind(Kind.VOTE)["worker"]
    assert found["local"] + found["synchronous"] == len(votes) - 1 - cluster.engine.view.num_voted


def injecting(**changes):
    values = {"sharing_workers": 0.5, "shared_fraction": 0.5} | changes.pop("values", {})
    cluster = {"workers": 4, "step_time": "constant", "seconds_per_step": 0}
    return trained(strategies.selsync(**values), cluster=cluster, batch_size=64, **changes)


def test_injected_samples_of_the_worked_example():
    assert injected_samples(32, 0.5, 8) == 3  # b' = 6.4
    assert injected_samples(32, 1.0, 16) == 1
    assert injected_samples(32, 0.5, 0) == 16


def test_half_of_the_workers_share_in_every_step_and_all_receive_the_same():
    done = injecting(stop={"updates": 4})
    orders = [json.loads(done.log.text(n)) for n in done.log.of_kind(Kind.RELEASE)["text"]]
    first = [order["injection"]["workers"] for order in orders[:4]]
    sharing = sorted(set().union(*first))
    assert len(sharing) == 2
    assert first == [[w for w in sharing if w != own] for own in range(4)]
    assert {order["injection"]["each"] for order in orders} == {4}  # b = 16, b' = 8
    assert len({str(order["injection"]) for order in orders}) > 4  # others share later
    assert replay(done) == len(done.log)


def test_an_injected_batch_keeps_its_size_and_takes_from_sharing_shards():
    workload = Workload.build(toy_experiment("selsync", cluster={"workers": 4}, batch_size=64))
    trainer = workload.trainer()
    injection = {"workers": [1, 2], "each": 4}
    jobs = {worker: trainer.start(worker, 16, injection).indices for worker in (0, 3)}
    for worker, indices in jobs.items():
        assert len(indices) == 16
        held = [set(workload.shards[w].tolist()) for w in (worker, 1, 2)]
        assert [sum(int(i) in own for i in indices) for own in held] == [8, 4, 4]
    assert jobs[0][8:].tolist() == jobs[3][8:].tolist()


def test_injected_samples_take_time_and_are_bytes_of_data():
    plain = injecting(values={"sharing_workers": 0.0}, stop={"updates": 2})
    slow = injecting(stop={"updates": 2})
    assert "data" not in plain.summary()["bytes"]
    sent = metrics.chunks_sent(slow.log, slow.meta["unanswered"])
    assert set(sent["samples"]) == {4, 8}  # who shares receives from the other only
    assert slow.summary()["bytes"]["data"] == sent["samples"].sum() * slow.meta["sample_bytes"]
    assert slow.summary()["time_s"] > plain.summary()["time_s"]


@pytest.mark.slow
def test_without_a_share_nothing_is_injected():
    runs = [
        trained(strategies.selsync(**v)) for v in ({}, {"sharing_workers": 0.5}, {"shared_fraction": 0.5})
    ]
    assert len({run.log.digest() for run in runs}) == 1
    check_strategy(strategies.selsync(sharing_workers=0.4, shared_fraction=0.3), clusters=1)


@pytest.mark.parametrize("delta", [0.0, 0.3, 1e9])
def test_a_switch_from_it_comes_with_the_step_of_a_barrier(delta):
    """The step that is voted on is pushed in the place of being kept, and no worker begins another."""
    rule = {"name": "after", "fraction": 0.5}
    pair = {"name": "strategy_switch", "second": "asp", "rule": rule}
    changes = [
        run(toy_experiment(pair | {"first": first}, stop={"epochs": 4})).summary()["switches"][0]
        for first in ("bsp", {"name": "selsync", "delta": delta})
    ]
    assert [change["epoch"] for change in changes] == [2.0, 2.0]
    assert changes[0]["time_s"] == pytest.approx(changes[1]["time_s"], rel=1e-9)
