"""Another future of a run: its beginning is the same log, byte for byte, and one thing differs after it."""

import pytest

from psbench import Experiment
from psbench.core.log import EventLog, Kind
from psbench.errors import ParameterError
from psbench.runs.execution import run
from psbench.runs.fork import Fork, common_prefix, fork

BASE = {
    "data": {"name": "mixture", "num_samples": 240},
    "model": "logistic",
    "cluster": {"workers": 4, "speed": [1, 1, 1, 0.25]},
    "batch_size": 16,
    "stop": {"epochs": 3},
}
AT_S = 0.1
CHANGES = {
    "strategy": Fork(AT_S, strategy="asp"),
    "bound": Fork(AT_S, strategy={"name": "ssp", "staleness_bound": 10}),
    "faster": Fork(AT_S, worker=3, speed=4.0),
    "slower": Fork(AT_S, worker=0, speed=0.1),
    "kill": Fork(AT_S, worker=3, kill=True),
}


def rows_before(log, at_s):
    return int((log.rows()["time_s"] < at_s).sum())


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_beginning_is_the_same_row_by_row_and_the_rest_is_not(change):
    experiment = Experiment(strategy="ssp", **BASE)
    log, other = run(experiment).log, run(fork(experiment, change)).log
    before = rows_before(log, AT_S)
    assert before > 20
    assert before == rows_before(other, AT_S)
    assert before <= common_prefix(log, other) < len(log)


@pytest.mark.parametrize("change", [Fork(AT_S, switch=True), Fork(AT_S, strategy="bsp")], ids=str)
def test_a_run_with_two_strategies_switches_at_that_moment(change):
    rule = {"name": "after", "fraction": 0.9}
    experiment = Experiment(strategy={"name": "strategy_switch", "rule": rule}, **BASE)
    log, done = run(experiment).log, run(fork(experiment, change))
    assert common_prefix(log, done.log) >= rows_before(log, AT_S)
    asked = done.log.of_kind(Kind.SWITCH_REQUESTED)
    assert asked["time_s"].tolist() == [AT_S]
    assert done.meta["compositions"][1] == (change.strategy or "asp")
    assert done.log.of_kind(Kind.HANDOVER)["id"].tolist() == [1]


def test_a_fork_can_be_written_down_and_read():
    other = fork(Experiment(strategy="bsp", **BASE), CHANGES["strategy"])
    assert Experiment.from_spec(other.spec()) == other
    assert Experiment.from_spec(fork(Experiment(**BASE), CHANGES["slower"]).spec()).cluster.slowdowns


def test_logs_that_name_their_texts_by_other_numbers_have_their_rows_in_common():
    one, two = EventLog(), EventLog()
    two.number("something else")
    for log in (one, two):
        log.add(Kind.HOLD, 0.5, worker=1, text="barrier")
    two.add(Kind.NOTE, 1.0)
    assert common_prefix(one, two) == 1
    one.add(Kind.NOTE, 1.0, text="here")
    assert common_prefix(one, two) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Fork(1.0), "exactly one"),
        (Fork(1.0, strategy="asp", worker=1, kill=True), "exactly one"),
        (Fork(1.0, worker=9, kill=True), "there is no worker 9; the workers are 0 to 3"),
        (Fork(1.0, kill=True), "which worker"),
        (Fork(1.0, strategy="strategy_switch"), "a pair"),
        (Fork(1.0, worker=1, speed=0.0), "positive"),
        (Fork(1.0, switch=True), "nothing to switch to"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(change, said):
    with pytest.raises(ParameterError, match=said):
        fork(Experiment(strategy="bsp", **BASE), change)


def test_a_live_run_has_no_second_future():
    with pytest.raises(ParameterError, match="this one was live"):
        fork(Experiment(strategy="bsp", backend="dask", **BASE), CHANGES["kill"])


def test_a_moment_to_switch_needs_somewhere_to_switch_to():
    with pytest.raises(ParameterError, match="switch_at_s: strategy 'bsp' has nothing to switch to"):
        Experiment(strategy="bsp", switch_at_s=1.0, **BASE)
    with pytest.raises(ParameterError, match="only a simulated run"):
        Experiment(strategy="strategy_switch", backend="dask", switch_at_s=1.0, **BASE)
