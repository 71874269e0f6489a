"""The online rule of Sync-Switch: who is a straggler, and what greedy and elastic do about one."""

from __future__ import annotations

from typing import ClassVar

import pytest
from toybox import at_night, put_in, take_out

from psbench import strategies
from psbench.core.actions import Action, Drop, Readmit, SwitchTo
from psbench.core.events import Join, Leave, Push, SwitchRequested
from psbench.core.log import Kind
from psbench.core.parts import Switching
from psbench.core.view import ClusterView, Status
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.runs.execution import run
from psbench.runs.replaying import replay
from psbench.strategies.switching import OnStragglers
from psbench.strategies.switching.stragglers import below, line
from psbench.testing import BrokenContract, ScriptedCluster, check_strategy, toy_experiment
from psbench.testing.toys import toy_cluster

# -------------------------------------------------------------------- the detector


def test_equal_throughputs_are_silent():
    """The deviation is 0 and the comparison strict, whatever the rounding of the mean."""
    for speed in (0.1, 1 / 3, 7.3, 1e9):
        for n in range(1, 50):
            assert below({str(w): speed for w in range(n)}) == set()


def test_of_two_neither_is_below():
    for slow in (0.999999, 0.5, 1e-6, 1 / 3):
        assert below({"0": 1.0, "1": slow}) == set()


def test_the_line_is_the_mean_less_the_deviation():
    speeds = {"0": 4.0, "1": 4.0, "2": 4.0, "3": 2.0}  # mean 3.5, deviation sqrt(0.75)
    assert line(speeds) == pytest.approx(3.5 - 0.75**0.5)
    assert below(speeds) == {"3"}
    assert below({"0": 1.0, "1": 1.0, "2": 0.0, "3": 0.0}) == set()  # half of them are no stragglers
    assert below({}) == set()


def scripted(policy, slow_steps, *, slow_s=3.0, fraction=0.5, changes=(), until=100.0, steps=None, **options):
    """Run four workers of 1 s a step; worker 3 takes `slow_s` for its steps of those numbers.

    An epoch is ten rounds; the rule looks at windows of 2 and believes two of them.
    """
    options = {"window": 2, "patience": 2} | options

    def seconds(worker, number):
        if steps is not None:
            return steps[worker]
        return slow_s if worker == 3 and number in slow_steps else 1.0

    cluster = ScriptedCluster(
        strategies.sync_switch(policy=policy, fraction=fraction, **options),
        seconds,
        num_workers=4,
        epochs=4,
        changes=changes,
    )
    cluster.run(until=until)
    return cluster


def handovers(cluster):
    rows = cluster.log.of_kind(Kind.HANDOVER)
    return list(zip(rows["time_s"].tolist(), rows["id"].tolist(), strict=True))


def of_kind(cluster, kind):
    rows = cluster.log.of_kind(kind)
    return list(zip(rows["time_s"].tolist(), rows["worker"].tolist(), strict=True))


# -------------------------------------------------------------------- greedy


def test_greedy_leaves_comes_back_and_spends_the_share():
    """Worker 3's steps 5 to 20 take 3 s.

    Its windows end at 8 s (1 + 3 s, below the line) and 14 s (below again): ASP from 14 s on. There its
    windows end every 6 s until 50 s; that of 54 s has one slow step, those of 56 and 58 s have none: back to
    BSP when all have finished, at 59 s. 8 of the 20 rounds were done, so the last is at 71 s.
    """
    cluster = scripted("greedy", range(5, 21))
    assert handovers(cluster) == [(14.0, 1), (59.0, 0), (71.0, 1)]
    reasons = [cluster.log.text(n) for n in cluster.log.of_kind(Kind.HANDOVER)["text"]]
    assert reasons == [
        "worker 3 computes 1.333 samples/s, below 2.179",
        "no worker is a straggler any more",
        "after 50% of the epochs",
    ]
    assert of_kind(cluster, Kind.DROP) == []


def test_one_slow_window_is_not_enough():
    assert handovers(scripted("greedy", [4, 5])) == [(24.0, 1)]


def test_greedy_stays_where_it_is_while_a_worker_is_slow():
    cluster = scripted("greedy", range(1000))
    assert handovers(cluster) == [(12.0, 1)]
    assert cluster.engine.view.composition == 1


def test_a_straggler_that_leaves_is_none_any_more():
    cluster = scripted("greedy", range(1000), changes=[(20.5, Leave(3))])
    assert [to for _, to in handovers(cluster)] == [1, 0, 1]


def test_without_stragglers_the_rule_is_after():
    """Equal speeds, and two unequal workers."""
    for speeds in ([1, 1, 1, 1], [1, 3]):
        logs = []
        for rule in (
            {"name": "stragglers", "fraction": 0.3},
            {"name": "after", "fraction": 0.3, "whole_epochs": False},
        ):
            cluster = ScriptedCluster(strategies.sync_switch(rule=rule), speeds, epochs=7)
            cluster.run(until=150)
            logs.append([actions for _, _, actions in cluster.history])
        for left, right in zip(*logs, strict=True):
            assert _without_stats(left) == _without_stats(right)


def _without_stats(actions):
    for action in actions:
        for push in getattr(action, "pushes", ()):
            push.stats = None
    return actions


# -------------------------------------------------------------------- elastic


def test_elastic_ends_the_share_without_the_straggler_and_readmits_it():
    """Detected at 14 s after 8 rounds of 16 samples; 192 samples are 16 rounds of the other three."""
    cluster = scripted("elastic", range(5, 21))
    assert of_kind(cluster, Kind.DROP) == [(14.0, 3)]
    assert handovers(cluster) == [(30.0, 1)]
    assert of_kind(cluster, Kind.READMIT) == [(30.0, 3)]
    commits = [
        a.pushes for t, _, acts in cluster.history for a in acts if 14 < t <= 30 and hasattr(a, "pushes")
    ]
    assert {tuple(push.worker for push in pushes) for pushes in commits} == {(0, 1, 2)}
    released = [w for t, w in of_kind(cluster, Kind.RELEASE) if t == 30.0]
    assert released == [0, 1, 2, 3]


def test_dropping_the_slowest_makes_no_straggler_of_the_next():
    """1, 1.1, 1.2 and 3 s: of the first three alone, the third would be below the line."""
    speeds = [4 / s for s in (1, 1.1, 1.2, 3)]
    assert below(dict(enumerate(speeds[:3]))) == {2}  # type: ignore[arg-type]
    cluster = scripted("elastic", (), steps=[1, 1.1, 1.2, 3], fraction=0.9)
    assert [worker for _, worker in of_kind(cluster, Kind.DROP)] == [3]


def test_a_person_takes_the_stragglers_back():
    cluster = scripted("elastic", range(1000), changes=[(20.5, SwitchRequested())])
    assert handovers(cluster) == [(21.0, 1)]
    assert of_kind(cluster, Kind.READMIT) == [(20.5, 3)]
    assert all(w.status == Status.COMPUTING for w in cluster.engine.view.workers.values())


def test_if_the_others_go_the_straggler_is_taken_back():
    leave = [(20.25, Leave(0)), (20.5, Leave(1)), (20.75, Leave(2))]
    cluster = scripted("elastic", range(1000), changes=leave)
    assert of_kind(cluster, Kind.READMIT)[0] == (20.75, 3)
    assert cluster.engine.view.workers[3].status == Status.COMPUTING


def test_a_straggler_that_dies_stays_dead_and_may_come_again():
    gone = scripted("elastic", range(1000), changes=[(20.5, Leave(3))])
    assert of_kind(gone, Kind.READMIT) == []
    back = scripted("elastic", range(1000), changes=[(20.5, Leave(3)), (22.5, Join(3))], until=23.5)
    assert back.engine.view.workers[3].status != Status.GONE


# -------------------------------------------------------------------- the rest


@pytest.mark.by_day(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        *(("greedy", "bsp", "asp"), ("elastic", "ssp", "k_bsp")),
        *at_night(("greedy", "k_asp", "bsp"), ("elastic", "all_reduce", "dssp")),
    ],
)
def test_the_contract_with_every_window_a_verdict(policy, first, second):
    check_strategy(
        strategies.sync_switch(first=first, second=second, policy=policy, fraction=0.5, window=1, patience=1),
        clusters=1,
    )


@pytest.mark.slow
def test_the_contract_of_the_rule_alone():
    check_strategy(OnStragglers, clusters=1)


def test_sending_counts_if_one_asks():
    """Worker 2's link takes as long as its step; the servers' own link is no queue here."""
    slow = toy_cluster([1.0, 1.0, 1.0], latency_s=[0.0, 0.0, 0.2])
    for seconds, version in (("compute", 29), ("compute_and_send", 1)):  # 28.8 versions are 90 %
        rule = {"name": "stragglers", "fraction": 0.9, "window": 1, "patience": 1, "seconds": seconds}
        done = run(toy_experiment(strategies.sync_switch(rule=rule), cluster=slow, stop={"epochs": 4}))
        assert done.log.of_kind(Kind.HANDOVER)["version"][0] == version


def test_it_runs_in_virtual_time_and_a_slow_spell_is_seen():
    """A spell of worker 1: elastic drops it, and trains it again under ASP."""
    spell = toy_cluster(
        [1.0, 1.0, 1.0, 1.0], slowdowns=[{"worker": 1, "from_s": 0.05, "to_s": 0.5, "factor": 4}]
    )
    strategy = strategies.sync_switch(policy="elastic", fraction=0.5, window=2, patience=2)
    done = run(toy_experiment(strategy, cluster=spell, batch_size=16, stop={"epochs": 12}))
    drops, back = done.log.of_kind(Kind.DROP), done.log.of_kind(Kind.READMIT)
    assert drops["worker"].tolist() == back["worker"].tolist() == [1]
    handed = done.log.of_kind(Kind.HANDOVER)["time_s"][0]
    pushes = done.log.of_kind(Kind.PUSH)
    theirs = pushes["time_s"][pushes["worker"] == 1]
    assert not ((theirs > drops["time_s"][0]) & (theirs <= handed)).any()
    assert (theirs > handed).any()
    assert done.meta["lost_workers"] == []
    assert done.summary()["epochs"] == pytest.approx(12)
    assert replay(done) == len(done.log)


def test_the_number_of_epochs_must_be_known():
    with pytest.raises(ParameterError, match=r"'stragglers' needs to know the number of epochs"):
        Experiment(strategy=strategies.sync_switch(policy="greedy"), stop={"updates": 10})


def test_a_drop_and_a_readmission_say_why():
    cluster = scripted("elastic", range(1000))
    found = [a for _, _, acts in cluster.history for a in acts if isinstance(a, (Drop, Readmit))]
    assert isinstance(found[0], Drop)
    assert found[0].reason.startswith("worker 3 computes 1.333 samples/s, below")


# -------------------------------------------------------------------- what a rule may read


class Sworn(Switching):
    """Toy: switches on a large loss, and declares that it reads it."""

    name: ClassVar[str] = "toy_sworn"
    reads: ClassVar[tuple[str, ...]] = ("loss",)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        return [SwitchTo(1, "large loss")] if push.stats["loss"] > 0.9 else []


class Secret(Sworn):
    """Toy: does not declare it."""

    name: ClassVar[str] = "toy_secret"
    reads: ClassVar[tuple[str, ...]] = ()


TOYS = take_out("toy_s")


@pytest.fixture
def toys():
    put_in(TOYS)
    yield
    take_out("toy_s")


@pytest.mark.slow
def test_a_rule_may_read_what_it_declares_and_nothing_else(toys):
    check_strategy(Sworn, clusters=1)
    with pytest.raises(BrokenContract, match="reads the statistic 'loss', which none declares"):
        check_strategy(Secret, clusters=1)


def test_what_a_rule_reads_is_computed_and_asked_of_no_clock(toys):
    strategy = strategies.strategy_switch(first="bsp", rule="toy_sworn")
    assert [composition.reads for composition in strategy.compositions] == [("loss",)] * 2
    done = run(toy_experiment(strategy))
    assert done.log.of_kind(Kind.HANDOVER)["version"].tolist() == [1]
    with pytest.raises(ParameterError, match="its switch rule"):
        toy_experiment(strategy, timing_only=True)
