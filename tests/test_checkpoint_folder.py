"""What a run's folder of checkpoints holds: how many are kept, and what happens if one cannot be written."""

import errno
from pathlib import Path

import numpy as np
import pytest
import torch

from psbench import Control, Run, resume
from psbench.checkpoints.chain import find, log_of
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.folder import CheckpointFolder
from psbench.core.log import EventLog, Kind
from psbench.runs.execution import run
from psbench.testing import toy_experiment


def spec(**changes):
    settings = {"stop": {"epochs": 1.0}, "checkpoint_every": 0.1, "cluster": {"workers": 2}}
    return toy_experiment("bsp", **settings | changes)


@pytest.fixture(scope="module")
def undisturbed():
    return run(spec())


def same(run, other):
    return (run.meta["params_digest"], run.log.digest()) == (other.meta["params_digest"], other.log.digest())


@pytest.mark.parametrize("keep", [1, 3])
def test_so_many_checkpoints_are_kept_and_a_run_goes_on_from_each(keep, undisturbed, tmp_path):
    done = run(spec(recovery={"keep": keep}), folder=tmp_path / "run")
    files = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert len(files) == keep
    assert sorted(done.meta["checkpoints"]) == [str(file) for file in files]
    assert done.meta["incidents"] == []
    for number, file in enumerate(files):
        assert same(resume(file, folder=tmp_path / f"again {number}"), undisturbed)


@pytest.mark.parametrize("keep", [None, 2])
def test_each_checkpoint_has_the_rows_and_texts_of_the_log_until_then(keep, tmp_path):
    done = run(toy_experiment("ssp", checkpoint_every=0.1, recovery={"keep": keep}), folder=tmp_path)
    whole = (done.log.rows().tobytes(), list(done.log.texts))
    paths = [Path(path) for path in done.meta["checkpoints"]]
    assert len(paths) == keep or len(paths) > 10
    for path in paths:
        log = log_of(path, Checkpoint.load(path))
        rows, texts = log.rows(), list(log.texts)
        assert rows.tobytes() == whole[0][: rows.nbytes]
        assert texts == whole[1][: len(texts)]
        assert int(rows["text"].max()) < len(texts)
        assert [log.text(number) for number in rows["text"]] == done.log.texts_of(0, len(rows))
    assert len(log.rows()) > 0.8 * len(done.log)


def test_a_checkpoint_leaves_out_what_was_logged_after_its_moment(tmp_path):
    """A live run's arrives while training goes on: it says how much of the log belongs to it."""
    log = EventLog()
    folder = CheckpointFolder(tmp_path, "one", log)
    for number, (rows, texts) in enumerate([(2, 2), (5, 4), (9, 6)]):
        while len(log) < rows + 3:
            log.add(Kind.HOLD, float(len(log)), text=f"reason {len(log) // 2}")
        state = {"logged": (rows, texts)}
        folder.write(f"epoch-{number}", Checkpoint({"parameters": torch.zeros(2)}, state))
    parts = [Checkpoint.load(path).state["log"] for path in folder.paths]
    assert [part["rows"] for part in parts] == [2, 5, 9]
    assert [part["after"] for part in parts] == ["", "epoch-0.npz", "epoch-1.npz"]
    assert [text for part in parts for text in part["texts"]] == ["", *(f"reason {n}" for n in range(5))]
    assert [len(part["texts"]) for part in parts] == [2, 2, 2]


def test_a_resumed_run_prunes_what_the_first_part_has_left(undisturbed, tmp_path):
    run(spec(stop={"epochs": 0.55}), folder=tmp_path)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 5
    again = resume(tmp_path, {"stop.epochs": 1.0, "recovery.keep": 2})
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert again.meta["params_digest"] == undisturbed.meta["params_digest"]
    assert resume(tmp_path).meta["params_digest"] == undisturbed.meta["params_digest"]


@pytest.mark.parametrize("failing", [{0}, {2, 3}, {7}])
def test_a_full_disk_costs_the_checkpoints_that_did_not_fit(failing, undisturbed, tmp_path, monkeypatch):
    savez, calls = np.savez, iter(range(100))

    def full(file, **arrays):
        if next(calls) in failing:
            file.write(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        savez(file, **arrays)

    monkeypatch.setattr(np, "savez", full)
    done = run(spec(), folder=tmp_path / "run")
    monkeypatch.undo()
    assert same(done, undisturbed)
    assert len(done.meta["incidents"]) == len(failing)
    assert all("No space left on device" in incident for incident in done.summary()["warnings"])
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 8 - len(failing)
    assert same(resume(find(tmp_path / "run"), folder=tmp_path / "again"), undisturbed)


def test_a_folder_that_is_gone_in_mid_run_is_tried_again(undisturbed, tmp_path):
    folder = tmp_path / "run" / "checkpoints"

    def disturb(log):
        if folder.is_dir() and not (tmp_path / "away").exists():
            folder.rename(tmp_path / "away")
            folder.write_text("somebody else's file")
        elif folder.is_file() and disturb.calls > 3:
            folder.unlink()
            (tmp_path / "away").rename(folder)
        disturb.calls += 1

    disturb.calls = 0
    done = run(spec(stop={"epochs": 3.0}), folder=tmp_path / "run", observer=disturb)
    assert any("cannot be made" in incident for incident in done.meta["incidents"])
    assert Run.load(tmp_path / "run").meta["incidents"] == done.meta["incidents"]
    assert resume(tmp_path / "run", folder=tmp_path / "again").log.digest() == done.log.digest()


def stopping_after(rows):
    control = Control()

    def observer(log):
        if len(log) > rows:
            control.stop()

    return {"control": control, "observer": observer}


def test_a_barrier_continues_bit_by_bit_from_the_checkpoint_of_a_stop(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr("psbench.backends.simulated.simulation.OBSERVE_EVERY", 1)
    stopped = run(spec(checkpoint_every=None), folder=tmp_path, **stopping_after(20))
    assert stopped.meta["status"] == "stopped"
    assert [Path(path).name for path in stopped.meta["checkpoints"]] == [
        f"stopped-version-{stopped.summary()['updates']}.npz"
    ]
    assert same(resume(tmp_path), undisturbed)


@pytest.mark.parametrize("strategy", ["asp", "hermes", {"name": "selsync", "delta": 1e9}], ids=str)
def test_a_stop_leaves_a_checkpoint_whatever_is_under_way(strategy, tmp_path):
    experiment = toy_experiment(strategy, stop={"epochs": 1e6})
    stopped = run(experiment, folder=tmp_path, **stopping_after(300))
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    assert checkpoint.stem.startswith("stopped")
    again = resume(tmp_path, {"stop.epochs": stopped.summary()["epochs"] + 2})
    versions = again.log.of_kind(Kind.APPLY)["version"].tolist()
    assert sorted({*versions}) == list(range(1, max(versions, default=0) + 1))
    assert again.meta["status"] == "finished"


def test_a_stop_without_a_folder_is_at_once():
    assert run(spec(), **stopping_after(20)).meta["checkpoints"] == []
