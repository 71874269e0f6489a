"""The clocks of a live run: the coordinator's as workers know it, and the pace of emulated machines."""

from __future__ import annotations

import pytest

from psbench.backends.dask.protocol.messages import AskClock, Clock
from psbench.backends.dask.worker import clock as clocks
from psbench.backends.dask.worker.clock import CoordinatorClock, EmulatedMachine
from psbench.clusters import StepTimes
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster


class Mailbox:
    """Answers with a clock that is 100 s ahead, after a time that differs both ways from round to round."""

    def __init__(self, now: list[float], ways_s: list[tuple[float, float]]) -> None:
        self._now, self._ways_s = now, iter(ways_s)
        self._answer = 0.0

    def send(self, message: object) -> None:
        assert isinstance(message, AskClock)
        there_s, back_s = next(self._ways_s)
        self._answer = self._now[0] + there_s + 100.0
        self._now[0] += there_s + back_s

    def next_new(self, timeout_s: float) -> Clock:
        return Clock(self._answer)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [7.0]
    monkeypatch.setattr(clocks.time, "monotonic", lambda: moment[0])
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: moment[0] - 5.0)
    return moment


def test_the_quickest_exchange_gives_the_clock(now: list[float]) -> None:
    """Its answer is taken to be from the middle; the others were delayed on one way only."""
    own = CoordinatorClock()
    own.synchronise(Mailbox(now, [(1.0, 0.1), (0.02, 0.02), (0.1, 3.0), (0.5, 0.0), (0.0, 0.5)]))
    assert own() == pytest.approx(now[0] + 100.0)
    now[0] += 2.5
    assert own() == pytest.approx(now[0] + 100.0)


def test_an_emulated_machine_is_slow_while_its_slowdown_lasts(now: list[float]) -> None:
    slow = {"worker": 1, "from_s": 10.0, "to_s": 20.0, "factor": 3.0}
    profile = toy_experiment(cluster=toy_cluster([1.0, 0.5], slowdowns=[slow])).cluster.profile()
    own = CoordinatorClock()
    own.begin_s = now[0]
    factors = {}
    for at in (0.0, 9.9, 10.0, 19.9, 20.0):
        now[0] = own.begin_s + at
        began = now[0] - 5.0  # on the other clock of this process
        machines = [EmulatedMachine(profile, worker, Streams(0)) for worker in (0, 1)]
        factors[at] = [1 + machine.more_s(own, began, 1.0, 8) for machine in machines]
    assert factors == {0.0: [1, 2], 9.9: [1, 2], 10.0: [1, 6], 19.9: [1, 6], 20.0: [1, 2]}
    for machine in machines:  # by hand, of the profile's speed; and never faster than here
        machine.by_hand = 0.5
    assert [1 + machine.more_s(own, began, 1.0, 8) for machine in machines] == [2, 4]
    machines[1].by_hand = 8.0
    assert machines[1].more_s(own, began, 1.0, 8) == 0


def test_a_paced_machine_takes_what_its_steps_take_in_virtual_time(now: list[float]) -> None:
    """The same draws; a step that took longer here is not made shorter, and uses up its draw."""
    cluster = toy_cluster([1.0, 0.5], paces_live_runs=True, step_time="lognormal")
    profile = toy_experiment(cluster=cluster).cluster.profile()
    times, machine = StepTimes(profile, Streams(3)), EmulatedMachine(profile, 1, Streams(3))
    expected = [times.next(1, 8, 0.0) for _ in range(3)]
    took = [expected[0] / 2, expected[1] * 2, 0.0]
    waits = [machine.more_s(CoordinatorClock(), now[0], each, 8) for each in took]
    assert waits == pytest.approx([expected[0] / 2, 0.0, expected[2]])
    machine.by_hand = 0.25
    assert machine.more_s(CoordinatorClock(), now[0], 0.0, 8) == pytest.approx(4 * times.next(1, 8, 0.0))
