"""Going on from a checkpoint: bit by bit where nothing was under way; never more than an interval lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psbench import Control, DataError, Run, SpecError, replay, resume
from psbench.backends.simulated.workers import Workers
from psbench.checkpoints.chain import find, log_of
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.validation import _difference
from psbench.cli import main
from psbench.core.events import Push
from psbench.core.log import EventLog, Kind
from psbench.runs.execution import run
from psbench.seeds import Streams
from psbench.strategies import CATALOGUE
from psbench.testing import toy_experiment
from psbench.training.batches import Batches, BatchPosition
from psbench.training.build import Workload

TOP = {"name": "top_k", "ratio": 0.2}
BOTH = {"codec": TOP, "codec_down": TOP}
SERVERS = {"placement": {"name": "parameter_server", "servers": 3}}
ONE_BIT = {"name": "one_bit_adam", "freeze_step": 2}
HALFWAY = {"rule": {"name": "after", "fraction": 0.5}}


def toy(strategy: Any, **changes: Any) -> Any:
    defaults = {
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.0 if strategy is ONE_BIT else 0.9},
        "stop": {"epochs": 4},
        "checkpoint_every": 1.7,
    }
    return toy_experiment(strategy, **defaults | changes)


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("*.npz"))


BARRIERS = [
    *("bsp", "all_reduce", "map_reduce", "double_squeeze", "local_sgd", "selsync", "adacomm", "k_batch_bsp"),
    *({"name": "bsp"} | BOTH, {"name": "bsp"} | BOTH | SERVERS, {"name": "selsync", "aggregate": "gradient"}),
    {"name": "bsp", "codec": "qsgd", "codec_down": {"name": "random_k", "ratio": 0.3}} | SERVERS,
    {"name": "local_sgd", "codec": TOP, "local_momentum": "kept"},
    {"name": "power_sgd", "start_iter": 2, "min_compression_rate": 1.0},
    ONE_BIT,
    {"name": "strategy_switch", "first": {"name": "bsp"} | BOTH, "second": "all_reduce"} | HALFWAY,
    {"name": "strategy_switch", "first": "local_sgd", "second": {"name": "bsp"} | BOTH, "momentum": "keep"}
    | HALFWAY,
]


@pytest.mark.by_day(6)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", BARRIERS, ids=json.dumps)
def test_under_a_barrier_a_run_goes_on_as_if_it_had_never_stopped(strategy, tmp_path):
    """Parameters, times, and every row of the log; momentum and the memory of codecs included."""
    experiment = toy(strategy, checkpoint_every=0.8)  # the last is written as the run ends
    whole = run(experiment, folder=tmp_path / "whole")
    found = checkpoints(tmp_path / "whole")
    assert len(found) >= 2
    for path in (found[0], found[-1]):
        again = run(experiment, start=path)
        assert torch.equal(again.parameters, whole.parameters)
        assert again.log.digest() == whole.log.digest()
        assert again.meta["reason"] == whole.meta["reason"]
        replay(again)


@pytest.mark.parametrize("optimizer", ["adam", {"name": "sgd", "milestones": [1, 3]}], ids=str)
def test_with_other_optimizers_too(optimizer, tmp_path):
    experiment = toy("bsp", optimizer=optimizer)
    whole = run(experiment, folder=tmp_path)
    again = run(experiment, start=checkpoints(tmp_path)[0])
    assert torch.equal(again.parameters, whole.parameters)


def test_an_evaluation_that_was_under_way_live_is_of_the_model_now(tmp_path):
    """A live checkpoint says which was; the model that it was of is gone."""
    experiment = toy("bsp", evaluate_every=1.0)
    run(experiment, folder=tmp_path)
    checkpoint = Checkpoint.load(checkpoints(tmp_path)[0])
    version = checkpoint.state["engine"]["view"]["version"]
    for awaited in ([], [1]):
        live = replace(checkpoint, state=checkpoint.state | {"awaited": awaited})
        live.save(path := tmp_path / "live.npz")
        again = run(experiment, start=path).log.of_kind(Kind.EVALUATED)
        assert ((1, version) in set(zip(again["id"], again["version"], strict=True))) is bool(awaited)


@pytest.mark.slow
def test_a_longer_run_is_the_one_that_was_long_from_the_beginning(tmp_path):
    short = run(toy({"name": "bsp"} | BOTH), folder=tmp_path / "short")
    again = resume(tmp_path / "short", {"stop.epochs": 7, "evaluate_every": 1.0}, folder=tmp_path / "long")
    long = run(toy({"name": "bsp"} | BOTH, stop={"epochs": 7}))
    assert again.log.digest() == long.log.digest()
    assert torch.equal(again.parameters, long.parameters)
    assert len(short.log) < len(long.log)
    assert Run.load(tmp_path / "long").log.digest() == long.log.digest()
    # the first checkpoint in another folder has the log from the beginning
    path = checkpoints(tmp_path / "long")[0]
    shutil.rmtree(tmp_path / "short")
    log = log_of(path, Checkpoint.load(path))
    assert log.rows().tobytes() == long.log.rows(0, len(log)).tobytes()


ASYNCHRONOUS = [
    *("asp", "ssp", "k_asp", "k_batch_asp", "bounded_step", "osp", "hermes", "elastic_bsp", "dbs_sgd"),
    *(
        {"name": "asp"} | BOTH | SERVERS,
        {"name": "strategy_switch", "first": "asp", "second": "bsp"} | HALFWAY,
    ),
]


@pytest.mark.by_day(4)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ASYNCHRONOUS, ids=json.dumps)
def test_what_was_under_way_is_void_and_everything_else_goes_on(strategy, tmp_path):
    whole = run(toy(strategy), folder=tmp_path)
    path = checkpoints(tmp_path)[0]
    again = run(toy(strategy), start=path)
    state = Checkpoint.load(path).state
    before = log_of(path, Checkpoint.load(path))
    assert again.log.rows(0, len(before)).tobytes() == whole.log.rows(0, len(before)).tobytes()
    rest = again.log.rows(len(before))
    assert (rest["time_s"] >= state["time_s"]).all()
    assert (np.diff(rest["time_s"]) >= 0).all()
    versions = again.log.of_kind(Kind.APPLY)["version"]
    assert sorted(set(versions.tolist())) == list(range(1, versions.max() + 1))  # v goes on where it was
    assert again.meta["reason"] == whole.meta["reason"]
    assert again.log.evaluations()[-1]["train_loss"] < again.log.evaluations()[0]["train_loss"]
    replay(again)
    same = run(toy(strategy), start=path)
    assert same.log.digest() == again.log.digest()


OVERLAPPING = [
    {"name": "eager_diloco", "local_steps": 2},
    {"name": "streaming_diloco", "local_steps": 4, "overlap": 1},
    {"name": "streaming_diloco", "local_steps": 4, "overlap": 1, "mixing": 0.0, "codec": "e3m0"},
]


@pytest.mark.parametrize("strategy", OVERLAPPING, ids=json.dumps)
def test_beside_a_push_a_run_goes_on_with_the_bits_that_it_would_have_had(strategy, tmp_path):
    """Each batch is taken once, each worker goes on from its own model, and only times differ."""
    experiment = toy(strategy, cluster={"workers": 3, "speed": [1.0, 0.5, 0.7]}, stop={"epochs": 6})
    whole = run(experiment, folder=tmp_path / "whole")
    again = run(experiment, start=checkpoints(tmp_path / "whole")[0], folder=tmp_path / "again")
    assert torch.equal(again.parameters, whole.parameters)
    for one, other in zip(again.log.evaluations(), whole.log.evaluations(), strict=True):
        assert one["val_loss"] == other["val_loss"]
    for kind in (Kind.PUSH, Kind.RELEASE):  # fragments and not the whole model are sent
        rows = [each.log.of_kind(kind) for each in (whole, again)]
        sent = [sorted(zip(each["worker"], each["samples"], each["bytes"], strict=True)) for each in rows]
        assert sent[0] == sent[1]
    assert any("in the middle of steps" in each for each in again.summary()["warnings"])
    assert not any("in the middle of steps" in each for each in whole.summary()["warnings"])
    replay(again)
    if strategy["name"] == "eager_diloco":  # whose workers' outer models have the server's as their mean
        tensors = Checkpoint.load(checkpoints(tmp_path / "again")[-1]).tensors
        mean = sum(tensors[f"worker/{worker}/model/state/x"] for worker in range(3)) / 3
        assert torch.allclose(mean, tensors["parameters"], atol=1e-5)


REPEATING = [
    *("asp", "ssp", "dc_asgd", "easgd", "k_asp"),
    *({"name": "asp"} | BOTH | SERVERS, {"name": "fedbuff"}),
]


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", REPEATING, ids=json.dumps)
def test_steps_are_repeated_from_what_their_worker_held(strategy, tmp_path):
    """The next push of each worker has base, samples and loss as in the run that was not stopped."""
    machines = {"workers": 3, "speed": [1.0, 0.5, 0.7]}
    experiment = toy(strategy, cluster=machines, optimizer={"name": "sgd", "lr": 0.05}, stop={"epochs": 12})
    whole = run(experiment, folder=tmp_path)
    path = checkpoints(tmp_path)[0]
    again = run(experiment, start=path)
    at = len(log_of(path, Checkpoint.load(path)))
    text = json.loads(again.log.text(again.log.of_kind(Kind.RESUME)["text"][0]))
    assert text["again"]
    compared = 0
    for worker in text["again"]:
        rows = [each.log.rows(at) for each in (whole, again)]
        pushes = [each[(each["kind"] == Kind.PUSH) & (each["worker"] == worker)] for each in rows]
        if len(pushes[0]) and len(pushes[1]):
            compared += 1
            for name in ("samples", "steps", "version", "loss"):
                assert pushes[0][name][0] == pushes[1][name][0]
    assert compared
    replay(again)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::psbench.errors.DoubtfulComposition")
@pytest.mark.parametrize("strategy", sorted(CATALOGUE))
def test_a_resume_is_bit_by_bit_or_says_so(strategy, tmp_path, monkeypatch):
    """And what is evaluated is near what it would have been, whatever its workers had under way.

    The next push of a worker that takes its steps again, or that waited and is released with the version
    that it would have got, has the same entries: they depend on all that the worker holds, such as its own
    model, the model that it measures its steps from, momentum and memory. Beside a push, steps may meet the
    answer at another step.
    """
    pushes = recorded_pushes(monkeypatch)
    optimizer = {"name": "sgd", "lr": 0.02, "momentum": 0.0 if strategy == "one_bit_adam" else 0.9}
    machines = {"workers": 3, "speed": [1.0, 0.5, 0.7]}
    experiment = toy(strategy, cluster=machines, optimizer=optimizer, stop={"epochs": 6})
    whole, expected = run(experiment, folder=tmp_path), [*pushes]
    assert len(expected) == len(whole.log.of_kind(Kind.PUSH)["worker"])
    for path in checkpoints(tmp_path)[:-1]:
        pushes.clear()
        again = run(experiment, start=path)
        said = any("in the middle of steps" in each for each in again.summary()["warnings"])
        assert said or torch.equal(again.parameters, whole.parameters)
        assert not (said and again.log.digest() == whole.log.digest())
        losses = [[each["val_loss"] for each in one.log.evaluations()][:-1] for one in (again, whole)]
        np.testing.assert_allclose(*losses, atol=0.08)  # the last is wherever the budget ends the run
        before = log_of(path, Checkpoint.load(path)).of_kind(Kind.PUSH)["worker"]
        would_be, found = next_pushes(expected[len(before) :]), next_pushes(pushes)
        text = json.loads(again.log.text(again.log.of_kind(Kind.RESUME)["text"][0])) if said else {}
        repeated = {*text.get("again", ())}
        for worker in would_be.keys() & found.keys():
            if worker in repeated and strategy in BESIDE_A_PUSH:
                continue
            if worker in repeated or found[worker]["version"] == would_be[worker]["version"]:
                but = {"entries": ""} if strategy in MIXED_MEANWHILE else {}
                assert found[worker] | but == would_be[worker] | but


#: whose answers come while they compute
BESIDE_A_PUSH = {"decoupled_diloco", "eager_diloco", "osp"}
#: whose models neighbours mix with their own while they compute, earlier or later in a resumed run
MIXED_MEANWHILE = {"ad_psgd"}


def recorded_pushes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return a list to which each push of simulated workers is added as it arrives."""
    pushes: list[dict[str, Any]] = []
    receive = Workers.payload

    def record(workers: Workers, push: Push) -> Any:
        vector, buffers = received = receive(workers, push)
        entries = hashlib.sha256(vector.numpy().tobytes() + buffers.numpy().tobytes()).hexdigest()
        facts = {
            "version": push.base_version,
            "samples": push.samples,
            "steps": push.steps,
            "loss": push.loss,
        }
        pushes.append({"worker": push.worker, "entries": entries} | facts)
        return received

    monkeypatch.setattr(Workers, "payload", record)
    return pushes


def next_pushes(pushes: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return each worker's first push."""
    return {push["worker"]: push for push in reversed(pushes)}


def test_void_steps_are_taken_again_with_their_batches_and_times(tmp_path):
    """One worker of ASP, caught in mid-step by the other's checkpoint, has lost nothing but time."""
    experiment = toy("asp", cluster={"workers": 2, "speed": [1.0, 0.1], "step_time": "shifted_exponential"})
    run(experiment, folder=tmp_path)
    path = checkpoints(tmp_path)[0]
    state = Checkpoint.load(path).state
    log = log_of(path, Checkpoint.load(path))
    pushes = log.of_kind(Kind.PUSH)
    for worker in (0, 1):
        done = int((pushes["worker"] == worker).sum())
        # the pusher's release is still before it, the other's step is given back
        assert state["workers"][str(worker)]["used"] == done
        assert state["workers"][str(worker)]["position"][1] == done


def test_residuals_are_in_a_checkpoint_as_of_the_last_answer(tmp_path):
    whole = run(toy({"name": "asp"} | BOTH), folder=tmp_path)
    tensors = Checkpoint.load(checkpoints(tmp_path)[1]).tensors
    memories = [tensors[f"worker/{worker}/residual"] for worker in range(3)]
    assert all(memory.abs().max() > 0 for memory in memories)
    assert whole.meta["num_parameters"] == len(memories[0])


# ---------------------------------------------------------------- how a run ended


@pytest.mark.slow
def test_a_run_that_was_stopped_by_hand_goes_on_in_its_folder(tmp_path):
    experiment, control = toy("bsp", stop={"epochs": 12}), Control()

    def stop_soon(log: EventLog) -> None:
        if len(log) > 400:
            control.stop()

    stopped = run(experiment, folder=tmp_path, control=control, observer=stop_soon)
    assert stopped.meta["status"] == "stopped"
    whole = run(experiment)
    again = resume(tmp_path)
    assert again.log.digest() == whole.log.digest()
    assert Run.load(tmp_path).log.digest() == whole.log.digest()
    assert resume(tmp_path).log.digest() == whole.log.digest()  # nothing is left to do but the end


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_from_what_it_has_written(tmp_path, capsys):
    folder = tmp_path / "run"
    settings = ["strategy=bsp", "cluster={workers: 3}", "stop={epochs: 100000}", "checkpoint_every=1"]
    chosen = [text for setting in settings for text in ("--set", setting)]
    command = [sys.executable, "-m", "psbench", "run", *chosen, "--out", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[1]) as process:
        until = time.monotonic() + 240
        while len(checkpoints(folder)) < 4 and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert not (folder / "run.json").exists()
    last = Checkpoint.state_of(find(folder))["engine"]["view"]
    epochs = last["samples"] / last["dataset_size"] + 1
    assert main(["resume", str(folder), "--set", f"stop.epochs={epochs}", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["updates"] > last["version"]
    done = Run.load(folder)
    replay(done)
    assert done.log.of_kind(Kind.APPLY)["version"][0] == 1


def test_a_run_that_has_ended_has_nothing_left_to_do(tmp_path):
    experiment = toy("asp", stop={"epochs": 3.4})
    done = run(experiment, folder=tmp_path)
    last = Checkpoint.state_of(find(tmp_path))["engine"]["view"]
    assert last["samples"] / last["dataset_size"] >= 3.4
    again = resume(tmp_path)
    assert again.meta["status"] == "finished"
    assert again.log.of_kind(Kind.APPLY)["version"][-1] == done.log.of_kind(Kind.APPLY)["version"][-1]


def test_later_checkpoints_make_room_for_those_of_the_run_that_goes_on(tmp_path):
    run(toy("asp"), folder=tmp_path)
    first, second = checkpoints(tmp_path)
    again = resume(first, {"stop": {"epochs": 3}})
    assert not second.exists()
    assert first.exists()
    assert again.meta["checkpoints"] == []


# ---------------------------------------------------------------- what is refused


def test_a_checkpoint_of_another_experiment_is_refused_by_name(tmp_path, capsys):
    run(toy("bsp"), folder=tmp_path)
    for changed, field in (
        (toy("asp"), "strategy.name was 'bsp' and is 'asp'"),
        (toy("bsp", seed=3), "seed was 0 and is 3"),
        (toy("bsp", model="mlp"), "model.name was 'linear' and is 'mlp'"),
        (toy("bsp", cluster={"workers": 4}), "cluster"),
        (toy("bsp", optimizer={"name": "sgd", "lr": 0.5}), "optimizer.lr was 0.1 and is 0.5"),
        (toy("bsp", timing_only=True), "cannot be resumed as timing-only"),
    ):
        with pytest.raises(SpecError, match=field):
            run(changed, start=tmp_path)
    assert main(["resume", str(tmp_path), "--set", "batch_size=24"]) != 0
    assert _difference({"codec": None}, {"codec": TOP}, "strategy").startswith("strategy.codec was None and")
    said = capsys.readouterr().err
    assert "batch_size was 12 and is 24; only these may change: name, stop, " in said
    assert said.rstrip().endswith(", recovery")


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(DataError, match="no checkpoint to resume from"):
        resume(tmp_path)
    run(toy("bsp", checkpoint_every=None), folder=tmp_path / "run")
    with pytest.raises(DataError, match="without the state needed to resume; a run with checkpoint_every"):
        resume(tmp_path / "run" / "model.npz")
    run(toy("bsp"), folder=tmp_path / "two")
    first, second = checkpoints(tmp_path / "two")
    first.unlink()
    with pytest.raises(DataError, match=f"begins in {first.name}"):
        resume(second)
    second.write_bytes(second.read_bytes()[:100])
    with pytest.raises(DataError, match="not a checkpoint"):
        resume(second)


def test_a_stop_rule_that_is_met_already_is_refused(tmp_path, capsys):
    experiment = toy("bsp", stop={"epochs": 3})
    whole = run(experiment, folder=tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    last = Checkpoint.state_of(find(tmp_path / "run"))["time_s"]
    low = {"stop.epochs": 1, "stop.updates": 2, "stop.seconds": 0.5 * last}
    for name, limit in (*low.items(), ("stop.epochs", 2.5)):  # after its checkpoint, before its record's end
        for backend in ("simulated", "dask"):
            with pytest.raises(SpecError, match=f"^{name}: .* is not more than"):
                resume(tmp_path / "run", {name: limit, "backend": backend})
        assert main(["resume", str(tmp_path / "run"), "--set", f"{name}={limit}"]) == 2
        assert "give a larger value" in capsys.readouterr().err.splitlines()[-1]
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    assert resume(tmp_path / "run").log.digest() == whole.log.digest()  # its own rule is no new one
    elsewhere = resume(tmp_path / "run", {"stop.epochs": 2.5}, folder=tmp_path / "other")
    assert elsewhere.summary()["epochs"] < 3
    reached = Checkpoint.state_of(find(tmp_path / "run"))["engine"]["view"]["version"]
    at_once = resume(tmp_path / "run", {"stop.updates": reached}, folder=tmp_path / "at once")
    assert at_once.summary()["updates"] == reached


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:500])


def with_a_wrong_array(path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = content.index(b"parameters.npy") + 300
    content[at] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut_short, with_a_wrong_array])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(damage, tmp_path, capsys):
    experiment = toy("bsp", checkpoint_every=1)
    whole = run(experiment, folder=tmp_path)
    last = find(tmp_path)
    damage(last)
    again = resume(tmp_path)
    assert find(tmp_path).name == last.name  # made again
    assert again.log.digest() == whole.log.digest()
    assert f"{last.name}: cannot be read; the run resumes from epoch-" in capsys.readouterr().err
    assert sum(last.name in each for each in again.summary()["warnings"]) == 1
    damage(last)
    with pytest.raises(DataError, match=last.name):
        resume(last)  # named, it is meant
    for path in checkpoints(tmp_path):
        cut_short(path)
    with pytest.raises(DataError) as refused:
        resume(tmp_path)
    assert all(path.name in str(refused.value) for path in checkpoints(tmp_path))


class Executes:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.folder,)


def test_nothing_in_a_file_is_executed(tmp_path):
    content = np.array([Executes(tmp_path / "made")], dtype=object)
    np.savez(tmp_path / "a.npz", state=np.array("{}"), parameters=content)
    np.savez(tmp_path / "b.npz", state=content)
    for name in ("a", "b"):
        with pytest.raises(DataError, match="not a checkpoint"):
            Checkpoint.load(tmp_path / f"{name}.npz")
    with pytest.raises(DataError, match="not a checkpoint"):
        Checkpoint.state_of(tmp_path / "b.npz")
    assert not (tmp_path / "made").exists()


# ---------------------------------------------------------------- pieces


def test_timing_only_runs_go_on_too(tmp_path):
    experiment = toy("asp", timing_only=True)
    run(experiment, folder=tmp_path)
    assert run(experiment, start=tmp_path).meta["status"] == "finished"


def test_equal_tensors_are_stored_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("psbench.checkpoints.file.check_memory", lambda needed, *_: asked.append(needed))
    one = torch.arange(100_000, dtype=torch.float32)
    tensors = {"a": one, "b": one.clone(), "c": one + 1}
    # of the same bytes, and not equal
    tensors |= {
        "row": torch.zeros(4),
        "square": torch.zeros(2, 2),
        "whole": torch.zeros(4, dtype=torch.int32),
    }
    path = Checkpoint(tensors, {}).save(tmp_path / "x.npz")
    assert path.stat().st_size < 2.2 * 400_000
    loaded = Checkpoint.load(path).tensors
    assert 800_000 <= asked[0] < 810_000
    for name, tensor in tensors.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(loaded[name], tensor)


@pytest.mark.parametrize("ordered", [True, False])
def test_batches_go_on_from_anywhere(ordered):
    shard = np.arange(7)
    straight = Batches(shard, Streams(0), 0, ordered)
    taken = 0
    for size in (3, 4, 5, 9, 7, 1, 20):
        again = Batches(shard, Streams(0), 0, ordered)
        again.skip_to(taken)
        assert again.taken == taken
        assert np.array_equal(again.take(size), straight.take(size))
        taken += size
        assert again.taken == straight.taken == taken


@pytest.mark.parametrize("begun", [0, 1, 3, 7])
def test_a_worker_goes_on_in_the_middle_of_its_chunk(begun):
    """Its chunk of 32 is gone through again and again, five at a time, as if it had never been away."""
    workload = Workload.build(toy("hermes"))
    straight, again = workload.trainer(), workload.trainer()
    straight.start(1, 9)  # of its shard, before the chunk
    straight.assign(1, 32)
    taken = [straight.start(1, 5).indices for _ in range(begun)]
    position = straight.position(1)
    assert position[2:] == (1, 32, 5 * begun)
    again.go_to(1, BatchPosition(*json.loads(json.dumps(position))))
    rest = [trainer.start(1, 5).indices for trainer in (straight, again) for _ in range(8)]
    for one, other in zip(rest[:8], rest[8:], strict=True):
        assert np.array_equal(one, other)
    chunk = np.concatenate([*taken, *rest[:8]])
    for at in range(0, 32 * ((begun + 8) * 5 // 32), 32):  # each pass has the samples of the chunk
        assert sorted(chunk[at : at + 32]) == sorted(chunk[:32])
