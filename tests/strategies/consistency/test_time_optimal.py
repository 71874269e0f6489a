"""The time-optimal family and PSP: what they equal at the ends of their parameters, and worked examples."""

import numpy as np
import pytest
from strategies.consistency.script import Script, run, staleness

import psbench as ps
from psbench.cli.catalogue import entry_of
from psbench.core.actions import Apply
from psbench.core.events import Push
from psbench.core.log import Kind
from psbench.strategies import make_strategy, second_names

FAST_AND_SLOW = (1.0, 0.9, 0.5, 0.11)


def rows(done):
    """The log's decisions; the words of holds differ between rules."""
    found = done.log.rows().copy()
    found["text"] = 0
    return found[found["kind"] != Kind.EVALUATED].tolist()


# ---------------------------------------------------------------- Ringmaster


@pytest.mark.parametrize("stops", [False, True])
def test_a_ringmaster_whose_threshold_is_never_reached_is_asp(stops):
    never = {"name": "ringmaster", "max_delay": 10_000, "stops": stops}
    assert rows(run(never, FAST_AND_SLOW)) == rows(run("asp", FAST_AND_SLOW))


@pytest.mark.parametrize("threshold", [1, 2, 5])
@pytest.mark.parametrize("stops", [False, True])
def test_no_delay_of_a_ringmaster_reaches_its_threshold(threshold, stops):
    rule = {"name": "ringmaster", "max_delay": threshold, "stops": stops}
    done = run(rule, FAST_AND_SLOW, step_time="lognormal")
    assert max(staleness(done)) <= threshold - 1
    discarded = len(done.log.of_kind(Kind.DISCARD)["id"])
    assert (discarded == 0) == stops  # with stops no step of such a delay is ever finished


def test_a_ringmaster_that_stops_restarts_late_workers_at_the_commit():
    """Alg. 5, R = 2, three workers: the second commit makes worker 2's step late, the first none."""
    script = Script({"name": "ringmaster", "max_delay": 2, "stops": True}, 3)
    assert script.push(0, at=1.0) == [("apply", [0]), ("release", 0)]
    assert script.push(1, at=2.0) == [("apply", [1]), ("cancel", 2), ("release", 1), ("release", 2)]
    assert script.push(0, at=3.0) == [("apply", [0]), ("release", 0)]


def test_a_ringmaster_without_stops_drops_the_late_gradient():
    script = Script({"name": "ringmaster", "max_delay": 2}, 3)
    script.push(0, at=1.0)
    script.push(1, at=2.0)
    assert script.push(2, at=3.0) == [("discard", 2, "delay"), ("release", 2)]
    assert script.push(2, at=4.0) == [("apply", [2]), ("release", 2)]


# ---------------------------------------------------------------- Rennala and m-synchronous SGD


def test_second_names_are_entries_with_their_papers_parameters():
    assert make_strategy("rennala") == make_strategy({"name": "k_batch_bsp", "cancel": "on_arrival"})
    assert make_strategy({"name": "m_sync", "k": 3}) == make_strategy({"name": "k_bsp", "k": 3})
    assert make_strategy({"name": "rennala", "cancel": "immediate"}) == make_strategy("k_batch_bsp")
    assert {"rennala", "m_sync"} <= second_names().keys()
    assert entry_of("strategies", "rennala")["name"] == "k_batch_bsp"
    with pytest.raises(ps.SpecError, match="rennala"):
        make_strategy("renala")


# ---------------------------------------------------------------- Malenia


def test_malenia_with_one_push_of_each_worker_is_bsp():
    one_each = {"name": "malenia", "total": 3}
    left, right = (run(strategy, (1.0, 1.0, 1.0)) for strategy in (one_each, "bsp"))
    # steps that are cancelled as they begin have taken their batches, so models are not compared
    for column in ("time_s", "worker", "version"):
        np.testing.assert_array_equal(*(each.log.of_kind(Kind.APPLY)[column] for each in (left, right)))


def test_malenia_waits_for_every_worker_and_for_the_harmonic_mean():
    """Two workers, S = 3: B = (2, 1) has the harmonic mean 4/3 < 3/2, B = (3, 1) has 3/2."""
    script = Script({"name": "malenia", "total": 3}, 2)
    assert script.push(0, at=1.0) == [("release", 0)]
    assert script.push(0, at=2.0) == [("release", 0)]
    assert script.push(1, at=2.5) == [("release", 1)]
    assert script.push(0, at=3.0) == [("apply", [0, 0, 0, 1]), ("cancel", 1), ("release", 0), ("release", 1)]
    applied = script.engine.view
    assert applied.version == 1


def test_malenia_takes_the_mean_of_the_workers_means():
    script = Script({"name": "malenia", "total": 3}, 2)
    for worker, at in [(0, 1.0), (0, 2.0), (1, 2.5)]:
        script.push(worker, at)
    ticket, version = script.flights[0]
    last = Push(9, 0, ticket, version, script.view.workers[0].batch_size)
    (apply,) = (each for each in script.engine.handle(last, 3.0) if isinstance(each, Apply))
    assert apply.weights == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])  # sorted by worker


def test_malenia_does_not_wait_for_a_worker_that_has_left():
    script = Script({"name": "malenia", "total": 1}, 2)
    assert script.push(0, at=1.0) == [("release", 0)]
    assert script.leave(1, at=2.0) == [("apply", [0]), ("cancel", 0), ("release", 0)]


# ---------------------------------------------------------------- PSP


def test_psp_that_looks_at_nobody_is_asp():
    assert rows(run({"name": "psp", "sample": 0}, FAST_AND_SLOW)) == rows(run("asp", FAST_AND_SLOW))


@pytest.mark.parametrize("lead", [0, 2])
def test_psp_that_looks_at_all_others_is_ssp(lead):
    everyone = {"name": "psp", "sample": 3, "lead": lead}
    bounded = {"name": "ssp", "staleness_bound": lead}
    assert rows(run(everyone, FAST_AND_SLOW)) == rows(run(bounded, FAST_AND_SLOW))


def test_psp_waits_less_than_ssp_and_more_than_asp():
    idle = [
        np.mean(run(strategy, FAST_AND_SLOW, step_time="lognormal").summary()["idle_fraction"])
        for strategy in ("asp", {"name": "psp", "sample": 1}, {"name": "ssp", "staleness_bound": 0})
    ]
    assert idle[0] < idle[1] < idle[2]


def test_psp_keeps_whom_it_drew_until_they_have_caught_up():
    script = Script({"name": "psp", "sample": 1}, 3)
    answers = [script.push(worker, at=1.0 + worker) for worker in (0, 1, 2)]
    # whoever was drawn, no worker is held once all have made a step
    assert sorted(word for answer in answers for word in answer if word[0] == "release") == [
        ("release", 0),
        ("release", 1),
        ("release", 2),
    ]
