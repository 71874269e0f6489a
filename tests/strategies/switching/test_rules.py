"""Switch rules: the papers' worked numbers, decided through the engine."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest

from psbench import replay, strategies
from psbench.core.actions import Handover, Note
from psbench.core.engine import Engine
from psbench.core.events import Evaluated, Join, Leave, SwitchRequested
from psbench.core.log import Kind
from psbench.core.part import make_part
from psbench.core.view import ClusterView
from psbench.errors import ParameterError
from psbench.runs.execution import resume, run
from psbench.strategies.switching import noise_of, relative_change
from psbench.testing import ScriptedCluster, toy_experiment
from psbench.testing.toys import toy_cluster

MOVING = [0.500, 0.450, 0.420, 0.415, 0.413, 0.412]
SETTLED = [0.4000, 0.3998, 0.3997, 0.3996, 0.3995, 0.3994]


def decisions(losses, **rule):
    """Return, for every epoch, whether the empirical rule asks for a switch after its loss."""
    strategy = strategies.strategy_switch(rule={"name": "empirical", **rule})
    engine = Engine(strategy, ClusterView(num_workers=2, dataset_size=8, global_batch=8))
    engine.begin(range(2))
    asked = []
    for epoch, loss in enumerate(losses, 1):
        engine.handle(Evaluated(epoch, 0, {"val_loss": loss}), float(epoch))
        asked.append(engine.state_dict()["drain"] is not None)
    return asked


class TestEmpirical:
    def test_the_worked_example_of_the_thesis_does_not_switch(self):
        assert round(100 * relative_change(MOVING), 4) == 3.7162
        terms = [round(20 * abs(b - a) / a, 4) for a, b in pairwise(MOVING)]
        assert terms == [2.0, 1.3333, 0.2381, 0.0964, 0.0484]
        assert decisions(MOVING) == [False] * 6

    def test_settled_losses_switch_at_the_sixth(self):
        """The thesis prints 0.0250 %: it multiplies the last term by five."""
        assert round(100 * relative_change(SETTLED), 4) == 0.03
        assert decisions(SETTLED) == [False] * 5 + [True]

    def test_constant_losses_switch_after_the_sixth(self):
        assert decisions([0.7] * 6) == [False] * 5 + [True]

    def test_only_the_last_window_counts(self):
        assert decisions([9.0, *SETTLED]) == [False] * 6 + [True]

    def test_equality_does_not_switch(self):
        halving = [1.0, 0.5, 0.25]
        assert decisions(halving, window=2, threshold=0.5) == [False] * 3
        assert decisions(halving, window=2, threshold=0.5000001) == [False, False, True]

    def test_a_loss_that_is_no_number_does_not_settle_anything(self):
        assert decisions([float("nan")] * 7) == [False] * 7

    def test_a_loss_of_zero_divides_by_nothing(self):
        assert relative_change([0.0, 0.5, 0.25]) == 0.25

    def test_the_value_is_noted_for_the_charts(self):
        strategy = strategies.strategy_switch(rule={"name": "empirical", "window": 1})
        engine = Engine(strategy, ClusterView(num_workers=1, dataset_size=8, global_batch=8))
        engine.begin([0])
        engine.handle(Evaluated(1, 0, {"val_loss": 1.0}), 1.0)
        assert engine.handle(Evaluated(2, 0, {"val_loss": 0.75}), 2.0) == [
            Note("rule empirical value=0.25 threshold=0.01 epoch=2")
        ]

    def test_it_needs_a_validation_loss(self):
        engine = Engine(
            strategies.strategy_switch(), ClusterView(num_workers=1, dataset_size=8, global_batch=8)
        )
        engine.begin([0])
        with pytest.raises(ParameterError, match="no validation data"):
            engine.handle(Evaluated(1, 0, {}), 1.0)

    def test_it_switches_once_and_never_against_a_person(self):
        strategy = strategies.strategy_switch(first="bsp", rule={"name": "empirical", "window": 1})
        cluster = ScriptedCluster(
            strategy,
            [1, 1],
            val_loss=lambda epoch: 1.0,
            changes=[(30.5, SwitchRequested()), (60.5, SwitchRequested(1))],
        )
        cluster.run(until=100)
        handed = cluster.log.of_kind(Kind.HANDOVER)
        assert handed["time_s"].tolist() == [21, 31, 61]
        assert handed["id"].tolist() == [1, 0, 1]

    def test_its_losses_survive_a_round_trip(self):
        strategy = strategies.strategy_switch(rule={"name": "empirical", "window": 2, "threshold": 0.1})

        def new():
            return Engine(strategy, ClusterView(num_workers=1, dataset_size=8, global_batch=8))

        engine = new()
        engine.begin([0])
        for epoch in (1, 2):
            engine.handle(Evaluated(epoch, 0, {"val_loss": 1.0}), float(epoch))
        resumed = new()
        resumed.load_state_dict(json.loads(json.dumps(engine.state_dict())))
        resumed.handle(Evaluated(3, 0, {"val_loss": 1.0}), 3.0)
        assert resumed.state_dict()["drain"] is not None


def switched(values, **rule):
    """Return the numbers of the evaluations after which a rule asks for a switch; values: (epoch, loss)."""
    strategy = strategies.strategy_switch(rule={"name": "empirical", "window": 5} | rule)
    engine = Engine(strategy, ClusterView(num_workers=2, dataset_size=8, global_batch=8))
    engine.begin(range(2))
    for number, (epoch, loss) in enumerate(values, 1):
        engine.handle(Evaluated(number, 0, {"epoch": epoch, "val_loss": loss}), float(number))
        if engine.state_dict()["drain"] is not None:
            return number
    return None


class TestEpochs:
    """The published rule counts epochs: with four evaluations in each it fired at epoch 1.52."""

    @pytest.mark.parametrize(
        ("every", "number"), [(0.25, 24), (0.76, 8), (1.0, 6), (1.5, 4), (2.0, 4), (7.0, 2)]
    )
    def test_the_window_is_in_epochs_however_often_the_model_is_evaluated(self, every, number):
        assert switched([(every * n, 0.7) for n in range(1, 40)]) == number

    def test_the_first_evaluation_of_an_epoch_counts(self):
        within = [(n / 4, 1.0 if n % 4 == 0 else 2.0) for n in range(1, 40)]
        assert switched(within) == 24

    def test_changes_are_per_epoch_where_some_have_no_evaluation(self):
        falling = [(2.0 * n, 0.9**n) for n in range(1, 9)]  # 10 % in two epochs
        assert switched(falling, threshold=0.0501) == 4
        assert switched(falling, threshold=0.0499) is None

    def test_a_checkpoint_of_an_older_version_goes_on(self):
        """Its losses have no epochs; each evaluation counted as one."""
        strategy = strategies.strategy_switch(rule={"name": "empirical", "window": 2})
        engine = Engine(strategy, ClusterView(num_workers=2, dataset_size=8, global_batch=8))
        engine.begin(range(2))
        state = engine.state_dict()
        state["rule"] = {"_done": False, "_losses": [0.9, 0.7, 0.7]}
        engine.load_state_dict(state)
        engine.handle(Evaluated(9, 0, {"epoch": 9.0, "val_loss": 0.7}), 1.0)
        assert engine.state_dict()["rule"]["_epochs"] == [7, 8, 9]
        assert engine.state_dict()["drain"] is not None

    @pytest.mark.parametrize("every", [0.25, 1.0])
    @pytest.mark.parametrize("first", ["all_reduce", "ssp"])
    def test_a_run_hands_over_at_the_version_that_was_evaluated(self, first, every):
        """It did so one update later, after a step that all had begun already; `after` did not."""
        rule = {"name": "empirical", "window": 2, "threshold": 0.9}
        strategy = {"name": "strategy_switch", "first": first, "rule": rule}
        done = run(toy_experiment(strategy, stop={"epochs": 5}, evaluate_every=every))
        (switch,) = done.summary()["switches"]
        assert switch["epoch"] == 3.0
        assert switch["version"] in done.log.of_kind(Kind.EVALUATED)["version"]
        assert replay(done) == len(done.log)

    @pytest.mark.slow
    def test_a_run_that_ends_with_an_evaluation_is_replayed_and_resumed(self, tmp_path):
        rule = {"name": "empirical", "window": 9, "threshold": 0.9}
        options = {"evaluate_every": 1, "checkpoint_every": 1}
        experiment = toy_experiment({"name": "strategy_switch", "rule": rule}, stop={"epochs": 3}, **options)
        done = run(experiment, folder=tmp_path / "short")
        assert replay(done) == len(done.log)
        longer = resume(tmp_path / "short", {"stop.epochs": 11})
        whole = run(experiment.but(stop={"epochs": 11}))
        # the shorter run's last answer was complete before its evaluation: the log has them in that order
        assert longer.meta["params_digest"] == whole.meta["params_digest"]
        assert longer.summary()["switches"] == whole.summary()["switches"]
        assert whole.summary()["switches"][0]["epoch"] == 10.0


ALTERNATING = [1.0, 1.1] * 6


def adaptive(losses, **rule):
    return switched(enumerate(losses, 1), **{"name": "noise_adaptive"} | rule)


class TestNoiseAdaptive:
    def test_the_noise_of_alternating_losses_has_a_closed_form(self):
        """Changes are +a and -b with a = 0.1, b = 1/11; their differences are all a + b."""
        assert noise_of(ALTERNATING) == pytest.approx((0.1 + 1 / 11) / math.sqrt(6))

    def test_the_noise_of_independent_errors_is_their_deviation(self):
        losses = 1 + 0.02 * np.random.default_rng(0).standard_normal(4000)
        assert noise_of(losses.tolist()) == pytest.approx(0.02, rel=0.05)

    @pytest.mark.parametrize("fall", [0.5, 0.9, 0.999])
    def test_a_steady_fall_has_no_noise_and_never_fires(self, fall):
        losses = [fall**n for n in range(30)]
        assert noise_of(losses) == pytest.approx(0, abs=1e-15)
        assert adaptive(losses) is None

    def test_a_constant_loss_fires_without_noise_and_with_it(self):
        assert adaptive([0.7] * 8) == 6
        # net change over five epochs: 3 a - 2 b, or 2 a - 3 b; noise allows sqrt(2) (a + b) / sqrt(6)
        up, down = 3 * 0.1 - 2 / 11, 3 / 11 - 2 * 0.1
        allowed = math.sqrt(1 / 3) * (0.1 + 1 / 11)
        assert adaptive(ALTERNATING, factor=1.001 * up / allowed) == 6
        assert adaptive(ALTERNATING, factor=0.999 * up / allowed) == 7
        assert adaptive(ALTERNATING, factor=0.999 * down / allowed) is None

    def test_the_published_rule_waits_for_luck_in_the_same_noise(self):
        losses = (0.1 * (1 + 0.03 * np.random.default_rng(1).standard_normal(60))).tolist()
        assert switched(enumerate(losses, 1)) is None
        assert adaptive(losses) <= 10

    def test_noise_does_not_hide_a_fall(self):
        chance = np.random.default_rng(2).standard_normal(60)
        falling = [0.97**n * (1 + 0.005 * chance[n]) for n in range(60)]
        assert adaptive(falling) is None

    def test_value_and_threshold_are_noted_for_the_charts(self):
        strategy = strategies.strategy_switch(rule={"name": "noise_adaptive", "window": 3})
        engine = Engine(strategy, ClusterView(num_workers=1, dataset_size=8, global_batch=8))
        engine.begin([0])
        for epoch in (1, 2, 3):
            assert engine.handle(Evaluated(epoch, 0, {"val_loss": 0.5**epoch}), epoch) == []
        assert engine.handle(Evaluated(4, 0, {"val_loss": 0.5**4}), 4.0) == [
            Note("rule noise_adaptive value=0.5 threshold=0 epoch=4")
        ]


def switch_epoch(fraction, epochs):
    strategy = strategies.strategy_switch(first="bsp", rule={"name": "after", "fraction": fraction})
    cluster = ScriptedCluster(strategy, [1, 1], epochs=epochs)
    while cluster.engine.view.epoch < epochs:
        cluster.step()
    rows = cluster.log.rows()
    handed = [at for at, kind in enumerate(rows["kind"]) if kind == Kind.HANDOVER]
    if not handed:
        return None
    before = rows[: handed[0]]
    return before["samples"][before["kind"] == Kind.APPLY].sum() / cluster.engine.view.dataset_size


class TestAfter:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("fraction", "epochs", "expected"),
        [
            (0.0, 8, 0),
            (0.25, 8, 2),
            (0.5, 8, 4),
            (1.0, 8, None),
            (0.3, 8, 2),  # 2.4
            (0.25, 10, 3),  # 2.5, halves upwards
            (0.95, 10, None),  # 9.5 is all of them
            (0.01, 20, 0),
            (26 / 182, 182, 26),
            (109 / 200, 200, 109),
            (0.5, 1, 0.5),  # part of an epoch is cut where it says
        ],
    )
    def test_epochs_under_the_first_strategy(self, fraction, epochs, expected):
        assert switch_epoch(fraction, epochs) == expected

    def test_not_one_step_too_many_is_taken_under_the_first(self):
        strategy = strategies.strategy_switch(first="bsp", rule={"name": "after", "fraction": 0.5})
        cluster = ScriptedCluster(strategy, [1, 2], epochs=4)
        cluster.run(until=60)
        handed = cluster.log.of_kind(Kind.HANDOVER)
        assert (handed["time_s"].tolist(), handed["version"].tolist()) == ([40.0], [20])

    def test_the_number_of_epochs_must_be_known(self):
        strategy = strategies.strategy_switch(rule={"name": "after"})
        with pytest.raises(ParameterError, match=r"set stop.epochs"):
            Engine(strategy, ClusterView(num_workers=1)).begin([0])

    def test_it_does_not_undo_what_a_person_did(self):
        strategy = strategies.strategy_switch(first="bsp", rule={"name": "after", "fraction": 0.25})
        cluster = ScriptedCluster(strategy, [1, 1], epochs=4, changes=[(20.5, SwitchRequested(0))])
        cluster.run(until=40)
        handed = cluster.log.of_kind(Kind.HANDOVER)
        assert (handed["time_s"].tolist(), handed["id"].tolist()) == ([10, 21], [1, 0])


# -------------------------------------------------------------------- a switch that did not come


def losses(*values):
    """Return an evaluation at the end of each epoch."""
    return [Evaluated(n, 0, {"epoch": float(n), "val_loss": v}) for n, v in enumerate(values, 1)]


class TestWhyNot:
    """What a run that ended under its first strategy says of that."""

    def test_after_a_share_of_the_epochs(self):
        rule = make_part("switching", {"name": "after", "fraction": 0.5})
        assert rule.why_not([], 1.5, 8.0) == "the run ended after 1.5 epochs, before the switch at epoch 4"
        never = make_part("switching", {"name": "after", "fraction": 1.0})
        assert [never.why_not([], 1.5, 8.0), rule.why_not([], 1.5, None)] == ["", ""]

    def test_by_the_loss(self):
        rule = make_part("switching", {"name": "empirical", "window": 2, "threshold": 0.1})
        assert "needs the validation losses of 3 epochs, and the run ended after 2.5" in rule.why_not(
            losses(0.9, 0.5), 2.5, None
        )
        assert "but the run ended before the hand-over" in rule.why_not(losses(0.5, 0.5, 0.5), 3, None)
        near = rule.why_not(losses(1.0, 0.5, 0.4, 0.1), 4, None)
        assert "35 %" in near  # the mean of 50 and 20; the next one is of 20 and 75
        nothing = rule.why_not(losses(math.nan, math.nan, math.nan), 3, None)
        assert nothing == "the validation loss was not a number"

    def test_by_noise_of_which_there_may_be_none(self):
        rule = make_part("switching", {"name": "noise_adaptive", "window": 3})
        steady, noisy = losses(8.0, 4.0, 2.0, 1.0), losses(8.0, 4.0, 2.0, 1.0, 0.6, 0.2)
        assert "noise explains 0 %" in rule.why_not(steady, 4, None)
        assert "noise explains 0 %" not in rule.why_not(noisy, 6, None)


# -------------------------------------------------------------------- time


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "first", "faster", "formula", "paper"),
    [(182, 26, 2.48, 2.047, 2.07), (200, 109, 2.28, 1.343, 1.4)],
    ids=["C2 #B1", "C2 #B2"],
)
def test_time_model_of_the_paper(epochs, first, faster, formula, paper):
    """Speed-up over All-Reduce of a switch after f of the epochs: 1 / (f + (1 - f)/a), a that of ASP."""
    f = first / epochs
    assert round(1 / (f + (1 - f) / faster), 3) == formula
    assert abs(formula - paper) < 0.06
    # two workers of which the slow one makes ASP just so much faster: (1 + s)/(2 s) = a
    cluster = toy_cluster([1.0, 1 / (2 * faster - 1)])
    options = {"cluster": cluster, "timing_only": True, "stop": {"epochs": epochs}, "batch_size": 8}
    rule = {"name": "after", "fraction": f}
    took = [
        run(toy_experiment(strategy, **options)).log.columns()["time_s"][-1]
        for strategy in ("all_reduce", "asp", {"name": "strategy_switch", "rule": rule})
    ]
    assert took[0] / took[1] == pytest.approx(faster, rel=0.01)
    assert took[0] / took[2] == pytest.approx(formula, rel=0.01)


def test_the_cost_of_a_hand_over_delays_everything_after_it():
    def took(cost_s):
        strategy = {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}, "cost_s": cost_s}
        slow = toy_cluster([1.0, 0.5], latency_s=0.001, bandwidth_mbit_s=1.0)
        done = run(toy_experiment(strategy, cluster=slow, stop={"epochs": 2}, timing_only=True))
        handed = int(done.log.of_kind(Kind.HANDOVER)["row"][0])
        pushes = done.log.of_kind(Kind.PUSH)
        return pushes["time_s"][pushes["row"] < handed], pushes["time_s"][pushes["row"] > handed]

    (before, after), (same, later) = took(0.0), took(7.5)
    assert before.tolist() == same.tolist()
    assert later == pytest.approx(after + 7.5, abs=1e-12)


# -------------------------------------------------------------------- while it drains, in whole runs


def test_comings_and_goings_during_a_drain():
    changes = [(2.5, SwitchRequested()), (2.75, Leave(1)), (3.0, Join(3)), (3.25, Leave(0)), (3.5, Join(1))]
    cluster = ScriptedCluster(strategies.strategy_switch(first="bsp"), [1, 2, 4, 1], changes=changes)
    cluster.run(until=4)
    now, event, actions = cluster.history[-1]
    assert (now, event.worker) == (4.0, 2)
    assert [type(a).__name__ for a in actions].count("Handover") == 1
    assert [a.worker for a in actions if type(a).__name__ == "Release"] == [1, 2, 3]
    assert isinstance(actions[2], Handover) or actions[1].reason == "switch"


def test_a_switch_by_hand_goes_there_and_back():
    strategy = strategies.strategy_switch(first="bsp", second="asp", rule="manual")
    cluster = ScriptedCluster(strategy, [1, 3], changes=[(4.5, SwitchRequested()), (12.5, SwitchRequested())])
    cluster.run(until=24)
    handed = cluster.log.of_kind(Kind.HANDOVER)
    assert handed["time_s"].tolist() == [6, 15]
    assert handed["steps"].tolist() == [0, 1]
    assert handed["id"].tolist() == [1, 0]
