"""The simulated backend: the ends of a run, requests from outside, ties, what it refuses and keeps."""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar

import numpy as np
import pytest
from toybox import take_out

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.actions import Apply, Hold
from psbench.core.events import Push
from psbench.core.log import EventLog, Kind
from psbench.core.strategy import Strategy
from psbench.errors import Deadlock, ParameterError
from psbench.runs.execution import run
from psbench.strategies.communication import EveryStep
from psbench.strategies.consistency import BSP
from psbench.system import collector
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload


class Stuck(BSP):
    """Holds everybody for ever after three versions."""

    name: ClassVar[str] = "stuck_consistency"

    def on_push(self, push, view):
        return super().on_push(push, view) if view.version < 3 else [Hold(push.worker, "for ever")]


class Reader(EveryStep):
    """Reads what nobody knows."""

    name: ClassVar[str] = "stuck_reader"
    reads: ClassVar[tuple[str, ...]] = ("phase_of_the_moon",)


class Careful(EveryStep):
    """Decides by the loss."""

    name: ClassVar[str] = "stuck_careful"
    reads: ClassVar[tuple[str, ...]] = ("loss",)


take_out("stuck_")


@pytest.mark.parametrize("timing_only", [False, True])
def test_a_deadlock_names_every_worker_and_its_reason(timing_only):
    strategy = Strategy(name="stuck", consistency=Stuck())
    with pytest.raises(Deadlock) as error:
        run(toy_experiment(strategy, timing_only=timing_only))
    assert str(error.value) == (
        "at 0.080 s no worker can ever continue; worker 0 at clock 4: for ever; "
        "worker 1 at clock 4: for ever; worker 2 at clock 4: for ever"
    )


def test_a_statistic_that_no_backend_knows_is_refused_at_once():
    with pytest.raises(ParameterError, match="require phase_of_the_moon, but the statistics of a step are"):
        toy_experiment(Strategy(consistency="bsp", communication=Reader()))


def test_parts_that_decide_by_the_loss_are_refused_where_none_is_computed():
    with pytest.raises(ParameterError, match="'stuck_careful' of strategy 'custom' decides by losses"):
        toy_experiment(Strategy(consistency="bsp", communication=Careful()), timing_only=True)


class TestEnds:
    def test_updates(self):
        done = run(toy_experiment("asp", stop={"updates": 7}))
        assert done.log.of_kind(Kind.APPLY)["version"][-1] == 7
        assert done.meta["reason"] == "7 updates are done"

    def test_epochs_are_done_when_every_sample_has_counted_once_each(self):
        done = run(toy_experiment("bsp", stop={"epochs": 1.5}))
        assert done.log.of_kind(Kind.APPLY)["samples"].sum() == 1.5 * 96

    def test_seconds(self):
        done = run(toy_experiment("bsp", stop={"seconds": 0.07}))
        assert (done.meta["time_s"], done.log.of_kind(Kind.APPLY)["version"][-1]) == (0.07, 3)

    def test_by_hand_keeps_what_there_is(self):
        control = Control()

        def observer(log):
            if len(log.of_kind(Kind.APPLY)["row"]) > 10:
                control.stop()

        done = run(toy_experiment("asp", stop={"epochs": 500}), control=control, observer=observer)
        assert done.meta["status"] == "stopped"
        assert done.log.evaluations()[-1]["version"] == done.log.of_kind(Kind.APPLY)["version"][-1]

    def test_a_run_that_diverges_names_the_push(self):
        done = run(toy_experiment("bsp", optimizer={"name": "sgd", "lr": 1e38}, stop={"epochs": 50}))
        pushes = done.log.of_kind(Kind.PUSH)
        assert done.meta["status"] == "diverged"
        assert done.meta["reason"].startswith(f"push {pushes['id'][-1]} of worker {pushes['worker'][-1]}, ")
        assert done.meta["time_s"] == pushes["time_s"][-1]


def test_a_switch_asked_for_in_a_run_leaves_a_checkpoint(tmp_path):
    control = Control()
    control.switch()
    strategy = {"name": "strategy_switch", "rule": {"name": "manual"}}
    done = run(toy_experiment(strategy), control=control, folder=tmp_path)
    assert done.log.of_kind(Kind.HANDOVER)["id"].tolist() == [1]
    assert len(done.meta["checkpoints"]) == 1


def test_at_one_instant_leavers_come_first_and_then_pushes_by_worker():
    cluster = toy_cluster([1.0] * 4, failures=[{"worker": 3, "at_s": 0.004}])
    log = run(toy_experiment("all_reduce", cluster=cluster, stop={"epochs": 1}, timing_only=True)).log
    rows = log.rows()
    rows = rows[(rows["time_s"] == 0.004) & np.isin(rows["kind"], [Kind.LEAVE, Kind.PUSH])]
    kinds = [(Kind(row["kind"]).name, int(row["worker"])) for row in rows]
    assert kinds == [("LEAVE", 3), ("PUSH", 0), ("PUSH", 1)]  # that of worker 2 comes when the ring is over


@pytest.mark.parametrize(("strategy", "versions"), [("asp", 4), ("k_bsp", 1), ("k_batch_asp", 4), ("bsp", 1)])
def test_a_version_is_kept_once_and_only_while_somebody_started_from_it(strategy, versions):
    failures = [{"worker": 1, "at_s": 0.033, "rejoin_s": 0.05}]
    experiment = toy_experiment(strategy, cluster=toy_cluster([1.0, 0.5, 0.25, 0.3], failures=failures))
    simulation = Simulation(Workload.build(experiment), EventLog(), Control())
    most = 0
    simulation._begin()
    while not simulation.ending:
        simulation._handle_events(1)
        if simulation.ending:  # with its last version a run ends, whatever is under way
            break
        under_way = {worker.base_version for worker in simulation.engine.view.workers.values()}
        most = max(most, len(simulation.cluster.workers.exchange.snapshots))
        assert simulation.cluster.workers.exchange.snapshots.versions <= under_way
        assert len(simulation.cluster.payloads) == len(simulation.engine.view.pending)
    assert most == versions


def test_a_version_is_kept_for_an_update_of_the_same_answer():
    """Its push waits for this answer's update: no worker and no pending push tells of its version."""
    simulation = Simulation(Workload.build(toy_experiment("dc_asgd")), EventLog(), Control())
    simulation._begin()
    measurements, view = simulation.cluster._measurements, simulation.engine.view
    assert measurements.holds_versions
    assert not view.pending
    measurements.held = {3: "started from", 4: "of no use"}
    push = Push(0, 0, 1, 3, 4, 1, 0, 0.1, 0.0, 1.0, None, False)
    measurements.begin([Apply([push], [1.0], version=5)])
    measurements.hold(5)
    assert sorted(measurements.held) == [3, 5]


class Collector:
    """Counts objects as `gc` does, so that no other thread's run is in the count."""

    frozen, enabled, calls = 0, True, ()

    def isenabled(self):
        return self.enabled

    def enable(self):
        self.enabled = True

    def disable(self):
        self.enabled = False

    def get_freeze_count(self):
        return self.frozen

    def freeze(self):
        self.frozen = 5000
        self.calls += ("freeze",)

    def unfreeze(self):
        self.frozen = 0
        self.calls += ("unfreeze",)


def test_objects_of_before_a_run_are_not_searched_for_garbage(monkeypatch):
    """Only while it runs, also where it fails, and what somebody else has frozen stays frozen."""
    monkeypatch.setattr(collector, "gc", gc := Collector())
    monkeypatch.setattr(collector, "_holders", set())

    def frozen(error=None, **changes):
        """Return whether objects are frozen in a run, and after it."""

        def observe(log):
            seen.add(gc.frozen > 0)
            if error:
                raise error

        seen = set()
        with suppress(InterruptedError):
            run(toy_experiment("asp", **changes), observer=observe)
        return seen, gc.frozen > 0

    assert frozen() == ({False}, False)
    assert frozen(timing_only=True) == ({True}, False)
    assert frozen(InterruptedError(), timing_only=True) == ({True}, False)
    gc.freeze()
    assert frozen() == ({True}, True)
    assert frozen(timing_only=True) == ({True}, True)


def test_imports_are_not_searched_for_garbage(monkeypatch):
    """Not afterwards either: all objects are old then, unless somebody else has frozen some."""
    monkeypatch.setattr(collector, "gc", gc := Collector())
    with suppress(InterruptedError), collector.imports_not_searched():
        assert not gc.enabled
        with collector.imports_not_searched():
            assert not gc.enabled
        assert not gc.enabled
        raise InterruptedError
    assert (gc.enabled, gc.calls) == (True, ("freeze", "unfreeze"))
    gc.freeze()
    with collector.imports_not_searched():
        pass
    assert gc.enabled
    assert gc.frozen


@pytest.mark.parametrize(
    "strategy",
    [
        *("bsp", "all_reduce", "map_reduce", "local_sgd", "osp"),
        {"name": "selsync", "delta": 0.0, "sharing_workers": 0.5, "shared_fraction": 0.5},
    ],
    ids=str,
)
def test_the_answer_to_the_last_version_is_sent_under_no_strategy(strategy):
    """Under a barrier as many models come down as pushes go up, the first ones in the place of the last."""
    done = run(toy_experiment(strategy, stop={"epochs": 2}))
    summary = done.summary()
    assert summary["bytes"]["up"] == summary["bytes"]["down"] > 0
    if "data" in summary["messages"]:  # what workers share for a step, once for each of its 3 workers
        assert summary["messages"]["data"] == 3 * summary["updates"]
