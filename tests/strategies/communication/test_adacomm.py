"""AdaComm: the period's worked numbers, when it changes, and what becomes of the rate."""

import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from local_runs import close, trained

from psbench import metrics, replay, strategies
from psbench.core.actions import Apply, Measure, Release
from psbench.core.engine import Engine
from psbench.core.events import Measured, Push
from psbench.core.log import Kind
from psbench.core.view import ClusterView
from psbench.errors import ParameterError
from psbench.runs.execution import run
from psbench.runs.sweeps.steps_search import find_initial_steps
from psbench.strategies.communication import AdaComm
from psbench.testing import check_strategy, toy_experiment

LOSSES = [2.3, 1.2, 0.9, 0.85, 0.84, 0.84, 0.83, 0.2]


def periods(losses, before=None, **values):
    part = AdaComm(initial_steps=20, **values)
    found = [part.initial_steps if before is None else before]
    for loss in losses[1:]:
        found.append(part.period(found[-1], loss / losses[0]))
    return found


def test_the_rule():
    part = AdaComm(initial_steps=20)
    assert part.period(20, 1 / 4) == 10
    assert part.period(20, 1 / 10) == 7
    assert part.period(20, 1 / 10, rate_ratio=10, same_rate=False) == 20
    assert AdaComm(initial_steps=100).period(100, 0.3025) == 55  # 55.00000000000001
    assert part.period(7, 1 / 10, rate_ratio=10, same_rate=False) == 20  # a lower rate raises it


def test_the_worked_sequence():
    assert periods(LOSSES) == [20, 15, 13, 7, 4, 2, 1, 1]


def test_a_gamma_near_1_still_shortens_by_a_step():
    assert periods([1.0] * 4, before=3, gamma=0.9) == [3, 2, 1, 1]
    assert periods([1.0] * 4, before=3, gamma=1.0) == [3, 3, 3, 3]


def test_slack_takes_a_small_fall_for_none():
    assert periods(LOSSES, slack=1) == [20, 15, 13, 7, 4, 2, 1, 1]
    assert periods(LOSSES, slack=2) == [20, 15, 8, 4, 2, 1, 1, 1]  # 13 + 2 is not below 15
    assert periods([1.0, 1.0], slack=100) == [20, 10]


def test_a_loss_that_grows_or_is_no_number_counts_as_a_plateau():
    assert periods([1.0, 4.0]) == periods([1.0, float("inf")]) == periods([1.0, float("nan")]) == [20, 10]
    assert AdaComm().period(8, float("nan"), same_rate=False) == 4


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=12), st.integers(1, 500), st.floats(0.1, 0.9))
def test_with_a_constant_rate_the_period_falls_until_it_is_1(losses, initial, gamma):
    part = AdaComm(initial_steps=initial, gamma=gamma)
    found = [initial]
    for loss in losses:
        found.append(part.period(found[-1], loss / losses[0]))
    for before, after in pairwise(found):
        assert 1 <= after < before or after == before == 1


# -------------------------------------------------------------------- in a run


class Script:
    """Two workers of an engine, and losses as they come: measured, unless `values` say otherwise."""

    def __init__(self, **values):
        facts = {"rate": values.pop("rate")} if "rate" in values else {}
        strategy = strategies.adacomm(
            **{"initial_steps": 20, "interval_s": 60.0, "loss": "measured"} | values
        )
        self.engine = Engine(
            strategy,
            ClusterView(num_workers=2, dataset_size=100, global_batch=2, **facts),
            batch_sizes=[1, 1],
        )
        self.answer = self.engine.begin([0, 1])
        self.pushes = 0

    def measured(self, loss, now):
        self.answer = self.engine.handle(Measured({"train_loss": loss}), now)
        return self.orders

    @property
    def orders(self):
        return [a.orders["local_steps"] for a in self.answer if isinstance(a, Release)]

    @property
    def measures(self):
        return any(isinstance(action, Measure) for action in self.answer)

    def average(self, now, samples=20, losses=(1.0, 1.0)):
        for worker, loss in enumerate(losses):
            ticket, stats = self.engine.view.workers[worker].ticket, {"first_loss": loss}
            push = Push(self.pushes, worker, ticket, self.engine.view.version, samples, stats=stats)
            self.pushes += 1
            self.answer = self.engine.handle(push, now)

    @property
    def applied(self):
        return next(action for action in self.answer if isinstance(action, Apply))


def test_a_version_of_pushes_that_were_counted_before_changes_no_period():
    """Under a quorum's grace period a version may be made of pushes that all came before the last choice."""
    part = AdaComm(initial_steps=20, interval_s=60.0, loss="workers")
    view = ClusterView(num_workers=2, dataset_size=100, global_batch=2)
    part.start(view)
    for worker, at_s in ((0, 10.0), (1, 61.0)):
        view.now = at_s
        part.on_push(Push(worker, worker, 1, 0, 20, stats={"first_loss": 2.0 - worker}), view)
        part.on_applied(view)
    before = part.on_release(0, view)
    view.now = 130.0
    assert part.on_applied(view) == []
    assert part.on_release(0, view) == before == {"local_steps": 15}


def test_first_losses_of_an_interval_are_the_loss_without_a_wait():
    script = Script(loss="workers")
    assert script.orders == [20, 20]  # nothing is measured before the first step
    script.average(10.0, losses=(2.2, 2.4))  # F_0 = 2.3
    script.average(59.0, losses=(1.0, 1.1))
    assert script.orders == [20, 20]
    script.average(60.0, losses=(1.2, 1.5))
    assert (script.measures, script.orders) == (False, [15, 15])  # F = 1.2, the mean of all four
    script.average(119.0, losses=(2.0, 2.0))
    script.average(120.0, losses=(0.0, 0.0))
    assert script.orders == [14, 14]  # F = 1, of the new interval alone


def test_the_first_averaging_tells_the_first_loss_only():
    script = Script(loss="workers")
    script.average(70.0, losses=(2.3, 2.3))  # in the second interval already
    assert script.orders == [20, 20]
    script.average(71.0, losses=(0.23, 0.23))
    assert script.orders == [7, 7]


def test_a_workers_loss_costs_no_time():
    plain = trained(strategies.local_sgd(local_steps=4))
    free = trained(strategies.adacomm(initial_steps=4, gamma=1.0))
    measured = trained(strategies.adacomm(initial_steps=4, gamma=1.0, loss="measured"))
    assert free.summary()["time_s"] == plain.summary()["time_s"] < measured.summary()["time_s"]


def test_the_first_loss_is_measured_before_any_step():
    script = Script()
    assert script.answer == [Measure("communication", {"train_loss": None}, samples=2000)]
    assert script.measured(2.3, 1.0) == [20, 20]


def test_the_period_changes_at_the_first_averaging_of_an_interval():
    script = Script()
    script.measured(2.3, 0.0)
    script.average(59.9)
    assert (script.measures, script.orders) == (False, [20, 20])
    script.average(60.0)
    assert (script.measures, script.orders) == (True, [])  # nobody goes on before it is known
    assert script.measured(1.2, 61.0) == [15, 15]
    script.average(119.0)
    assert (script.measures, script.orders) == (False, [15, 15])


def test_intervals_without_an_averaging_are_skipped():
    script = Script()
    script.measured(2.3, 0.0)
    script.average(300.0)
    script.measured(2.3, 300.0)
    assert script.engine.composition.communication.state_dict()["_interval"] == 5
    script.average(359.0)
    assert (script.measures, script.orders) == (False, [10, 10])
    script.average(361.0)
    assert script.measures


def rate(epoch):
    return 0.1 if epoch < 1 else 0.01


def test_a_drop_of_the_rate_waits_until_the_period_is_1():
    script = Script(rate=rate)
    script.measured(1.0, 0.0)
    epochs, steps = [], []
    for interval in range(1, 8):
        script.average(60.0 * interval, samples=50)
        epochs.append(script.applied.epoch)
        if script.measures:
            script.measured(1.0, 60.0 * interval)
        steps.append(script.orders[0])
    assert steps == [10, 5, 3, 2, 1, 1, 1]
    assert epochs == [0, 0, 0, 0, 0, 5.0, 6.0]  # from then on it is read as usual
    assert not script.measures  # and nothing is measured any more


def test_by_the_formula_a_tenth_of_the_rate_is_root_10_of_the_period():
    script = Script(rate=rate, lr_coupling="formula")
    script.measured(1.0, 0.0)
    script.average(60.0, samples=50)
    assert script.applied.epoch == 0.0
    assert script.measured(0.25, 60.0) == [32, 32]  # sqrt(10 / 4) * 20 = 31.6; an epoch is over
    script.average(120.0)
    assert script.measured(0.25, 120.0) == [16, 16]  # the rate is that of the last interval


def test_after_a_switch_time_rate_and_loss_count_from_there():
    def rate(epoch):
        return 0.1 if epoch < 8 else 0.01

    part = AdaComm(initial_steps=20, interval_s=60.0, loss="measured").fresh()
    view = ClusterView(2, dataset_size=100, global_batch=2, now=50.0, samples=500, rate=rate)
    part.start(view)
    part.on_measured({"train_loss": 0.4}, view)
    view.now, view.samples = 109.0, 900
    assert part.on_applied(view) == []
    assert part.rate_epoch(view) == 5.0
    view.now = 110.0
    assert part.on_applied(view) == [Measure("communication", {"train_loss": None}, samples=2000)]
    part.on_measured({"train_loss": 0.1}, view)
    assert part.on_release(0, view) == {"local_steps": 10}


def test_without_a_fall_and_with_gamma_1_it_is_local_sgd():
    adacomm = trained(strategies.adacomm(initial_steps=4, interval_s=1000.0, gamma=1.0))
    pasgd = trained(strategies.local_sgd(local_steps=4))
    assert torch.equal(adacomm.parameters, pasgd.parameters)
    script = Script(gamma=1.0)
    script.measured(1.0, 0.0)
    for interval in range(1, 4):
        script.average(60.0 * interval)
        assert script.measured(1.0, 60.0 * interval) == [20, 20]


@pytest.mark.slow
def test_a_period_of_1_from_the_beginning_is_bsp():
    done = trained(strategies.adacomm(initial_steps=1, interval_s=0.01))
    close(done.parameters, trained("bsp").parameters)
    assert not len(done.log.of_kind(Kind.MEASURE)["row"])


@pytest.mark.slow
def test_in_a_run_the_period_follows_the_loss():
    done = trained(
        strategies.adacomm(initial_steps=16, interval_s=0.5, block_momentum=0.3, loss="measured"),
        stop={"epochs": 40},
    )
    log = done.log
    losses = [json.loads(log.text(text))["train_loss"] for text in log.of_kind(Kind.MEASURED)["text"]]
    released = log.of_kind(Kind.RELEASE)["text"]
    seen = list(dict.fromkeys(json.loads(log.text(text))["local_steps"] for text in released))
    assert seen == list(dict.fromkeys(_expected(16, losses)))
    assert seen[-1] == 1
    assert len(seen) >= 4
    assert replay(done) == len(log)


def test_the_schedule_is_known_in_a_run_and_its_replay():
    drop = {"name": "sgd", "lr": 0.1, "milestones": [4.0], "gamma": 0.01}
    values = {"initial_steps": 4, "interval_s": 0.5, "lr_coupling": "formula"}
    done = trained(strategies.adacomm(**values), optimizer=drop, stop={"epochs": 12})
    texts = done.log.of_kind(Kind.RELEASE)["text"]
    seen = [json.loads(done.log.text(text))["local_steps"] for text in texts]
    assert max(seen) > 4  # ten times as long as the loss alone would have it
    assert replay(done) == len(done.log)


def _expected(initial, losses):
    part, found = AdaComm(initial_steps=initial), [initial]
    for loss in losses[1:]:
        found.append(part.period(found[-1], loss / losses[0]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {"interval_s": 3.0, "initial_steps": 8},
        {"interval_s": 2.0, "lr_coupling": "formula", "loss": "measured"},
    ],
    ids=str,
)
def test_it_keeps_the_contract(values):
    check_strategy(strategies.adacomm(**values), clusters=1)


def test_it_cannot_be_timed_without_gradients():
    with pytest.raises(ParameterError, match="adacomm"):
        trained("adacomm", timing_only=True)
    with pytest.raises(ParameterError, match="gamma"):
        strategies.adacomm(gamma=1.5)


def test_the_search_for_the_first_period_compares_losses_after_equal_time():
    cluster = {"workers": 3, "step_time": "constant", "latency_s": 0.02}
    experiment = toy_experiment("adacomm", cluster=cluster)
    found = find_initial_steps(experiment, candidates=(4, 1), runs=2, processes=1)
    assert found.table()["local_steps"].tolist() == [1, 4]  # in order, however they were given
    assert found.table()["train_loss"].tolist() == pytest.approx(
        [sum(each) / 2 for each in found.losses.values()]
    )
    four, one = (
        trained(strategies.local_sgd(local_steps=steps), cluster=cluster, stop={"epochs": 1})
        for steps in (4, 1)
    )
    assert found.time_s == four.summary()["time_s"]  # the quicker
    assert found.losses[4][0] == pytest.approx(metrics.evaluations(four.log)["train_loss"].iloc[-1])
    assert found.losses[1][0] > metrics.evaluations(one.log)["train_loss"].iloc[-1]
    assert found.initial_steps == 4  # one step an exchange has not come far by then
    assert found.table()["local_steps"].tolist() == [1, 4]
    with pytest.raises(ParameterError, match="'bsp' has no initial period; use adacomm"):
        find_initial_steps(toy_experiment("bsp"))
    with pytest.raises(ParameterError, match="give periods of at least 1"):
        find_initial_steps(experiment, candidates=(0, 1))


def test_periods_that_diverge_do_not_say_when_losses_are_compared():
    """Their runs end early."""
    own = {
        "model": {"name": "mlp", "hidden": [8, 8, 8]},
        "optimizer": {"name": "sgd", "lr": 300.0},
        "cluster": {"workers": 3, "step_time": "constant", "latency_s": 0.02},
    }
    settings = {"candidates": (1, 2, 5, 20), "runs": 1, "epochs": 2, "processes": 1}
    found = find_initial_steps(toy_experiment("adacomm", **own), **settings)
    diverged = {steps for steps, (loss,) in found.losses.items() if loss != loss}
    assert diverged
    ends = [
        run(toy_experiment({"name": "local_sgd", "local_steps": each}, stop={"epochs": 2}, **own)).summary()
        for each in {*settings["candidates"]} - diverged
    ]
    assert found.time_s == pytest.approx(min(end["time_s"] for end in ends))
