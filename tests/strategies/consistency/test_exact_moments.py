"""Rules at their edge: a lead that is the bound, a push in the instant of a timer, a grace of several steps.

Times are sums of powers of two, and links take none, so that what is equal is equal in all digits.
"""

from __future__ import annotations

import pytest
from script import Script, run

from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import SetTimer
from psbench.core.engine import Engine
from psbench.core.log import Kind
from psbench.core.view import ClusterView
from psbench.strategies import make_strategy

#: no message takes as long as the last digit of a second
AT_ONCE = {"bandwidth_mbit_s": 1e300, "server_bandwidth_mbit_s": 1e300}
BOUNDS = ["ssp", {"name": "dssp", "lower": 1, "upper": 1}, "con_sgd"]


def bounded(strategy):
    strategy = {"name": strategy, "staleness_bound": 1} if isinstance(strategy, str) else strategy
    return Script(strategy, 3)


# -------------------------------------------------------------------- the slowest leaves


@pytest.mark.parametrize("strategy", BOUNDS, ids=str)
def test_who_leads_by_the_bound_when_the_slowest_leaves_goes_on(strategy):
    """Clocks 2, 1 and 0 with a bound of 1: without the last, the first leads by 1."""
    script = bounded(strategy)
    assert script.push(0, 1.0)[-1] == ("release", 0)
    assert script.push(0, 2.0)[-1] == ("hold", 0, "staleness bound")
    assert script.push(1, 3.0) == [("apply", [1]), ("release", 1)]
    assert script.leave(2, 4.0) == [("release", 0)]


@pytest.mark.parametrize("strategy", BOUNDS, ids=str)
def test_who_leads_by_more_when_the_slowest_leaves_waits_for_the_next(strategy):
    """Clocks 2, 0 and 0: the one that is left leads by 2 still; then by 1."""
    script = bounded(strategy)
    script.push(0, 1.0)
    script.push(0, 2.0)
    assert script.leave(2, 3.0) == []
    assert script.push(1, 4.0) == [("apply", [1]), ("release", 0), ("release", 1)]


@pytest.mark.parametrize("strategy", BOUNDS, ids=str)
def test_who_comes_back_begins_at_the_slowest_and_holds_nobody_longer(strategy):
    """A newcomer's clock is that of the slowest: who leads by the bound is not held by it."""
    script = bounded(strategy)
    script.leave(2, 0.5)
    script.push(1, 1.0)
    script.push(0, 1.5)
    assert script.join(2, 2.0) == [("release", 2)]
    assert script.push(0, 3.0)[-1] == ("release", 0)  # at 2, the others at 1


def test_the_slowest_of_a_run_fails_and_the_held_one_goes_on_at_once():
    """Steps of 1, 2 and 8 s; at 4.5 s clocks are 2 (held), 2 and 0; the slowest fails at 4.5."""
    steps = {"name": "trace", "order": "in_order", "seconds": [[1.0], [2.0], [8.0]]}
    cluster = AT_ONCE | {"failures": [{"worker": 2, "at_s": 4.5}]}
    strategy = {"name": "ssp", "staleness_bound": 1}
    done = run(strategy, (1.0, 1.0, 1.0), step_time=steps, updates=6, cluster=cluster)
    pushed = done.log.of_kind(Kind.PUSH)
    assert pushed["time_s"][pushed["worker"] == 0].tolist()[:4] == [1.0, 2.0, 5.5, 6.5]


# -------------------------------------------------------------------- the grace of a quorum


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("steps", "seconds", "grace"),
    [
        ((4, 2), (8.0, 6.0), 2 * 3.0 - 2.0 - 0.5),  # the longer push has the shorter steps
        ((2, 4), (6.0, 8.0), 2 * 3.0 - 2.0 - 0.5),
        ((1, 1), (3.0, 2.0), 2 * 3.0 - 2.0 - 0.5),
        ((8, 8), (8.0, 4.0), 0.0),  # two steps of one second are over
    ],
)
def test_the_grace_of_a_quorum_is_of_the_longest_step_and_not_push(first, steps, seconds, grace):
    """gamma clip(tau xi_step - xi_quorum - xi_sync, 0, most): two steps, less 2 s of waiting and 0.5 s."""
    strategy = {
        "consistency": {"name": "quorum", "quorum": 2, "asks": False, "grace_s": 100.0, "grace_steps": 2},
        "communication": {"name": "local_sgd", "local_steps": 8},
        "aggregation": "fedbuff",
    }
    view = ClusterView(num_workers=3, dataset_size=1000, global_batch=12)
    engine = Engine(make_strategy(strategy), view)
    engine.begin(range(3))

    def push(worker, now):
        facts = {"compute_s": seconds[worker], "send_s": (0.5, 0.25)[worker]}
        return engine.handle(
            ev.Push(worker, worker, 1, 0, 4 * steps[worker], steps[worker], stats=facts), now
        )

    push(first, 10.0)
    answer = push(1 - first, 12.0)
    timers = [action.at for action in answer if isinstance(action, SetTimer)]
    committed = [len(action.pushes) for action in answer if isinstance(action, act.Apply)]
    assert (timers, committed) == (([12.0 + grace], []) if grace else ([], [2]))


def quorum_script(**values):
    """Return an engine under a quorum of two of three, and what pushes the next for a worker."""
    strategy = {
        "consistency": {"name": "quorum", "quorum": 2, "asks": False, "grace_s": 8.0} | values,
        "communication": {"name": "local_sgd", "local_steps": 2},
        "aggregation": "fedbuff",
    }
    engine = Engine(make_strategy(strategy), ClusterView(num_workers=3, dataset_size=1000, global_batch=12))
    engine.begin(range(3))

    def push(worker, now, seconds=1.0, steps=1, send_s=0.0):
        seen, stats = engine.view.workers[worker], {"compute_s": seconds, "send_s": send_s}
        number = engine.view.pushes
        own = ev.Push(number, worker, seen.ticket, seen.base_version, 4, steps, stats=stats)
        return engine.handle(own, now)

    return engine, push


def timers(answer):
    return [(action.at, action.key) for action in answer if isinstance(action, SetTimer)]


def committed(answer):
    return [push.worker for action in answer if isinstance(action, act.Apply) for push in action.pushes]


def test_a_grace_that_all_were_in_time_for_ends_no_later_round():
    """The timer of version 0 fires in the round of version 1, in which one has pushed: it is of no use."""
    engine, push = quorum_script()
    push(0, 1.0)
    ((at, key),) = timers(push(1, 2.0))
    assert at == 10.0
    assert committed(push(2, 3.0)) == [0, 1, 2]
    push(0, 9.0)
    assert committed(engine.handle(ev.Timer(key, 0), at)) == []
    assert committed(push(1, 11.0)) == []  # a grace of its own begins
    assert committed(push(2, 12.0)) == [0, 1, 2]


def test_one_that_leaves_in_the_grace_is_waited_for_no_longer():
    engine, push = quorum_script()
    push(0, 1.0)
    push(1, 2.0)
    assert committed(engine.handle(ev.Leave(2), 3.0)) == [0, 1]


def test_one_that_leaves_before_the_quorum_may_make_it_one():
    """Two of three have to push; of the two that are left after the first, both."""
    engine, push = quorum_script(quorum=3)
    push(0, 1.0)
    push(1, 2.0)
    assert committed(engine.handle(ev.Leave(2), 3.0)) == [0, 1]


def test_the_grace_of_a_round_is_of_its_own_steps_and_messages():
    """First steps of 8 s and messages of 4 s, then steps of 2 s and messages of 0.5 s."""
    _, push = quorum_script(grace_s=100.0, grace_steps=3)
    for worker in range(3):
        push(worker, 10.0 + worker, seconds=8.0, send_s=4.0)
    push(0, 20.0, seconds=4.0, steps=2, send_s=0.5)
    ((at, _),) = timers(push(1, 21.0, seconds=1.0, send_s=0.25))
    assert at == 21.0 + 3 * 2.0 - 1.0 - 0.5


# -------------------------------------------------------------------- in the instant of a timer, or the end


def versions(done):
    """Return the seconds of each version, and whose pushes made it."""
    made = {}
    rows = done.log.of_kind(Kind.APPLY)
    for at, version, worker in zip(rows["time_s"], rows["version"], rows["worker"], strict=True):
        made.setdefault(int(version), (float(at), []))[1].append(int(worker))
    return list(made.values())


def test_a_push_in_the_instant_in_which_a_grace_ends_is_of_that_period():
    """The first push begins a period of 0.5 s at 1 s; the second comes at 1.5 s, as it ends."""
    steps = {"name": "trace", "order": "in_order", "seconds": [[1.0], [1.5], [1.75]]}
    done = run(
        {"consistency": {"name": "grace", "grace_s": 0.5}},
        (1.0, 1.0, 1.0),
        step_time=steps,
        updates=4,
        cluster=AT_ONCE,
    )
    assert versions(done)[:2] == [(1.5, [0]), (1.5, [1])]
    assert [at for at, _ in versions(done)][2:3] == [2.25]  # worker 2's period began at 1.75


def test_a_push_in_the_instant_in_which_a_quorum_closes_is_in_the_version():
    """Two of three at 1 s, and 0.5 s for the third, which comes at 1.5 s."""
    steps = {"name": "trace", "order": "in_order", "seconds": [[1.0], [1.0], [1.5]]}
    strategy = {
        "consistency": {"name": "quorum", "quorum": 2, "asks": False, "grace_s": 0.5},
        "communication": {"name": "local_sgd", "local_steps": 1},
        "aggregation": "fedbuff",
    }
    done = run(strategy, (1.0, 1.0, 1.0), step_time=steps, updates=3, cluster=AT_ONCE)
    assert versions(done) == [(1.5 * n, [0, 1, 2]) for n in (1, 2, 3)]


def test_what_comes_in_the_instant_in_which_a_run_ends_is_too_late():
    """Steps of 1 s for 2 s: the second push comes when the time has passed."""
    done = run(
        "asp", (1.0,), step_time={"name": "trace", "seconds": [[1.0]]}, cluster=AT_ONCE, stop={"seconds": 2}
    )
    assert [at for at, _ in versions(done)] == [1.0]
    assert done.meta["time_s"] == 2.0


@pytest.mark.parametrize("strategy", ["bsp", "ssp"])
def test_who_fails_in_the_instant_in_which_its_push_comes_has_not_pushed(strategy):
    """Who leaves or joins comes first: both at 2 s, one without its second push."""
    steps = {"name": "trace", "order": "in_order", "seconds": [[1.0], [1.0]]}
    cluster = AT_ONCE | {"failures": [{"worker": 1, "at_s": 2.0}]}
    done = run(strategy, (1.0, 1.0), step_time=steps, updates=5, cluster=cluster)
    pushed = done.log.of_kind(Kind.PUSH)
    assert pushed["time_s"][pushed["worker"] == 1].tolist() == [1.0]
