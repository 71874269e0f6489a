"""The engine when it switches, and its state at every event."""

from __future__ import annotations

import json

import pytest
from test_engine import composed, push, start
from toys import Alarm, Impatient, Poll, Reporting, Sizing

from psbench import strategies
from psbench.core.actions import (
    Apply,
    Handover,
    Hold,
    Note,
    Release,
    Tell,
)
from psbench.core.events import Evaluated, Join, Leave, SwitchRequested, Vote
from psbench.core.log import Kind
from psbench.core.switching_strategy import SwitchingStrategy
from psbench.errors import ProtocolError
from psbench.strategies.consistency import ASP
from psbench.testing import ScriptedCluster

# -------------------------------------------------------------------- switching


def switching(first=None, second=None, rule=None, **options):
    first, second = first or strategies.bsp(), second or strategies.asp()
    return SwitchingStrategy(first=first, second=second, rule=rule or {"name": "manual"}, **options)


class TestSwitch:
    def test_everybody_finishes_the_buffer_is_emptied_and_all_begin_anew(self):
        engine = start(switching(second=strategies.asp(), cost_s=2.0), workers=3)
        first, second, third = push(0, 1), push(1, 0), push(2, 2)
        engine.handle(first, 1.0)
        assert engine.handle(SwitchRequested(), 1.5) == []
        assert engine.handle(second, 2.0) == [Hold(0, "barrier")]
        assert engine.handle(third, 3.0) == [
            Apply([second, first, third], [1 / 3] * 3, version=1),
            *[Hold(w, "switch") for w in range(3)],
            Handover(0, 1, "asked by hand", cost_s=2.0),
            *[Release(w, load=1, ticket=2) for w in range(3)],
        ]
        fourth = push(3, 0, ticket=2, base=1)
        assert engine.handle(fourth, 4.0) == [
            Apply([fourth], [1.0], lr_scale=1 / 3, version=2, epoch=0.3),
            Release(0, load=2, ticket=3),
        ]

    def test_pending_pushes_are_committed_when_all_are_idle(self):
        engine = start(switching(first=strategies.k_batch_asp(k=5)))
        first, second = push(0, 0), push(1, 1)
        engine.handle(SwitchRequested(), 0.5)
        assert engine.handle(first, 1.0) == [Hold(0, "switch")]
        assert engine.handle(second, 2.0) == [
            Hold(1, "switch"),
            Apply([first, second], [0.5, 0.5], version=1),
            Handover(0, 1, "asked by hand"),
            *[Release(w, load=1, ticket=2) for w in range(2)],
        ]

    def test_one_leaves_during_the_drain(self):
        engine = start(switching())
        done = push(0, 0)
        engine.handle(SwitchRequested(), 0.5)
        engine.handle(done, 1.0)
        assert engine.handle(Leave(1), 2.0) == [
            Apply([done], [1.0], version=1),
            Hold(0, "switch"),
            Handover(0, 1, "asked by hand"),
            Release(0, load=1, ticket=2),
        ]

    def test_one_joins_during_the_drain_and_begins_with_the_others(self):
        engine = start(switching())
        engine.handle(SwitchRequested(), 0.5)
        assert engine.handle(Join(2), 1.0) == [Hold(2, "switch")]
        engine.handle(push(0, 0), 2.0)
        answer = engine.handle(push(1, 1), 3.0)
        assert answer[-3:] == [
            Release(0, load=1, ticket=2),
            Release(1, load=1, ticket=2),
            Release(2, load=1, ticket=1),
        ]

    def test_all_leave_during_the_drain_and_one_comes_back(self):
        engine = start(switching())
        engine.handle(push(0, 0), 0.25)
        engine.handle(SwitchRequested(), 0.5)
        engine.handle(Leave(0), 1.0)
        assert engine.handle(Leave(1), 2.0)[-1] == Handover(0, 1, "asked by hand")
        assert engine.view.composition == 1
        assert engine.handle(Join(1), 3.0) == [Release(1, load=1, ticket=2)]

    def test_voters_are_told_to_push_and_so_are_those_who_might_never(self):
        engine = start(switching(first=composed(communication=Poll()), second=strategies.bsp()))
        engine.handle(Vote(0, 1, 0.125), 1.0)
        assert engine.handle(SwitchRequested(), 2.0) == [
            Release(0, then="push", load=0, send=False, ticket=2),
            Tell(1, {"push": True}),
        ]
        assert engine.handle(Vote(1, 1, 0.125), 3.0) == [
            Release(1, then="push", load=0, send=False, ticket=2)
        ]
        engine.handle(push(0, 0, ticket=2), 3.0)
        assert Handover(0, 1, "asked by hand") in engine.handle(push(1, 1, ticket=2), 3.0)

    def test_those_told_push_at_their_next_step(self):
        reporting = composed(ASP(), communication=Reporting())
        cluster = ScriptedCluster(switching(first=reporting), [1, 1], changes=[(0.5, SwitchRequested())])
        cluster.run(until=1)
        assert cluster.engine.view.composition == 1

    @pytest.mark.parametrize("first", ["asp", "bsp", {"name": "k_bsp", "k": 2}, {"name": "ssp"}])
    def test_work_under_way_may_be_cancelled_twice(self, first):
        strategy = switching(strategies.make_strategy(first), strategies.asp(), Impatient(versions=3))
        cluster = ScriptedCluster(strategy, [1, 1.25, 3, 5])
        cluster.run(until=30)
        assert len(cluster.log.of_kind(Kind.HANDOVER)["row"]) >= 2

    def test_clocks_are_equal_after_it(self):
        cluster = ScriptedCluster(
            switching(strategies.asp(), strategies.bsp()), [1, 4], changes=[(3.5, SwitchRequested())]
        )
        cluster.run(until=4)
        assert {w.clock for w in cluster.engine.view.workers.values()} == {4}
        assert cluster.engine.view.min_clock == 4

    def test_a_request_that_cannot_be_met_is_noted_and_the_run_goes_on(self):
        engine = start(switching())
        assert engine.handle(SwitchRequested(7), 1.0) == [
            Note("asked to switch to 7, but the compositions are 0 to 1")
        ]
        engine.handle(SwitchRequested(1), 1.0)
        assert engine.handle(SwitchRequested(), 1.5) == [Note("asked to switch, but a switch is in progress")]
        assert start(strategies.bsp()).handle(SwitchRequested(), 1.0) == [
            Note("asked to switch, but this strategy has nothing to switch to")
        ]

    def test_a_buffer_must_be_emptied(self):
        engine = start(switching(first=strategies.k_batch_asp(k=5)))
        engine.handle(push(0, 0), 1.0)
        type(engine.composition.consistency).on_drained = lambda self, view: []
        try:
            engine.handle(SwitchRequested(), 1.5)
            engine.handle(push(9, 0, ticket=2), 2.0)
            with pytest.raises(ProtocolError, match="on_drained must Commit or Discard every pending push"):
                engine.handle(push(10, 1), 2.0)
        finally:
            del type(engine.composition.consistency).on_drained

    def test_rules_see_evaluations_of_either_composition(self):
        engine = start(switching(rule=Impatient()))
        assert engine.handle(Evaluated(1, 0, {"val_loss": 0.5}), 1.0) == [Note("saw 0.5")]


# -------------------------------------------------------------------- state


@pytest.mark.parametrize(
    "strategy",
    [
        composed(communication=Poll()),
        composed(ASP(), communication=Reporting(), stragglers=Sizing()),
        composed(Alarm()),
        switching(rule=Impatient(drain="finish")),
        switching(strategies.ssp(staleness_bound=1), rule=Impatient(drain="finish")),
    ],
    ids=["votes", "reports", "timers", "switches", "parked workers"],
)
def test_the_state_goes_through_json_at_every_event(strategy):
    cluster = ScriptedCluster(strategy, [1, 1.5, 4], changes=[(5.25, Leave(1)), (9, Join(1))])
    cluster.run(events=60)
    engine = cluster.new_engine()
    engine.begin(cluster.starters)
    for now, event, expected in cluster.history[1:]:
        resumed = cluster.new_engine()
        resumed.load_state_dict(json.loads(json.dumps(engine.state_dict())))
        assert resumed.handle(event, now) == expected
        engine = resumed
