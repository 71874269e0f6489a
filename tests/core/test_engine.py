"""The engine: void tickets, measuring, votes, reports, timers, and what it refuses."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from toys import Alarm, Impatient, Poll, Reporting, SilentBSP, Sizing, Weighing

from psbench import strategies
from psbench.core.actions import (
    Apply,
    Cancel,
    Commit,
    Discard,
    Drop,
    Hold,
    Measure,
    Mix,
    Note,
    Readmit,
    Release,
    SetTimer,
    SwitchTo,
    Tell,
)
from psbench.core.engine import Engine
from psbench.core.events import Evaluated, Join, Leave, Measured, Push, Report, Timer, Vote
from psbench.core.log import EventLog, Kind
from psbench.core.strategy import Strategy
from psbench.core.switching_strategy import SwitchingStrategy
from psbench.core.view import ClusterView, Status
from psbench.core.wire_size import WireSize
from psbench.errors import Deadlock, ProtocolError, UnansweredWorker
from psbench.strategies.consistency import ASP, BSP
from psbench.testing import ScriptedCluster


def start(strategy, workers=2, **options):
    engine = Engine(
        strategy,
        ClusterView(num_workers=workers, dataset_size=40, global_batch=4 * workers),
        log=EventLog(),
        **options,
    )
    engine.begin(range(workers))
    return engine


def push(id, worker, ticket=1, base=0, **facts):
    return Push(id, worker, ticket, base, samples=4, **facts)


def kinds(engine):
    return [Kind(kind).name for kind in engine.log.columns()["kind"]]


def composed(consistency=None, **parts):
    return Strategy(name="toy", consistency=consistency or BSP(), **parts)


class Scripted(ASP):
    """Answers every push with what a test puts here."""

    answer: ClassVar[Any] = None

    def on_push(self, push, view):
        return type(self).answer(push, view)


@pytest.fixture
def answering(monkeypatch):
    """Return an engine whose consistency part answers pushes by a function."""

    def make(answer, workers=2, **options):
        monkeypatch.setattr(Scripted, "answer", staticmethod(answer))
        return start(composed(Scripted()), workers, **options)

    return make


# -------------------------------------------------------------------- tickets


class TestVoidTickets:
    def test_cancelled_work_never_reaches_a_part(self):
        engine = start(strategies.k_bsp(k=1))
        engine.handle(push(0, 0), 1.0)
        before = engine.view.state_dict()
        assert engine.handle(push(1, 1, ticket=1), 2.0) == []
        assert engine.view.state_dict() == before | {"now": 2.0}
        assert kinds(engine)[-1] == "VOID"

    def test_the_dead_push_nothing(self):
        engine = start(strategies.asp())
        engine.handle(Leave(0), 1.0)
        assert engine.handle(push(0, 0), 2.0) == []
        assert engine.view.pushes == 0

    def test_one_that_is_back_is_another(self):
        engine = start(strategies.asp())
        engine.handle(Leave(0), 1.0)
        assert engine.handle(Join(0), 2.0) == [Release(0, load=0, ticket=2)]
        assert engine.handle(push(0, 0, ticket=1), 3.0) == []
        assert len(engine.handle(push(1, 0, ticket=2), 4.0)) == 2

    def test_the_dead_report_nothing(self):
        engine = start(composed(ASP(), communication=Reporting(), stragglers=Sizing()))
        engine.handle(Leave(0), 1.0)
        assert engine.handle(Report(0, 1, {"cost": 1.0}), 2.0) == []
        assert kinds(engine)[-1] == "VOID"

    def test_votes_of_an_older_self_count_nothing(self):
        engine = start(composed(communication=Poll()))
        assert engine.handle(Vote(0, 0, 1.0), 1.0) == []
        assert kinds(engine)[-1] == "VOID"

    def test_each_release_carries_a_new_ticket(self):
        cluster = ScriptedCluster(
            strategies.k_bsp(k=1), [1, 1.5, 2], changes=[(3.2, Leave(1)), (4.2, Join(1))]
        )
        cluster.run(until=20)
        seen = {}
        for _, _, actions in cluster.history:
            for release in (a for a in actions if isinstance(a, Release)):
                assert release.ticket > seen.get(release.worker, 0)
                seen[release.worker] = release.ticket


# -------------------------------------------------------------------- measuring


class TestMeasure:
    strategy = composed(ASP(), aggregation=Weighing())

    def test_it_parks_the_rest_of_the_answer_and_all_later_events(self):
        engine = start(self.strategy)
        first, second = push(0, 0), push(1, 1)
        assert engine.handle(first, 1.0) == [Measure("aggregation", {"model_loss": None, "distance_sq": 0})]
        assert engine.measuring
        assert engine.handle(second, 2.0) == []
        assert engine.handle(Leave(0), 2.5) == []
        assert engine.view.version == 0
        assert engine.view.workers[0].status == Status.PUSHED
        assert engine.handle(Measured({"model_loss": 0.25}), 3.0) == [
            Apply([first], [0.25], numbers={"keep": 0.5}, version=1, lr_scale=0.5),
            Release(0, load=1, ticket=2),
            Measure("aggregation", {"model_loss": None, "distance_sq": 1}),
        ]
        assert engine.handle(Measured({"model_loss": 0.75}), 4.0) == [
            Apply([second], [0.75], numbers={"keep": 0.5}, version=2, epoch=0.1, lr_scale=0.5),
            Release(1, load=2, ticket=2),
        ]
        assert engine.view.workers[0].status == Status.GONE

    def test_no_evaluation_waits_for_it(self):
        """It is recorded when it comes; what the switch rule says to it comes before any release."""
        pair = SwitchingStrategy(first=self.strategy, second=self.strategy, rule=Impatient(versions=100))
        engine = start(pair)
        engine.handle(push(0, 0), 1.0)
        assert engine.handle(push(1, 1), 1.25) == []  # a push does
        assert engine.handle(Evaluated(1, 0, {"val_loss": 0.5}), 1.5) == []
        assert engine.log.of_kind(Kind.EVALUATED)["time_s"].tolist() == [1.5]
        assert engine.log.of_kind(Kind.PUSH)["time_s"].tolist() == [1.0]
        answer = engine.handle(Measured({"model_loss": 0.25}), 3.0)
        assert [type(each).__name__ for each in answer] == ["Apply", "Note", "Release", "Measure"]

    def test_a_whole_run_of_it_is_answered(self):
        cluster = ScriptedCluster(self.strategy, [1, 1, 1.5])
        cluster.run(events=60)
        assert cluster.engine.view.version > 10

    def test_no_state_is_written_meanwhile(self):
        engine = start(self.strategy)
        engine.handle(push(0, 0), 1.0)
        with pytest.raises(ProtocolError, match="while a Measure is pending"):
            engine.state_dict()

    def test_measurements_that_no_part_asked_for(self):
        with pytest.raises(ProtocolError, match="no part has asked to Measure"):
            start(self.strategy).handle(Measured({}), 1.0)

    def test_only_a_part_that_takes_numbers_may_ask(self, answering):
        engine = answering(lambda push, view: [Release(push.worker), Measure("stragglers", {})])
        with pytest.raises(ProtocolError, match="the stragglers part returned a Measure"):
            engine.handle(push(0, 0), 1.0)


# -------------------------------------------------------------------- votes, reports, timers


class TestVotes:
    def test_they_are_held_until_the_last_and_all_push_if_one_wants_to(self):
        engine = start(composed(communication=Poll()))
        assert engine.handle(Vote(0, 1, 0.25), 1.0) == [Hold(0, "vote")]
        assert engine.handle(Vote(1, 1, 0.75), 2.0) == [
            Release(w, then="push", load=0, send=False, ticket=2) for w in (0, 1)
        ]
        pushes = [push(w, w, ticket=2) for w in (0, 1)]
        assert engine.handle(pushes[0], 2.0) == [Hold(0, "barrier")]
        assert engine.handle(pushes[1], 2.0) == [
            Apply(pushes, [0.5, 0.5], version=1),
            *[Release(w, load=1, ticket=3, epoch=0.2, epochs_per_step=0.2) for w in (0, 1)],
        ]

    def test_all_go_on_if_nobody_wants_to_and_nothing_is_sent(self):
        engine = start(composed(communication=Poll()))
        engine.handle(Vote(0, 1, 0.25), 1.0)
        assert engine.handle(Vote(1, 1, 0.125), 2.0) == [
            Release(w, load=0, send=False, ticket=2, epochs_per_step=0.2) for w in (0, 1)
        ]

    def test_a_voter_that_leaves_is_not_waited_for(self):
        engine = start(composed(communication=Poll()))
        engine.handle(Vote(0, 1, 0.75), 1.0)
        assert engine.handle(Leave(1), 2.0) == [Release(0, then="push", load=0, send=False, ticket=2)]

    def test_votes_are_void_after_a_resume(self):
        engine = start(composed(communication=Poll()))
        engine.handle(Vote(0, 1, 0.25), 1.0)
        assert (engine.view.num_voted, engine.view.num_computing) == (1, 1)
        engine.resume()
        assert (engine.view.num_voted, engine.view.num_computing, engine.view.cancelled) == (0, 2, 2)

    def test_votes_are_logged_with_all_their_digits(self):
        engine = start(composed(communication=Poll()))
        engine.handle(Vote(0, 1, 0.1), 1.0)
        assert json.loads(engine.log.text(engine.log.of_kind(Kind.VOTE)["text"][0])) == 0.1

    def test_only_a_voter_is_told_to_push(self, answering):
        engine = answering(lambda push, view: [Release(push.worker, then="push")])
        with pytest.raises(ProtocolError, match="ordered to push, but it has not voted"):
            engine.handle(push(0, 0), 1.0)

    def test_a_ring_costs_bytes_once_a_round_not_at_a_vote(self):
        strategy = composed(communication=Poll(threshold=0.0), placement={"name": "all_reduce"})
        cluster = ScriptedCluster(strategy, [1, 1])
        cluster.run(events=8)
        releases = cluster.log.of_kind(Kind.RELEASE)
        assert set(releases["bytes"][releases["id"] == 1]) == {0}
        assert set(releases["bytes"][releases["id"] == 0]) == {1276}  # half of the model's 2552


def test_reports_reach_the_stragglers_part_and_its_orders_travel():
    engine = start(composed(ASP(), communication=Reporting(), stragglers=Sizing()))
    assert engine.handle(Report(0, 1, {"cost": 0.75}), 1.0) == [Tell(0, {"batch_size": 2})]
    assert engine.handle(Report(1, 1, {"cost": 0.25}), 1.0) == []
    done = push(0, 0)
    assert engine.handle(done, 2.0)[1] == Release(0, orders={"batch_size": 2}, load=1, ticket=2)
    assert engine.view.workers[0].batch_size == 2
    assert engine.view.workers[1].batch_size == 4


def test_a_wake_comes_back_as_a_timer():
    engine = start(composed(Alarm()))
    first = push(0, 0)
    assert engine.handle(first, 1.0) == [
        Apply([first], [1.0], version=1, lr_scale=0.5),
        Hold(0, "alarm"),
        SetTimer(3.0, "0"),
    ]
    assert engine.handle(Timer("0"), 3.0) == [Release(0, load=1, ticket=2)]
    assert engine.handle(Timer("0"), 4.0) == [Note("0 needs no waking")]


def test_no_timer_is_due_in_the_past(answering):
    engine = answering(lambda push, view: [Release(push.worker), SetTimer(view.now - 1, "late")])
    with pytest.raises(ProtocolError, match=r"set for 0\.0 s, but it is 1\.0 s already"):
        engine.handle(push(0, 0), 1.0)


# -------------------------------------------------------------------- what is refused


class TestRefusals:
    def test_a_worker_without_an_answer(self):
        with pytest.raises(
            UnansweredWorker, match=r"workers \[0\] were neither released nor held by 'toy_silent'"
        ):
            start(composed(SilentBSP())).handle(push(0, 0), 1.0)

    def test_a_newcomer_without_an_answer(self):
        engine = start(composed(SilentBSP()))
        engine.composition.consistency.__class__.on_join, kept = lambda *_: [], SilentBSP.on_join
        try:
            with pytest.raises(UnansweredWorker, match="joins"):
                engine.handle(Join(2), 1.0)
        finally:
            SilentBSP.on_join = kept

    WRONG = {
        "released twice": (
            lambda p, v: [Release(p.worker)] * 2,
            "worker 0 was released, but it is computing",
        ),
        "held after a release": (
            lambda p, v: [Release(p.worker), Hold(p.worker, "?")],
            "worker 0 is held, but it is computing",
        ),
        "held without a reason": (lambda p, v: [Hold(p.worker, "")], "held without a reason"),
        "somebody else's release": (lambda p, v: [Release(1)], "worker 1 was released, but it is computing"),
        "committed twice": (lambda p, v: [Commit([p]), Commit([p])], "push 0 is committed twice"),
        "twice in a commit": (lambda p, v: [Commit([p, p])], "push 0 is committed twice"),
        "committed and discarded": (lambda p, v: [Commit([p]), Discard(p, "?")], "not pending"),
        "discarded and committed": (lambda p, v: [Discard(p, "?"), Commit([p])], "push 0 is committed twice"),
        "an empty commit": (lambda p, v: [Commit([])], "Commit without pushes"),
        "cancelled though idle": (lambda p, v: [Cancel(p.worker)], "does not compute"),
        "a release of none": (lambda p, v: [Release(9)], "worker 9 does not exist; active are 0, 1$"),
        "a hold of none": (lambda p, v: [Hold(9, "?")], "worker 9 does not exist; active are 0, 1$"),
        "none is cancelled": (lambda p, v: [Cancel(9)], "worker 9 does not exist; active are 0, 1$"),
        "none is dropped": (
            lambda p, v: [Release(0), Drop(9, "?")],
            "worker 9 does not exist; active are 0, 1$",
        ),
        "none is readmitted": (lambda p, v: [Release(0), Readmit(9)], "worker 9 does not exist"),
        "orders for none": (lambda p, v: [Tell(9, {"batch_size": 2})], "worker 9 does not exist"),
        "none gets a mixture": (lambda p, v: [Release(0), Mix({9: {0: 1.0}})], "worker 9 does not exist"),
        "no action": (lambda p, v: [Release(0), None], "a part returned None, which is not an action"),
        "cancelled and left": (lambda p, v: [Release(0), Cancel(1)], r"workers \[1\] were neither"),
        "a switch to nowhere": (
            lambda p, v: [Release(0), SwitchTo(3, "?")],
            "switch to composition 3",
        ),
    }

    @pytest.mark.parametrize(("answer", "message"), WRONG.values(), ids=WRONG.keys())
    def test_an_answer_that_makes_no_sense(self, answering, answer, message):
        with pytest.raises(ProtocolError, match=message):
            answering(answer).handle(push(0, 0), 1.0)

    def test_a_worker_that_is_active_cannot_join(self):
        with pytest.raises(ProtocolError, match="worker 1 joined, but it is already active"):
            start(strategies.bsp()).handle(Join(1), 1.0)

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            ([], "on_commit returned no action"),
            (lambda p: [Apply(p, [])], "1 pushes are applied with 0 weights"),
        ],
    )
    def test_an_aggregation_that_makes_no_sense(self, answer, message):
        engine = start(strategies.asp())
        engine._processor._on_commit = lambda pushes, view: answer(pushes) if answer else []
        with pytest.raises(ProtocolError, match=message):
            engine.handle(push(0, 0), 1.0)

    def test_a_part_that_never_releases_is_a_deadlock_with_reasons(self, monkeypatch):
        monkeypatch.setattr(Scripted, "answer", lambda push, view: [Hold(push.worker, f"no {push.worker}")])
        cluster = ScriptedCluster(composed(Scripted()), [1, 2])
        with pytest.raises(
            Deadlock,
            match=r"at 2 s no worker can ever continue; worker 0 at clock 1: no 0; worker 1 at clock 1: no 1",
        ):
            cluster.run(until=10)


# -------------------------------------------------------------------- the view


def test_conservation_counts_cancelled_work_apart():
    engine = start(strategies.k_bsp(k=1), workers=3)
    engine.handle(push(0, 0), 1.0)
    engine.handle(Leave(2), 1.5)
    view = engine.view
    assert (view.pushes, view.committed, view.discarded, len(view.pending), view.cancelled) == (1, 1, 0, 0, 3)


def test_a_model_is_sent_only_to_whom_has_it_not():
    engine = start(strategies.k_batch_asp(k=2), wire_size=WireSize([("model", 100)]))
    engine.handle(push(0, 0), 1.0)
    engine.handle(push(1, 0, ticket=2), 2.0)
    assert engine.log.of_kind(Kind.RELEASE)["bytes"].tolist() == [400, 400, 0, 400]


def test_without_a_log_the_decisions_are_the_same():
    logged, plain = (
        start(strategies.bsp()),
        Engine(strategies.bsp(), ClusterView(num_workers=2, dataset_size=40, global_batch=8)),
    )
    plain.begin(range(2))
    for number, worker in enumerate((1, 0)):
        event = push(number, worker)
        assert logged.handle(event, 1.0) == plain.handle(event, 1.0)
