"""Another future of a run: its beginning is the same log, byte for byte, and one thing differs after it."""

import numpy as np
import pytest

from psbench import Experiment, replay, resume
from psbench.backends.control import Control
from psbench.core.log import EventLog, Kind
from psbench.errors import ForkDiffers, ParameterError, UnknownName
from psbench.runs import fork as forking
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
    "throttled": Fork(AT_S, worker=0, link=0.001),
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


def switching(**options):
    """From All-Reduce to ASP after an epoch of three; the origin of the forks below."""
    rule = {"name": "after", "fraction": 1 / 3}
    return Experiment(strategy={"name": "strategy_switch", "rule": rule} | options, **BASE)


@pytest.fixture(scope="module")
def origin():
    return run(switching())


def course(done):
    """Return the strategies of a run in the order in which they were in force."""
    changes = done.summary()["switches"]
    return [done.meta["compositions"][0], *(change["to"] for change in changes)]


@pytest.mark.parametrize("change", [Fork(AT_S, switch=True), Fork(AT_S, strategy="bsp")], ids=str)
def test_a_fork_before_the_switch_has_the_last_word(change, origin):
    done = run(fork(origin, change))
    assert common_prefix(origin.log, done.log) >= rows_before(origin.log, AT_S)
    assert done.log.of_kind(Kind.SWITCH_REQUESTED)["time_s"].tolist() == [AT_S]
    assert course(done) == ["all_reduce", change.strategy or "asp"]
    assert replay(done) == len(done.log)


@pytest.mark.parametrize("later_s", [0.0, 0.05])
@pytest.mark.parametrize("strategy", ["ssp", "bsp", "all_reduce", "local_sgd"])
def test_a_fork_after_the_switch_or_at_its_very_moment_keeps_it(origin, strategy, later_s):
    at_s = origin.summary()["switches"][0]["time_s"] + later_s
    done = run(fork(origin, Fork(at_s, strategy=strategy)))
    assert course(done) == ["all_reduce", "asp", strategy]
    assert common_prefix(origin.log, done.log) >= rows_before(origin.log, at_s) > 150
    assert done.summary()["switches"][-1]["reason"] == f"at {at_s:g} s"
    assert replay(done) == len(done.log)


@pytest.mark.parametrize(("strategy", "share"), [("asp", 0.8), ("asp", 0.6), ("all_reduce", 0.3)])
def test_a_fork_to_the_strategy_that_is_in_force_is_the_run_itself(strategy, share):
    """Without what the rule would have done after it: by hand is the last word."""
    experiment = switching() if strategy == "asp" else Experiment(strategy="all_reduce", **BASE)
    origin = run(experiment)
    done = run(fork(origin, Fork(share * origin.meta["time_s"], strategy=strategy)))
    asked = done.log.of_kind(Kind.SWITCH_REQUESTED)["row"]
    assert len(asked) == 1
    mine, rest = origin.log.rows(), np.delete(done.log.rows(), asked)
    assert mine.tobytes() == rest.tobytes()
    assert origin.meta["params_digest"] == done.meta["params_digest"]
    assert done.summary()["warnings"] == origin.summary()["warnings"]
    assert replay(done) == len(done.log)


def test_a_fork_of_a_fork_of_a_fork_has_each_of_their_switches(origin):
    moments, done = (0.32, 0.36, 0.4), origin
    for at_s, strategy in zip(moments, ("ssp", "k_asp", "asp"), strict=True):
        done = run(fork(done, Fork(at_s, strategy=strategy)))
    assert course(done) == ["all_reduce", "asp", "ssp", "k_asp", "asp"]
    earlier = run(fork(done, Fork(0.34, strategy="bsp")))  # in the place of what came later
    assert course(earlier) == ["all_reduce", "asp", "ssp", "bsp"]
    lost = run(fork(done, Fork(0.38, worker=1, kill=True)))  # and this beside it
    assert course(lost) == course(done)
    assert lost.meta["lost_workers"] == [1]


def test_a_fork_while_a_switch_is_under_way_is_handed_over_to_instead():
    experiment = switching(first="asp", second="ssp")
    origin = run(experiment)
    (change,) = origin.summary()["switches"]
    rows = origin.log.rows()
    held = rows["time_s"][(rows["kind"] == Kind.HOLD) & (rows["time_s"] < change["time_s"])]
    at_s = (held[-1] + change["time_s"]) / 2
    done = run(fork(origin, Fork(at_s, strategy="k_asp")))
    assert course(done) == ["asp", "k_asp"]
    assert run(fork(origin, Fork(at_s, strategy="asp"))).summary()["switches"][0]["to"] == "asp"


def test_switches_by_hand_are_part_of_what_is_forked():
    """A run remembers them in its log alone: they come again at the same place, tick by tick."""

    class Pressed(Control):
        def __init__(self, at_events):
            super().__init__()
            self.at_events = list(at_events)

        def seen(self, log):
            if self.at_events and len(log) >= self.at_events[0]:
                self.at_events.pop(0)
                self.switch()

    experiment = Experiment(
        **BASE | {"stop": {"epochs": 30}}, strategy={"name": "strategy_switch", "rule": "manual"}
    )
    control = Pressed([300, 1500, 2500])
    origin = run(experiment, control=control, observer=control.seen)
    assert course(origin) == ["all_reduce", "asp", "all_reduce", "asp"]
    end_s = origin.meta["time_s"]
    same = run(fork(origin, Fork(0.99 * end_s, worker=0, speed=0.5)))
    assert course(same) == course(origin)
    pressed = origin.log.of_kind(Kind.SWITCH_REQUESTED)["time_s"]
    other = run(fork(origin, Fork(pressed[1] + 0.05, strategy="ssp")))
    assert course(other) == ["all_reduce", "asp", "all_reduce", "ssp"]
    again = run(fork(other, Fork((pressed[0] + pressed[1]) / 2, strategy="bsp")))
    assert course(again) == ["all_reduce", "asp", "bsp"]


def test_a_fork_whose_beginning_differs_is_refused(origin, monkeypatch):
    late = Fork(0.35, strategy="ssp")
    other = fork(origin, late)
    kept = forking.ForkedExperiment.of(other.but(seed=1), other.beginning)
    with pytest.raises(ForkDiffers, match=r"row \d+ was (push|evaluated) at .* and is"):
        run(kept)
    replaced = SwitchingOfOld(monkeypatch)
    for begun in (origin, origin.experiment):  # that of an experiment is run to compare with
        with pytest.raises(ForkDiffers, match="its beginning differs from that of the original run"):
            run(fork(begun, late))
    assert replaced.calls == 2


class SwitchingOfOld:
    """Forks as they were: the new strategy took the place of the second one."""

    def __init__(self, monkeypatch):
        self.calls = 0
        monkeypatch.setattr(forking, "_other_strategy", self.other_strategy)

    def other_strategy(self, now, change):
        self.calls += 1
        at = {"name": "at_time", "at_s": change.at_s}
        second = forking.make_strategy(change.strategy)
        return now.model_copy(update={"second": second}).with_switches(forking.later_switches([{"rule": at}]))


def test_a_run_that_ended_before_the_fork_or_was_stopped_before_it(origin):
    with pytest.raises(ParameterError, match=r"the run ended at 0\.46\d* s, before 9 s"):
        fork(origin, Fork(9.0, strategy="ssp"))
    control = Control()
    stopped = run(
        fork(origin, Fork(0.4, strategy="ssp")),
        control=control,
        observer=lambda log: control.stop() if len(log) > 20 else None,
    )
    assert stopped.meta["status"] == "stopped"


@pytest.mark.parametrize("strategy", ["all_reduce", "strategy_switch"])
@pytest.mark.parametrize(("momentum", "forgets"), [("keep", False), ("zero", True)])
def test_the_momentum_is_the_forks_affair_whatever_the_run_was(strategy, momentum, forgets):
    experiment = Experiment(strategy=strategy, **BASE)
    change = Fork(AT_S, strategy="ssp", momentum=momentum)
    other = fork(experiment, change).strategy
    last = other.between(0, len(other.compositions) - 1)
    assert (last.momentum == "zero") == forgets
    assert ("momentum reset" in change.words()) == forgets


def test_the_same_fork_of_the_same_state_gives_the_same_model():
    """All-Reduce alone, and as the first of a pair whose rule would have switched later."""
    late = switching(rule={"name": "after", "fraction": 0.9})
    one, two = (
        run(fork(each, Fork(AT_S, strategy="ssp"))) for each in (late, late.but(strategy="all_reduce"))
    )
    assert one.meta["params_digest"] == two.meta["params_digest"]


def test_three_strategies_in_a_row_by_rule_and_by_time():
    """A, B, A: B by its rule, A again by another one; or at a set time, with what came before it left out."""
    after = {"name": "after", "fraction": 2 / 3}
    again = {"to": "all_reduce", "rule": after}
    done = run(switching(then=[again]))
    assert course(done) == ["all_reduce", "asp", "all_reduce"]
    assert [change["epoch"] for change in done.summary()["switches"]] == pytest.approx([1, 2], abs=0.1)
    assert replay(done) == len(done.log)
    timed = {"to": "all_reduce", "rule": {"name": "at_time", "at_s": 0.35}, "momentum": "keep"}
    assert course(run(switching(then=[timed]))) == ["all_reduce", "asp", "all_reduce"]
    before = {"to": "ssp", "rule": {"name": "at_time", "at_s": AT_S}}
    done = run(switching(then=[before, again]))
    assert course(done) == ["all_reduce", "ssp", "all_reduce"]
    assert [change["epoch"] for change in done.summary()["switches"]][1] == pytest.approx(2, abs=0.1)


def test_a_row_of_equal_strategies_is_one_of_them_under_a_barrier():
    """Handed over with their momentum, and at once, as nobody is under way: the same model and time."""
    timed = [
        {"to": "bsp", "rule": {"name": "after", "fraction": f, "whole_epochs": False}, "momentum": "keep"}
        for f in (0.5, 0.75)
    ]
    pair = {"name": "strategy_switch", "first": "bsp", "second": "bsp", "momentum": "keep", "then": timed}
    row = run(Experiment(strategy=pair | {"rule": {"name": "after", "fraction": 1 / 3}}, **BASE))
    alone = run(Experiment(strategy="bsp", **BASE))
    assert course(row) == ["bsp"] * 4
    assert row.meta["params_digest"] == alone.meta["params_digest"]
    assert row.meta["time_s"] == pytest.approx(alone.meta["time_s"], rel=1e-9)


def test_the_last_of_a_row_may_never_come_and_the_run_says_so():
    never = {"to": "ssp", "rule": {"name": "at_time", "at_s": 99.0}}
    assert run(switching(then=[never])).summary()["warnings"] == [
        "never switched to strategy 3 of 3: the run ended before the switch at 99 s"
    ]


def test_switch_at_s_of_older_files_is_a_switch_by_hand():
    """Their specification had it beside the strategy."""
    spec = switching().spec() | {"switch_at_s": AT_S}
    old = Experiment.from_spec(spec)
    assert old.strategy.requests == [(AT_S, None)]
    assert Experiment.from_spec(old.spec()) == old
    assert Experiment.from_spec(switching().spec(), {"switch_at_s": AT_S}) == old
    assert Experiment.from_spec(switching().spec() | {"switch_at_s": None}) == switching()
    assert course(run(old)) == ["all_reduce", "asp"]
    late = Experiment.from_spec(switching().spec() | {"switch_at_s": 0.35})
    assert course(run(late)) == ["all_reduce", "asp", "all_reduce"]


def test_a_row_goes_on_from_any_of_its_checkpoints(tmp_path):
    then = [
        {"to": "ssp", "rule": {"name": "at_time", "at_s": 0.33}},
        {"to": "all_reduce", "rule": {"name": "after", "fraction": 0.9, "whole_epochs": False}},
    ]
    whole = run(switching(then=then), folder=tmp_path / "run")
    assert course(whole) == ["all_reduce", "asp", "ssp", "all_reduce"]
    for path in whole.meta["checkpoints"]:
        again = resume(path, folder=tmp_path / "again", overwrite=True)
        assert course(again) == course(whole)


def test_a_fork_can_be_written_down_and_read():
    other = fork(Experiment(strategy="bsp", **BASE), CHANGES["strategy"])
    assert Experiment.from_spec(other.spec()) == other
    assert type(other.but(seed=3)) is Experiment  # has another beginning
    assert Experiment.from_spec(fork(Experiment(**BASE), CHANGES["slower"]).spec()).cluster.slowdowns


def test_logs_with_other_numbers_of_texts_have_their_rows_in_common():
    one, two = EventLog(), EventLog()
    two.number("something else")
    for log in (one, two):
        log.add(Kind.HOLD, 0.5, worker=1, text="barrier")
    two.add(Kind.NOTE, 1.0)
    assert common_prefix(one, two) == 1
    one.add(Kind.NOTE, 1.0, text="here")
    assert common_prefix(one, two) == 1


def test_a_worker_that_is_gone_comes_back():
    incidents = {"failures": [{"worker": 1, "at_s": 0.05}], "joins": [{"worker": 2, "at_s": 1e6}]}
    origin = run(Experiment(strategy="ssp", **BASE | {"cluster": BASE["cluster"] | incidents}))
    for worker in (1, 2):
        back = run(fork(origin, Fork(AT_S, worker=worker, back=True)))
        joins = back.log.rows()
        joins = joins[(joins["kind"] == Kind.JOIN) & (joins["worker"] == worker)]
        assert joins["time_s"][-1] == AT_S
        assert common_prefix(origin.log, back.log) >= rows_before(origin.log, AT_S)
        assert run(Experiment.from_spec(back.experiment.spec())).log.digest() == back.log.digest()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Fork(1.0), "exactly one"),
        (Fork(1.0, strategy="asp", worker=1, kill=True), "exactly one"),
        (Fork(1.0, worker=9, kill=True), "there is no worker 9; the workers are 0 to 3"),
        (Fork(1.0, kill=True), "which worker"),
        (Fork(1.0, strategy="asp", worker=1), "`worker` applies only to speed, link, kill and back"),
        (
            Fork(1.0, worker=1, kill=True, momentum="zero"),
            "momentum applies only to a change of the strategy",
        ),
        (Fork(1.0, strategy="strategy_switch"), "which switches"),
        (Fork(1.0, worker=1, speed=0.0), "positive"),
        (Fork(1.0, worker=1, link=-1.0), "link must be positive"),
        (Fork(1.0, worker=1, back=True), "worker 1 is present at 1 s: only a lost worker"),
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
    throttles = {"throttles": [{"worker": 0, "from_s": 1, "to_s": 2, "factor": 3}]}
    with pytest.raises(ParameterError, match="throttles apply in virtual time only"):
        Experiment(strategy="bsp", backend="dask", **BASE | {"cluster": BASE["cluster"] | throttles})


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ([{"to": "ssp"}], "rule"),
        ([{"rule": "after"}], "rule 'after' needs a strategy to switch to"),
        ([{"to": "sp", "rule": "after"}], "did you mean 'ssp'"),
        (
            [{"to": 5, "rule": {"name": "at_time", "at_s": 1}}],
            "composition 5 does not exist; there are 0 to 1",
        ),
        ([{"to": "strategy_switch", "rule": "after"}], "cannot itself switch"),
        ([{"to": "local_sgd", "rule": "after", "momentum": "off"}], "reduces the server's momentum"),
        ("asp", "expected a list"),
        (["asp"], "expected a mapping"),
    ],
)
def test_switches_that_cannot_be_are_refused(then, said):
    with pytest.raises((ParameterError, UnknownName), match=said):
        switching(then=then)


def test_a_moment_to_switch_needs_somewhere_to_switch_to():
    with pytest.raises(ParameterError, match="switch_at_s: strategy 'bsp' has nothing to switch to"):
        Experiment(strategy="bsp", switch_at_s=1.0, **BASE)
