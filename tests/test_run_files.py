"""The files of a run: whose they are, how they are written, and what is refused of a checkpoint."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from psbench import DataError, Run, SpecError, resume, write_report
from psbench.checkpoints.chain import find
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.folder import CheckpointFolder
from psbench.cli import main
from psbench.cli.execution import save_elsewhere
from psbench.core.log import EventLog
from psbench.data import generate
from psbench.errors import NotSaved
from psbench.results.storage import write_log
from psbench.runs.execution import run
from psbench.system.claims import CLAIM, ClaimLost, claimed, take_over
from psbench.system.files import atomic_write, check_writable
from psbench.testing import toy_experiment


def toy(strategy: Any = "bsp", **changes: Any) -> Any:
    return toy_experiment(strategy, **{"stop": {"epochs": 2}, "checkpoint_every": 0.9} | changes)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with two checkpoints; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("made") / "run"
    run(toy("ssp", optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9}), folder=folder)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "run"))


# ---------------------------------------------------------------- one folder, one run


def test_every_file_of_a_run_carries_its_identity(folder):
    done = Run.load(folder)
    assert re.fullmatch("[0-9a-f]{32}", done.run_id)
    assert (folder / "experiment.yaml").read_text().startswith(f"# run {done.run_id}\n")
    for path in (folder / "model.npz", *(folder / "checkpoints").iterdir()):
        assert Checkpoint.state_of(path)["run_id"] == done.run_id
    assert yaml.safe_load((folder / "experiment.yaml").read_text()) == done.experiment.spec()


def test_equal_runs_are_two_runs_and_equal_in_everything_that_is_compared(folder, tmp_path):
    before = Run.load(folder)
    again = run(before.experiment, folder=tmp_path / "again")
    assert again.run_id != before.run_id
    assert again.log.digest() == before.log.digest()
    summaries = [one.summary() | {"wall_s": None} for one in (before, again)]
    assert summaries[0] == summaries[1]


def test_a_folder_of_another_run_is_refused_before_anything_is_computed(folder, capsys):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(SpecError, match=r"holds another run \(run.json and \d more files\).*overwrite=True"):
        run(toy(stop={"epochs": 1}), folder=folder)
    assert main(["run", "--set", "stop={updates: 1}", "--out", str(folder)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    with pytest.raises(SpecError, match="holds another run"):
        run(toy()).save(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_run_that_was_killed_is_another_run_too(folder):
    for name in ("run.json", "log.parquet", "experiment.yaml", "model.npz"):
        (folder / name).unlink()
    with pytest.raises(SpecError, match=r"holds another run \(checkpoints"):
        run(toy(), folder=folder)


def test_another_run_is_replaced_when_told_so(folder, capsys):
    (folder / "notes.txt").write_text("mine")
    done = run(toy(stop={"epochs": 1.5}), folder=folder, overwrite=True)
    names = [Path(path).name for path in done.meta["checkpoints"]]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == names
    assert (folder / "notes.txt").read_text() == "mine"
    assert resume(folder).log.digest() == done.log.digest()
    argv = ["run", "--set", "stop={updates: 3}", "--set", "strategy=asp", "--out", str(folder), "--overwrite"]
    assert main(argv) == 0
    assert not list((folder / "checkpoints").iterdir())


def test_several_runs_are_refused_before_the_first(folder, tmp_path, capsys):
    (tmp_path / "one.yaml").write_text("{strategy: asp, stop: {updates: 2}, cluster: {workers: 2}}")
    shutil.copytree(folder, tmp_path / "out/asp-seed1")
    argv = ["compare", str(tmp_path / "one.yaml"), "--seeds", "2", "--out", str(tmp_path / "out")]
    assert main(argv) == 2
    assert "asp-seed1: holds another run" in capsys.readouterr().err
    assert not (tmp_path / "out/asp-seed0").exists()
    assert main([*argv, "--overwrite"]) == 0


def test_a_search_leaves_other_runs_in_its_folder_alone(folder, tmp_path):
    """The folders of its own runs are named by the digests of their specifications."""
    other = Path(shutil.copytree(folder, tmp_path / "search/sync_switch-seed0"))
    before = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    argv = ["search", "--set", "stop.epochs=2", "--runs", "1", "--halvings", "1", "--processes", "1"]
    assert main([*argv, "--out", str(tmp_path / "search")]) == 0
    assert {path: path.read_bytes() for path in other.rglob("*") if path.is_file()} == before
    assert len(list((tmp_path / "search").iterdir())) == 3


def test_a_resumed_run_is_the_same_run_at_home_and_another_elsewhere(folder, tmp_path):
    before = Run.load(folder).run_id
    assert resume(folder, {"stop.epochs": 3}).run_id == before
    assert Run.load(folder).run_id == before
    elsewhere = resume(folder, {"stop.epochs": 4}, folder=tmp_path / "elsewhere")
    assert elsewhere.run_id == Run.load(tmp_path / "elsewhere").run_id != before
    with pytest.raises(SpecError, match="holds another run"):
        resume(folder, folder=tmp_path / "elsewhere")


def test_checkpoints_of_two_runs_in_one_folder_are_refused(folder, tmp_path):
    """As an older version left them where one folder was used twice; the longer run's were the last."""
    run(toy("ssp", stop={"epochs": 4}), folder=tmp_path / "longer")
    last = find(tmp_path / "longer")
    shutil.copy(last, folder / "checkpoints")
    with pytest.raises(DataError, match=r"belongs to a different run from .* beside it"):
        resume(folder)
    own = Checkpoint.load(last)
    own.state["run_id"] = Run.load(folder).run_id
    own.state["log"]["after"] = min(path.name for path in (folder / "checkpoints").iterdir())
    own.save(folder / "checkpoints" / last.name)
    with pytest.raises(DataError, match=r"expects a log of \d+ rows.* one of them belongs to another run"):
        resume(folder)


@pytest.mark.parametrize("name", ["log.parquet", "model.npz", "experiment.yaml"])
def test_files_of_two_runs_are_no_run(name, folder, tmp_path):
    other = run(toy("asp"), folder=tmp_path / "other")
    shutil.copy(tmp_path / "other" / name, folder)
    with pytest.raises(DataError, match=rf"{name}: belongs to a different run \('{other.run_id}'\)"):
        Run.load(folder)


# ---------------------------------------------------------------- how files are written


def test_a_planted_link_is_not_followed(folder, tmp_path):
    """`run.json.part` could be foretold: whoever may write to the folder had any file overwritten."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    names = ("run.json", "log.parquet", "experiment.yaml", "model.npz", f".psbench-{os.getpid()}")
    for name in names:
        for planted in (folder / f"{name}.part", (folder / name).with_suffix(".part")):
            planted.unlink(missing_ok=True)
            planted.symlink_to(victim)
    (folder / "log.parquet").unlink()
    (folder / "log.parquet").symlink_to(victim)  # the file itself: replaced, not followed
    done = run(toy("ssp"), folder=folder, overwrite=True)
    assert victim.read_text() == "precious"
    assert Run.load(folder).log.digest() == done.log.digest()
    assert not (folder / "log.parquet").is_symlink()


WRITERS = {
    "log": lambda path: write_log(EventLog(), path.with_suffix(".parquet")),
    "checkpoint": lambda path: Checkpoint({"a": torch.zeros(2)}, {}).save(path.with_suffix(".npz")),
    "table": lambda path: generate("higgs", path.with_suffix(".csv"), 3),
    "report": lambda path: write_report(path, run(toy(stop={"epochs": 1}))),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_whatever_is_written_is_written_exclusively(write, tmp_path, monkeypatch):
    monkeypatch.setattr("psbench.system.files.secrets.token_hex", lambda count: "chosen")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.psbench-chosen.part").symlink_to(victim)
    with pytest.raises(SpecError, match="cannot be written: "):
        write(tmp_path / "out/file")
    assert victim.read_text() == "precious"


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write(b"half" * (1 // 0))
    assert [each.read_text() for each in tmp_path.iterdir()] == ["before"]
    with atomic_write(path) as file:
        file.write(b"after")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["after"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="is not a regular file"), atomic_write(tmp_path / "pipe"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("name", ["n" * 300, "a\0b"])
def test_a_name_that_no_folder_can_have_is_refused(name, tmp_path):
    with pytest.raises(SpecError, match="choose another output folder"):
        check_writable(tmp_path / name)


# ---------------------------------------------------------------- what is refused of a checkpoint


def test_checkpoints_of_one_label_are_two_files(tmp_path):
    """Epochs far apart may be called alike; the second then named itself as the one before it."""
    writer = CheckpointFolder(tmp_path, "0", EventLog())
    for _ in range(3):
        writer.write("epoch-1e+06", Checkpoint({}, {}))
    before = [Checkpoint.state_of(Path(path))["log"]["after"] for path in writer.paths]
    assert before == ["", "epoch-1e+06.npz", "epoch-1e+06-2.npz"]


def set_state(path: str, value: Any) -> Any:
    def change(checkpoint: Checkpoint) -> None:
        *parents, last = path.split(".")
        at: Any = checkpoint.state
        for key in parents:
            at = at[int(key)] if isinstance(at, list) else at[key]
        at[int(last) if isinstance(at, list) else last] = value

    return change


def set_tensor(name: str, value: Any) -> Any:
    def change(checkpoint: Checkpoint) -> None:
        checkpoint.tensors[name] = value(checkpoint.tensors[name])

    return change


def without(name: str) -> Any:
    return lambda checkpoint: checkpoint.tensors.pop(name)


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone().index_fill_(0, torch.tensor([1]), float("nan"))


DAMAGED = {
    "a chain that names itself": (set_state("log.after", "last.npz"), "form a circle"),
    "a chain that leaves the folder": (set_state("log.after", "../x.npz"), "log.after"),
    "version -5": (set_state("engine.view.version", -5), "engine.view.version: .*got -5"),
    "a version that is a text": (
        set_state("engine.view.version", "7"),
        "engine.view.version: .*whole number",
    ),
    "a time that is none": (set_state("time_s", float("nan")), "time_s"),
    "an empty engine": (set_state("engine", {}), "engine.view: is required"),
    "an engine that is a list": (set_state("engine", []), "engine: .*mapping"),
    "no workers' states": (set_state("workers", None), "workers"),
    "a worker beyond the cluster": (set_state("engine.view.workers.0.id", 7), "worker numbers are"),
    "a worker from the future": (set_state("engine.view.workers.0.base_version", 10**6), "newer version"),
    "an unknown status": (set_state("engine.view.workers.0.status", 9), "status: .*got 9"),
    "another cluster": (set_state("engine.view.num_workers", 30), "num_workers is 30"),
    "another data set": (set_state("engine.view.dataset_size", 7), "dataset_size is 7"),
    "no state of a part": (set_state("engine.parts", {}), "cannot be restored"),
    "a random state that is none": (set_state("engine.view.rng", {"state": 1}), "cannot be restored"),
    "an unknown action": (set_state("rest", [{"do": "run"}]), "rest.0: 'run' is not one of release, "),
    "an action of other fields": (set_state("rest", [{"do": "release", "to": 1}]), "rest.0: release."),
    "an action for nobody": (set_state("rest", [{"do": "tell", "worker": 77, "orders": {}}]), "worker 77"),
    "an event of another kind": (set_state("events", [[0.0, 0, 0, "Boom", {}]]), "'Boom' is not one of"),
    "an event at no time": (set_state("events", [[[], 0, 0, "Join", {"worker": 0}]]), "events.0.0: .*number"),
    "an event of a text": (set_state("events", [[0.0, 0, 0, "Join", {"worker": "0"}]]), "join.worker: "),
    "a link that is a text": (set_state("network.up_free_s", "x"), "network.up_free_s: .*number"),
    "no link": (set_state("network", {}), "network.up_free_s: is required"),
    "stop rules of nothing": (set_state("stop_rules", {}), "stop_rules.evaluations: is required"),
    "clocks of nobody": (set_state("engine.view.clock_counts", [[12, 9]]), "clock_counts"),
    "more who compute than there are": (set_state("engine.view.num_computing", 0), "computing"),
    "a position of one number": (set_state("workers.0.position", [1]), "workers.0.position"),
    "a loop of nothing": (set_state("workers.0.loop", {}), "workers.0.loop.ticket: is required"),
    "a specification that is none": (set_state("spec", {"strategy": "sssp"}), "did you mean 'ssp'"),
    "fewer rows than it says": (set_state("log.rows", 3), "expects a log of 3 rows"),
    "float64 parameters": (set_tensor("parameters", torch.Tensor.double), "'parameters' .*float64"),
    "too few parameters": (set_tensor("parameters", lambda t: t[:-1]), "'parameters' has shape"),
    "parameters of NaN": (set_tensor("parameters", with_nan), "'parameters' has NaN"),
    "no parameters": (without("parameters"), "no tensor 'parameters'"),
    "another optimizer's tensors": (
        set_tensor("optimizer/momentum_buffer", lambda t: t[:3]),
        "'optimizer/momentum_buffer' has shape",
    ),
    "half a row": (set_tensor("log", lambda t: t[:-1]), "incomplete rows"),
    "no log": (without("log"), "its log is missing"),
    "rows of no kind": (set_tensor("log", lambda t: torch.full_like(t, 255)), "of its log has"),
}


@pytest.mark.parametrize(("change", "says"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_checkpoint_is_refused_in_one_line(change, says, made, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("psbench.backends.simulated.simulation.Simulation._perform", None)  # nothing starts
    checkpoint = Checkpoint.load(min((made / "checkpoints").iterdir()))
    change(checkpoint)
    path = checkpoint.save(tmp_path / "checkpoints" / "last.npz")
    assert main(["resume", str(path)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert re.search(says, line), line


@pytest.mark.parametrize("state", ["[" * 100_000, "[]", "7", '{"log": 3}'])
def test_a_file_whose_state_is_none_is_no_checkpoint(state, made, tmp_path):
    path = tmp_path / "last.npz"
    with path.open("wb") as file:
        np.savez(file, state=np.array(state))
    with pytest.raises(DataError, match=r"last\.npz"):
        resume(path)


def test_a_file_that_says_it_is_larger_than_memory_is_not_unpacked(made, tmp_path, monkeypatch):
    path = tmp_path / "last.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("state.npy", b"\0" * 10_000_000)
    monkeypatch.setattr("psbench.system.limits.available_memory", lambda: 1_000_000)
    with pytest.raises(SpecError, match=r"last\.npz: its tensors would need about 10 MB of memory"):
        Checkpoint.load(path)


def test_a_record_that_is_nested_too_deep_is_refused(folder):
    (folder / "run.json").write_text('{"meta":' + "[" * 100_000)
    with pytest.raises(
        DataError, match=r"run\.json: (its numbers or lists are too long|meta: must be a mapping)"
    ):
        Run.load(folder)
    (folder / "run.json").write_text(json.dumps({"meta": []}))
    with pytest.raises(
        DataError, match=r"run\.json: (its numbers or lists are too long|meta: must be a mapping)"
    ):
        Run.load(folder)


def test_a_folder_is_claimed_while_a_run_is_written_to_it(tmp_path):
    held = []

    def beside(log):
        if not held:
            held.append(True)
            for overwrite in (False, True):
                with pytest.raises(SpecError, match="another run is being written to it now"):
                    run(toy(seed=2), folder=tmp_path / "run", overwrite=overwrite)

    first = run(toy(), folder=tmp_path / "run", observer=beside)
    assert held
    assert Run.load(tmp_path / "run").run_id == first.run_id
    assert not (tmp_path / "run" / CLAIM).exists()


def test_a_claim_ends_with_its_process(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from psbench.system.claims import claimed\n"
        "with claimed(Path(sys.argv[1])): print('claimed', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        with pytest.raises(SpecError, match="another run"), claimed(tmp_path):
            pass
        process.kill()
    with claimed(tmp_path):
        assert (tmp_path / CLAIM).exists()  # left by a killed one, and taken over


def test_a_claim_is_taken_over_by_a_process_of_its_owner_alone(tmp_path):
    with claimed(tmp_path, "a director") as first:
        assert not take_over(tmp_path, "")
        assert not take_over(tmp_path, "another one")
        first()
        assert take_over(tmp_path, "a director")
        with pytest.raises(ClaimLost, match="another process goes on with this run"):
            first()
        with claimed(tmp_path, "a director") as second:
            with pytest.raises(ClaimLost):
                first()
            second()
            with pytest.raises(SpecError, match="another run"), claimed(tmp_path, "a director"):
                pass
    with claimed(tmp_path) as check:  # the first one has removed its own claim only
        check()


def full_disk(*full: Path, until: int = 99) -> Any:
    """Return a `Run.save` that fails so often in these folders."""
    save, failed = Run.save, []

    def saving(self: Run, folder: Any, **options: Any) -> Path:
        if any(Path(folder).is_relative_to(each) for each in full) and len(failed) < until:
            failed.append(folder)
            raise SpecError(f"{folder}: cannot be written: No space left on device")
        return save(self, folder, **options)

    return saving


def test_a_full_disk_at_the_end_loses_no_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Run, "save", full_disk(tmp_path / "full"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(NotSaved, match="No space left") as failed:
        run(toy(), folder=tmp_path / "full" / "run")
    assert failed.value.run.log.digest() == run(toy()).log.digest()
    arguments = [
        "run",
        "--set",
        "strategy=bsp",
        "--set",
        "timing_only=true",
        "--set",
        "stop.updates=3",
        "--out",
    ]
    assert main([*arguments, str(tmp_path / "full" / "other")]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    (saved,) = (tmp_path / "home" / "psbench-runs").iterdir()
    assert said.endswith(f"the run is saved in {saved}")
    assert Run.load(saved).summary()["updates"] == 3


def test_a_run_for_which_there_is_no_place_is_kept_until_there_is_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Run, "save", full_disk(tmp_path, until=3))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    waited: list[float] = []
    failed = NotSaved(run(toy()), "full")
    assert save_elsewhere(failed, tmp_path / "run", waited.append) == tmp_path / "run"
    assert len(waited) == 1
    assert "stays in memory" in capsys.readouterr().err
