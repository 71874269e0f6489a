"""A rule sees the epochs of workers that vote and keep their steps."""

from __future__ import annotations

from psbench import strategies
from psbench.core.log import Kind
from psbench.runs.execution import run
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster


def after_half(first, **changes):
    rule = {"name": "after", "fraction": 0.5}
    strategy = strategies.strategy_switch(first=first, second="asp", rule=rule)
    return run(toy_experiment(strategy, stop={"epochs": 8}, **changes))


def test_a_switch_after_half_the_epochs_comes_also_where_nobody_pushes():
    never = strategies.selsync(delta=1e9)
    done = after_half(never)
    (switch,) = done.summary()["switches"]
    assert 4.0 <= switch["epoch"] < 4.5
    # the first step of all synchronises, and the switch makes everybody push once more
    assert len(done.log.of_kind(Kind.PUSH)["id"]) > 6


def test_a_checkpoint_may_fall_where_the_new_parts_measure(tmp_path):
    """AdaComm measures the loss before its first step, in the midst of the hand-over's answer."""
    strategy = strategies.strategy_switch(
        first="bsp", second="adacomm", rule={"name": "after", "fraction": 0.5}
    )
    done = run(toy_experiment(strategy, stop={"epochs": 4}), folder=tmp_path)
    assert any("switch" in path for path in done.meta["checkpoints"])


def test_the_version_of_a_switch_is_evaluated_and_may_be_the_last():
    """Whether the models before it diverge, and are evaluated after an answer, or those after it."""
    synchronises = {"name": "selsync", "delta": 0.0}
    for first, second in ((synchronises, "bsp"), ("bsp", synchronises), ("bsp", "all_reduce")):
        rule = {"name": "at_time", "at_s": 0.012}  # in the third step
        switch = {"name": "strategy_switch", "first": first, "second": second, "rule": rule}
        settings = {"cluster": toy_cluster([1.0] * 3), "evaluate_every": 0.125}
        done = run(toy_experiment(switch, stop={"updates": 3}, **settings))
        assert done.log.of_kind(Kind.HANDOVER)["version"].tolist() == [3]
        assert done.log.of_kind(Kind.APPLY)["version"].max() == 3
        assert done.log.of_kind(Kind.EVALUATED)["version"].tolist() == [0, 1, 2, 3]
