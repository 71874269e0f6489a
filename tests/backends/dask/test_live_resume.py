"""Checkpoints of live runs, and live runs that go on from one."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
import torch
from strategies.aggregation.own_arithmetic import DiLoCo, Elastic, ElasticSteps
from test_live_workers import HALFWAY, SERVERS, count, experiment, simulated
from threaded_run import Killed, ThreadedRun

from psbench import Control, Run, replay, resume
from psbench.backends.dask.coordinator.beginning import Start
from psbench.backends.dask.protocol.messages import RequestStop
from psbench.backends.dask.worker.worker import Worker
from psbench.backends.simulated.simulation import run_simulated
from psbench.checkpoints.chain import log_of
from psbench.checkpoints.file import Checkpoint
from psbench.core.log import EventLog, Kind
from psbench.core.strategy import Strategy
from psbench.errors import ParameterError
from psbench.runs.execution import run
from psbench.training.build import Workload

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TOP = {"name": "top_k", "ratio": 0.2}
BOTH = {"codec": TOP, "codec_down": TOP}
ADAM = {"name": "adam"}
ONE_BIT = {"name": "one_bit_adam", "freeze_step": 2}


def start_of(done: ThreadedRun, label: str) -> tuple[Start, EventLog]:
    """Return what a run goes on with from a done's checkpoint, and the log up to there."""
    stored = done.stored[label]
    rows, texts = stored.state.pop("logged")
    before = EventLog()
    before.extend(done.log.rows(0, rows), done.log.texts[:texts])
    state = json.loads(json.dumps(stored.state))  # as it is read from a file
    stored.state = state
    return Start(stored, rows, list(done.log.texts[:texts])), before


def resumed_run(spec: Any, done: ThreadedRun, label: str) -> ThreadedRun:
    start, before = start_of(done, label)
    again = ThreadedRun(spec, start=start)
    again.log = before
    again.run()
    assert again.error is None
    return again


#: whose servers keep a residual of what they answer
LOSSY_AGGREGATE = {"name": "selsync", "delta": 0.0, "aggregate": "gradient", **BOTH}

DETERMINED = [
    *("bsp", "all_reduce", "double_squeeze", {"name": "power_sgd", "start_iter": 2}, ONE_BIT),
    {"name": "bsp"} | BOTH | {"placement": SERVERS},
    {"name": "local_sgd", "codec": TOP, "local_momentum": "kept"},
    LOSSY_AGGREGATE,
    {"name": "eager_diloco", "local_steps": 2},
    {"name": "streaming_diloco", "local_steps": 4},
    {"name": "selsync", "delta": 0.05, "aggregate": "gradient", "placement": SERVERS},
    {"name": "bsp", "codec": "qsgd", "codec_down": {"name": "random_k", "ratio": 0.3}, "placement": SERVERS},
    {"name": "strategy_switch", "first": {"name": "bsp"} | BOTH, "second": "all_reduce"} | HALFWAY,
]


@pytest.mark.by_day(5)
@pytest.mark.parametrize("strategy", DETERMINED, ids=json.dumps)
def test_under_a_barrier_a_live_run_goes_on_bit_by_bit(strategy: Any) -> None:
    """To the model of the run that nobody stopped, which is the simulated one."""
    small = {"optimizer": {"name": "sgd", "lr": 1e-3}} if strategy == ONE_BIT else {}  # Adam's steps are long
    small |= {"stop": {"epochs": 0.2}, "evaluate_every": 0.1}
    spec = experiment(strategy, checkpoint_every=0.1, **small)  # the last is of the end
    done = ThreadedRun(spec).run()
    assert done.error is None
    expected, log = simulated(spec)
    assert torch.equal(done.parameters, expected)
    assert done.checkpoints
    residual = done.stored[done.checkpoints[0]].tensors.get("codecs/residual", torch.zeros(1))
    assert bool(residual.any()) is (strategy == LOSSY_AGGREGATE)  # elsewhere what models lack is in `held`
    for label in (done.checkpoints[0], done.checkpoints[-1]):
        again = resumed_run(spec, done, label)
        assert torch.equal(again.parameters, expected)
        kinds = [int(kind) for kind in log.rows()["kind"] if kind in (Kind.PUSH, Kind.APPLY, Kind.RELEASE)]
        ours = [
            int(kind) for kind in again.log.rows()["kind"] if kind in (Kind.PUSH, Kind.APPLY, Kind.RELEASE)
        ]
        assert sorted(kinds) == sorted(ours)
        assert (np.diff(again.log.of_kind(Kind.RELEASE)["time_s"]) >= 0).all()  # time goes on, too
        expected_at = {each["version"]: each["train_accuracy"] for each in log.evaluations()}
        found_at = {each["version"]: each["train_accuracy"] for each in again.log.evaluations()}
        # an earlier version that was being evaluated when the checkpoint was taken is not evaluated again
        under_way = {version for version in expected_at if version < version_at(done, label)}
        assert found_at.items() <= expected_at.items()
        assert expected_at.keys() - found_at.keys() <= under_way


@pytest.mark.parametrize(("first", "second"), [("local_sgd", "bsp"), ("bsp", "all_reduce")])
def test_one_that_finishes_as_it_switches_can_be_made_longer(first: str, second: str) -> None:
    pair = {"name": "strategy_switch", "first": first, "second": second, "momentum": "keep"}
    spec = experiment(pair | HALFWAY, stop={"epochs": 0.2})
    expected, log = simulated(spec)
    (at,) = log.of_kind(Kind.HANDOVER)["version"].tolist()
    done = ThreadedRun(experiment(pair | HALFWAY, stop={"epochs": 0.2, "updates": at})).run()
    assert done.error is None
    assert done.checkpoints == [f"switch-version-{at}"]
    assert torch.equal(resumed_run(spec, done, done.checkpoints[0]).parameters, expected)


OWN_PARTS = {
    "vector and number": Strategy(
        consistency="bsp", communication="local_sgd", aggregation=DiLoCo(), placement=SERVERS
    ),
    "model of a worker": Strategy(
        consistency="bsp", communication=ElasticSteps(), aggregation=Elastic(), placement=SERVERS
    ),
}


@pytest.mark.parametrize("strategy", OWN_PARTS.values(), ids=OWN_PARTS)
def test_it_does_with_what_parts_of_a_persons_own_keep(strategy: Strategy) -> None:
    test_under_a_barrier_a_live_run_goes_on_bit_by_bit(strategy)


@pytest.mark.by_day(4)
@pytest.mark.parametrize(
    "strategy",
    [
        *("asp", "ssp", "k_asp", "osp", "bounded_step", "hermes", "easgd", "dc_asgd"),
        *({"name": "asp"} | BOTH | {"placement": SERVERS}, {"name": "osp", "placement": SERVERS}),
    ],
    ids=json.dumps,
)
def test_what_was_under_way_is_repeated(strategy: Any) -> None:
    """From what its worker held: its next push has the base and the loss that it would have had."""
    spec = experiment(strategy, 3, checkpoint_every=0.1)
    done = ThreadedRun(spec).run()
    assert done.error is None
    again = resumed_run(spec, done, done.checkpoints[0])
    assert torch.isfinite(again.parameters).all()
    versions = again.log.of_kind(Kind.APPLY)["version"]
    assert sorted(set(versions.tolist())) == list(range(1, versions.max() + 1))
    assert again.outcome.reason == done.outcome.reason
    resumes = again.log.of_kind(Kind.RESUME)
    assert resumes["version"].tolist() in ([], [version_at(done, done.checkpoints[0])])
    texts = [json.loads(again.log.text(text)) for text in resumes["text"]]
    if "osp" in json.dumps(strategy):  # whose pushes carry as many steps as there were until an answer
        return
    for worker in texts[0].get("again", ()) if texts else ():
        rows = [each.log.rows(resumes["row"][0]) for each in (done, again)]
        pushes = [each[(each["kind"] == Kind.PUSH) & (each["worker"] == worker)][:1] for each in rows]
        if len(pushes[0]) and len(pushes[1]):
            for name in ("samples", "steps", "version", "loss"):
                assert pushes[0][name] == pushes[1][name]


class DiesInItsFourthStep(Worker):
    def _step(self) -> Any:
        if self.worker == 1 and self.loop is not None and self.loop.ticket >= 4:
            raise Killed
        return super()._step()


def test_a_worker_that_was_lost_takes_part_again_in_a_resumed_run() -> None:
    spec = experiment("bsp", 3, checkpoint_every=0.1)
    done = ThreadedRun(spec, DiesInItsFourthStep).run()
    assert done.outcome.facts["lost_workers"] == [1]
    label = done.checkpoints[-2]  # it was lost long before
    rows = int(done.stored[label].state["logged"][0])
    again = resumed_run(spec, done, label)
    assert again.outcome.facts["lost_workers"] == []
    since = again.log.rows(rows)
    assert since["worker"][since["kind"] == Kind.JOIN].tolist() == [1]
    assert 1 in since["worker"][since["kind"] == Kind.PUSH]


#: chunks so small, and a threshold so low, that somebody pushes in a moment
OFTEN = {"name": "hermes", "chunk_samples": 48, "passes": 1, "alpha": -0.1, "patience": 1}


@pytest.mark.parametrize("strategy", ["bsp", {"name": "selsync", "delta": 1e9}, OFTEN], ids=json.dumps)
def test_a_stop_leaves_a_checkpoint(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the next version, where under a barrier nothing is void; or, if none comes, of the moment."""
    # a barrier's next version comes, however long that takes; the others are not waited for
    within_s = 3600.0 if strategy == "bsp" else 0.2
    monkeypatch.setattr("psbench.backends.dask.coordinator.finishing._STOP_S", within_s)
    asked: list[bool] = []

    def on_rows(done: ThreadedRun, client: Any) -> None:
        if len(done.log) > 100 and not asked:
            asked.append(True)
            client.send(RequestStop(checkpoint=True))

    spec = experiment(strategy, stop={"updates": 10**9, "epochs": 10**6})
    done = ThreadedRun(spec).run(on_rows)
    assert (done.outcome.status, done.error) == ("stopped", None)
    (label,) = done.checkpoints
    rows = int(done.stored[label].state["logged"][0])
    stop = int(done.stored[label].state["engine"]["view"]["version"]) + 2
    shorter = spec.but(
        stop={"updates": stop} if strategy != {"name": "selsync", "delta": 1e9} else {"epochs": 1}
    )
    again = resumed_run(shorter, done, label)
    resumed = again.log.rows(rows)["kind"].tolist().count(Kind.RESUME)
    if strategy == "bsp":
        assert label.startswith("stopped-version-")
        assert resumed == 0
        assert torch.equal(again.parameters, simulated(shorter)[0])


@pytest.mark.parametrize("strategy", ["all_reduce", "fsdp"])
def test_what_waits_for_a_ring_goes_on_bit_by_bit(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop found a worker in a long step; the others' payloads were in no checkpoint."""
    monkeypatch.setattr("psbench.backends.dask.coordinator.finishing._STOP_S", 0.05)
    stored, asked = threading.Event(), list[bool]()
    # with FSDP a checkpoint needs the share of the worker in its long step, and waits until that ends
    long_s = 1.0 if strategy == "fsdp" else 60.0

    class StepsLong(Worker):
        def _step(self) -> Any:
            if self.worker == 1 and self.loop is not None and self.loop.ticket == 4:
                stored.wait(long_s)
            return super()._step()

    class Stores(ThreadedRun):
        def _take(self, message: Any, client: Any) -> None:
            super()._take(message, client)
            if self.checkpoints:
                stored.set()

    def on_rows(done: ThreadedRun, client: Any) -> None:
        if not asked and count(done.log, Kind.PUSH) == 3 * 3 + 2:
            asked.append(True)
            client.send(RequestStop(checkpoint=True))

    spec = experiment(strategy, 3, stop={"updates": 6})
    done = Stores(spec, StepsLong).run(on_rows)
    (label,) = done.checkpoints
    pending = done.stored[label].state["engine"]["view"]["pending"]
    assert [label, sorted(push["worker"] for push in pending)] == ["stopped", [0, 2]]
    again = resumed_run(spec, done, label)
    assert torch.equal(again.parameters, ThreadedRun(spec).run().parameters)


def version_at(done: ThreadedRun, label: str) -> int:
    return int(done.stored[label].state["engine"]["view"]["version"])


def test_on_dask_a_run_continues_from_its_files_and_then_simulated(scheduler: str, tmp_path: Any) -> None:
    spec = experiment(
        {"name": "bsp"} | BOTH,
        scheduler=scheduler,
        checkpoint_every=0.15,
        stop={"epochs": 0.5},
        optimizer=ADAM,
    )
    virtual = spec.but(backend="simulated", scheduler=None)
    whole = run(virtual)
    control = Control()

    def stop_soon(log: EventLog) -> None:
        if len(log.of_kind(Kind.APPLY)["version"]) > 40:
            control.stop()

    run(spec, folder=tmp_path / "live", control=control, observer=stop_soon)
    again = resume(tmp_path / "live")
    assert torch.equal(again.parameters, whole.parameters)
    replay(Run.load(tmp_path / "live"))
    first = sorted((tmp_path / "live" / "checkpoints").glob("*.npz"))[0]
    back = resume(first, {"backend": "simulated", "scheduler": None})
    assert torch.equal(back.parameters, whole.parameters)


def test_a_simulated_run_goes_on_live(tmp_path: Any) -> None:
    spec = experiment({"name": "bsp"} | BOTH, checkpoint_every=0.15, backend="simulated")
    whole = run(spec, folder=tmp_path)
    path = sorted((tmp_path / "checkpoints").glob("*.npz"))[0]
    checkpoint = Checkpoint.load(path)
    before = log_of(path, checkpoint)
    again = ThreadedRun(spec.but(backend="dask"), start=Start(checkpoint, len(before), list(before.texts)))
    again.log = before
    again.run()
    assert again.error is None
    assert torch.equal(again.parameters, whole.parameters)


@pytest.mark.parametrize("name", ["d_psgd_step_first", "sgp", "ad_psgd"])
def test_a_live_run_without_a_server_goes_on_in_virtual_time(name: str) -> None:
    spec = experiment(name, checkpoint_every=0.15, cluster={"workers": 2})
    done = ThreadedRun(spec).run()
    assert done.error is None
    label = done.checkpoints[0]
    start, log = done.stored[label], EventLog()
    virtual = Workload.build(spec.but(backend="simulated"))
    again = run_simulated(virtual, log, Control(), start=start)
    if name != "ad_psgd":  # whose pairs meet as it happens
        assert torch.equal(again.parameters, resumed_run(spec, done, label).parameters)
    assert log.of_kind(Kind.MIX)["time_s"].min() >= start.state["time_s"]


def test_the_driver_of_jobs_refuses(tmp_path: Any) -> None:
    spec = experiment("map_reduce", checkpoint_every=0.2, backend="simulated")
    run(spec, folder=tmp_path)
    with pytest.raises(ParameterError, match="cannot resume it from a checkpoint"):
        resume(tmp_path, {"backend": "dask"})
