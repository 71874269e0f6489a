"""The checker of backends: psbench's own drivers pass it, and each fault is found and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from psbench.backends.control import Control
from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.instructions import FIRST_SERVER, Instruction, Send
from psbench.backends.dask.protocol.roles import worker_number
from psbench.backends.replay import Replay
from psbench.backends.simulated import simulation
from psbench.backends.simulated.simulated_cluster import SimulatedCluster
from psbench.backends.simulated.simulation import Simulation
from psbench.core import EventLog
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.errors import Deadlock
from psbench.runs.execution import run
from psbench.testing import BrokenContract, ScriptedCluster, check_backend
from psbench.testing.watched import WatchedWorkload
from psbench.testing.witness import WatchedEngine, Witness
from tests.live_runs import World


def simulate(workload: WatchedWorkload, log: EventLog) -> None:
    Simulation(workload, log, Control()).run()


def test_the_simulator_keeps_the_contract() -> None:
    check_backend(simulate)


class WatchedWorld(World):
    """The pure half of a live run, whose workers and first server report what they have."""

    def __init__(self, workload: WatchedWorkload, run_class: type[LiveRun]) -> None:
        assert workload.witness is not None
        self._witness, self._compositions = workload.witness, 0
        self._contributed: dict[int, tuple[int, int]] = {}  # marks of last pushes
        self._in_ring: list[tuple[int, int]] = []
        super().__init__(workload, np.random.Generator(np.random.PCG64(1)), run_class)

    def _perform(self, instruction: Instruction) -> None:
        super()._perform(instruction)
        if not isinstance(instruction, Send):
            return
        order = instruction.message
        if isinstance(order, msg.StartRing):
            worker = worker_number(instruction.to)
            assert worker is not None
            if order.place.place == 0:
                self._in_ring = []
            self._in_ring.append(self._contributed[worker])
        elif isinstance(order, msg.MakeVersion) and self._in_ring:  # the first member's
            self._witness.made(order.version, self._in_ring)
            self._in_ring = []
        if instruction.to != FIRST_SERVER:
            return
        if isinstance(order, msg.ApplyUpdate):
            self._witness.made(self.first_server.version, map(tuple, order.keys))
        elif isinstance(order, msg.BeginSlice):
            if self._compositions:
                self._witness.handed_over(order.composition)
            self._compositions += 1

    def _arrive_at_coordinator(self, sender: str, message: Message) -> None:
        worker = worker_number(sender)
        if isinstance(message, msg.PushMessage) and worker is not None:
            mark = self._contributed[worker] = worker, message.ticket
            self._witness.computed(worker, self.workers[sender].version, mark, message.steps)
        super()._arrive_at_coordinator(sender, message)

    def play(self) -> None:
        """Let everything happen: of each worker's steps every first, second or fourth round ends one."""
        rounds = 0
        while self.end is None:
            rounds += 1
            assert rounds < 2000
            while (pairs := self.waiting()) and self.end is None:
                self.arrive(pairs[0])
            for name in [name for name in self.busy() if rounds % 2 ** int(name[-1]) == 0]:
                if self.end is None:
                    self.end_step(name)
            if self.end is None:
                self.pass_time(0.005)


def play_live(workload: WatchedWorkload, log: EventLog, run_class: type[LiveRun] = LiveRun) -> None:
    WatchedWorld(workload, run_class).play()


def test_the_coordinator_of_a_live_run_keeps_the_contract() -> None:
    """Without sockets: its decisions and messages, with workers and a server that are not real."""
    check_backend(play_live)


def replay_recorded(workload: WatchedWorkload, log: EventLog) -> None:
    recorded = run(workload.experiment).log
    Replay(recorded, log, workload.engine(log)).play()


def test_a_replay_hands_over_events_as_the_contract_says() -> None:
    check_backend(replay_recorded, sees_model=False)


class WatchedScript(ScriptedCluster):
    """A scripted cluster whose engine is watched."""

    witness: ClassVar[Witness]

    def new_engine(self, log: EventLog | None = None) -> WatchedEngine:
        engine = super().new_engine(log)
        return WatchedEngine(self.witness, engine.strategy, engine.view, log=log)


def play_script(workload: WatchedWorkload, log: EventLog) -> None:
    profile = workload.profile
    changes = [(each.at_s, ev.Leave(each.worker)) for each in profile.failures]
    changes += [(each.rejoin_s, ev.Join(each.worker)) for each in profile.failures if each.rejoin_s]
    assert workload.witness is not None
    WatchedScript.witness = workload.witness
    steps = [0.005 / speed for speed in profile.speed]
    WatchedScript(workload.experiment.strategy, steps, changes=changes, epochs=50).run(until=0.5)


def test_a_scripted_cluster_keeps_the_contract() -> None:
    check_backend(play_script, sees_model=False)


# -------------------------------------------------------------------- what it must find


class AppliesDiscarded(SimulatedCluster):
    """Keeps the payload of a push that is discarded, and adds it to the next version."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._late: list[ev.Push] = []

    def discard(self, discard: act.Discard, now: float) -> None:
        self._late.append(discard.push)

    def apply(self, apply: act.Apply, now: float) -> None:
        pushes, self._late = [*apply.pushes, *self._late], []
        super().apply(replace(apply, pushes=pushes, weights=[1.0] * len(pushes)), now)


class LosesRelease(SimulatedCluster):
    """Loses the release with ticket 3 of worker 1."""

    def release(self, release: act.Release, now: float) -> None:
        if (release.worker, release.ticket) != (1, 3):
            super().release(release, now)


class LoadsLate(SimulatedCluster):
    """Sends the version before the one that is to be loaded."""

    def apply(self, apply: act.Apply, now: float) -> None:
        self._before = self.server.parameters.clone()
        super().apply(apply, now)

    def release(self, release: act.Release, now: float) -> None:
        model = self.server.parameters
        self.server.parameters = getattr(self, "_before", model)
        super().release(release, now)
        self.server.parameters = model


class ReleasesFirst(SimulatedCluster):
    """Releases workers before it makes the version that they are to load."""

    def perform(self, actions: Any, now: float, completely: bool = False) -> bool:
        return super().perform(sorted(actions, key=lambda a: type(a) is act.Apply), now, completely)


class CountsTheLost(SimulatedCluster):
    """Adds to the next version what a worker was computing when it left."""

    def leave(self, worker: int) -> None:
        if push := self.under_way.pop(worker, None):
            self._lost = replace(push, id=-1)
            self.payloads[-1] = self.workers.payload(push)
        super().leave(worker)

    def apply(self, apply: act.Apply, now: float) -> None:
        if -1 in self.payloads:
            pushes = [*apply.pushes, self._lost]
            apply = replace(apply, pushes=pushes, weights=[1.0] * len(pushes))
        super().apply(apply, now)


class HandsOverTwice(SimulatedCluster):
    def hand_over(self, handover: act.Handover, now: float) -> None:
        super().hand_over(handover, now)
        super().hand_over(handover, now)


class LeavesOutHandover(SimulatedCluster):
    def hand_over(self, handover: act.Handover, now: float) -> None:
        pass


class AppliesNothing(SimulatedCluster):
    def apply(self, apply: act.Apply, now: float) -> None:
        pass


class LosesTimers(SimulatedCluster):
    def set_timer(self, timer: act.SetTimer, now: float) -> None:
        pass


class HurriesTimers(SimulatedCluster):
    def set_timer(self, timer: act.SetTimer, now: float) -> None:
        super().set_timer(replace(timer, at=timer.at - 0.01), now)


class MeasuresNothing(SimulatedCluster):
    def measure(self, measure: act.Measure, now: float) -> None:
        super().measure(replace(measure, needs={}), now)


class KeepsCancelledSteps(SimulatedCluster):
    """Lets a step that was cancelled end all the same, where a push takes several."""

    def void(self, worker: int) -> None:
        own = self.workers._workers.get(worker)
        generation = None if own is None else own.generation
        super().void(worker)
        if own is not None and generation is not None:
            own.generation = generation


class LosesOrders(SimulatedCluster):
    def tell(self, tell: act.Tell, now: float) -> None:
        pass


class StepsWhereToPush(SimulatedCluster):
    """Has a worker that is to push after a vote take another step."""

    def release(self, release: act.Release, now: float) -> None:
        super().release(replace(release, then="step"), now)


class RingOfSome(SimulatedCluster):
    """Leaves the last member out of each sum of a ring."""

    def apply(self, apply: act.Apply, now: float) -> None:
        if self._collective is not None:
            apply = replace(apply, pushes=apply.pushes[:-1], weights=apply.weights[:-1])
        super().apply(apply, now)


class LosesMixtures(SimulatedCluster):
    def mix(self, mix: act.Mix, now: float) -> None:
        pass


class MixesEarlierModels(SimulatedCluster):
    """Mixes what neighbours have now, and not what they sent at the same exchange."""

    def mix(self, mix: act.Mix, now: float) -> None:
        super().mix(replace(mix, sent=False), now)


FAULTS: dict[type[SimulatedCluster], str] = {
    KeepsCancelledSteps: r"rounds of two steps that are cancelled.*",
    LosesOrders: r"rounds that end by an order.*but has sent nothing, after 21 more events",
    StepsWhereToPush: r"votes.*a vote of worker 0 is delivered, but its worker was released to push",
    RingOfSome: r"All-Reduce.*version 1 is made of \[push 0, push 1\]; .* names pushes \[0, 1, 2\]",
    LosesMixtures: r"gossip.*was computed from the model of version 0; .* says version 1",
    MixesEarlierModels: r"gossip.*was computed from the model of version -1; .* says version",
    AppliesDiscarded: r"of \[push 2, push 3, push 1, which is discarded\]; .* names pushes \[2, 3\]",
    LosesRelease: r"worker 1 was released with ticket 3 at .* s, but has sent nothing, after 21 more events",
    LoadsLate: r"push 2 of worker 0 was computed from the model of version 0; .* ticket 2 says version 1",
    ReleasesFirst: r"push 2 of worker 0 was computed from the model of version 0; .* ticket 2 says version 1",
    CountsTheLost: r"worker that fails.*a payload that no push delivered\]; the Apply of version",
    HandsOverTwice: r"a switch.*handed over to composition 2; no Handover is pending",
    LeavesOutHandover: r"a switch.*composition 1 is not in force before an evaluation is",
    AppliesNothing: r"version 1 is not made before push 1 of worker 1 is handed over",
    LosesTimers: r"timer '\d' was set for .* s, but has not happened, after 21 more events",
    HurriesTimers: r"a timer happens, but no SetTimer is due",
    MeasuresNothing: r"the Measure requests \['model_loss'\]; delivered are \[\]",
}


@pytest.mark.by_day(6)
@pytest.mark.parametrize("cluster", FAULTS, ids=lambda cluster: cluster.__name__)
def test_a_cluster_with_a_fault_is_found_out(
    cluster: type[SimulatedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "SimulatedCluster", cluster)
    with pytest.raises(BrokenContract, match=FAULTS[cluster]):
        check_backend(simulate)


class TellsNoDeparture(Simulation):
    """Never tells the engine that a worker has left."""

    def _handle(self, event: ev.Event) -> None:
        if not isinstance(event, (ev.Leave, ev.Join)):
            super()._handle(event)


class PushesTwice(Simulation):
    """Hands each push over twice."""

    def _perform(self, actions: Any) -> None:
        super()._perform(actions)
        push = next((each for each in self.engine.view.pending.values()), None)
        if push is not None:
            self.engine.handle(push, self.now)


RUN_FAULTS: dict[type[Simulation], str] = {
    TellsNoDeparture: r"push \d+ of worker 1 is handled, but its worker left at 0.052 s",
    PushesTwice: r"push 0 is delivered twice",
}


@pytest.mark.parametrize("kind", RUN_FAULTS, ids=lambda kind: kind.__name__)
def test_events_that_are_wrong_are_found_out(kind: type[Simulation]) -> None:
    with pytest.raises(BrokenContract, match=RUN_FAULTS[kind]):
        check_backend(lambda workload, log: kind(workload, log, Control()).run())


def test_a_run_that_cannot_go_on_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def deadlock(workload: WatchedWorkload, log: EventLog) -> None:
        workload.engine(log).begin([0, 1, 2])
        raise Deadlock("no worker can ever continue")

    with pytest.raises(BrokenContract, match=r"workers that do not wait.*no worker can ever continue"):
        check_backend(deadlock)


def test_a_model_that_nobody_sees_is_no_model_that_is_right() -> None:
    with pytest.raises(BrokenContract, match="no version was made"):
        check_backend(lambda workload, log: None)


class LiveLeavesOutPushes(LiveRun):
    """Makes each version of the first push alone."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        make = self.driver.apply
        self.driver.performers[act.Apply] = lambda action, now: make(
            replace(action, pushes=action.pushes[:1], weights=action.weights[:1]), now
        )


class LiveLosesRelease(LiveRun):
    """Loses the release with ticket 3 of worker 1."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        performers, release = self.driver.performers, self.driver.release

        def lose(action: act.Release, now: float) -> None:
            if (action.worker, action.ticket) != (1, 3):
                release(action, now)

        performers[act.Release] = lose


class LiveMeasuresNothing(LiveRun):
    """Hands over no number that was asked for."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        events = self.run.events
        self.driver.performers[act.Measure] = lambda action, now: events.append(ev.Measured({}))


class LiveReleasesFirst(LiveRun):
    """Releases workers before it makes the version that they are to load."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        perform = self.driver.perform
        self.driver.perform = lambda actions: perform(sorted(actions, key=lambda a: type(a) is act.Apply))


LIVE_FAULTS: dict[type[LiveRun], str] = {
    LiveLeavesOutPushes: r"a barrier.*made of \[push 0\]; the Apply of version 1 names pushes \[0, 1, 2\]",
    LiveLosesRelease: r"worker 1 was released with ticket 3 at .* s, but has sent nothing, after 21 more",
    LiveMeasuresNothing: r"the Measure requests \['model_loss'\]; delivered are \[\]",
    LiveReleasesFirst: "worker 0 is sent version 0 as 1",  # found by the worker itself
}


@pytest.mark.parametrize("kind", LIVE_FAULTS, ids=lambda kind: kind.__name__)
def test_a_live_run_with_a_fault_is_found_out(kind: type[LiveRun]) -> None:
    with pytest.raises(BrokenContract, match=LIVE_FAULTS[kind]):
        check_backend(lambda workload, log: play_live(workload, log, kind))
