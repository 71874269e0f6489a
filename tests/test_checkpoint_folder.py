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
from psbench.checkpoints.validation import check, check_against
from psbench.core.checked_log import check_log
from psbench.core.log import ROW, EventLog, Kind
from psbench.errors import DataError
from psbench.runs.execution import run
from psbench.testing import toy_experiment
from psbench.training.build import Workload


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


def test_the_last_ones_are_kept_and_not_those_of_the_last_names(tmp_path):
    run(spec(stop={"epochs": 12}, checkpoint_every=4, recovery={"keep": 2}), folder=tmp_path)
    assert {file.name for file in (tmp_path / "checkpoints").iterdir()} == {"epoch-8.npz", "epoch-12.npz"}


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

    told = []
    monkeypatch.setattr(np, "savez", full)
    monkeypatch.setattr(
        "psbench.checkpoints.folder.logger.warning", lambda text, *parts: told.append(text % parts)
    )
    done = run(spec(), folder=tmp_path / "run")
    monkeypatch.undo()
    assert same(done, undisturbed)
    assert len(done.meta["incidents"]) == len(failing)
    assert all("No space left on device" in incident for incident in done.summary()["warnings"])
    assert told == done.meta["incidents"]  # while the run goes on, too
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
    assert any("cannot be created" in incident for incident in done.meta["incidents"])
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


@pytest.mark.by_day(1)
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


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The last checkpoint of a run of k-BSP, with its experiment and workload."""
    experiment = toy_experiment("k_batch_asp", checkpoint_every=0.5, stop={"epochs": 1})
    found = run(experiment, folder=tmp_path_factory.mktemp("run"))
    return find(found.meta["checkpoints"][-1]), experiment, Workload.build(experiment)


PUSH = ("id", "worker", "ticket", "base_version", "samples", "steps", "bytes", "compute_s", "send_s", "loss")


def view_of(checkpoint):
    return checkpoint.state["engine"]["view"]


def one_worker_more(checkpoint):
    view_of(checkpoint)["workers"][-1]["id"] = view_of(checkpoint)["num_workers"]


def a_worker_twice(checkpoint):
    view_of(checkpoint)["workers"][-1]["id"] = view_of(checkpoint)["workers"][0]["id"]


def an_unknown_row(column, value):
    def change(checkpoint):
        rows = checkpoint.tensors["log"].numpy().view(ROW)
        rows[column][3] = value

    return change


def other(name, change):
    return lambda checkpoint: checkpoint.tensors.update({name: change(checkpoint.tensors[name])})


REFUSED = [
    (lambda c: c.state.pop("spec"), "holds only a model, without the state"),
    (lambda c: c.state.pop("log"), "holds only a model, without the state"),
    (lambda c: c.state.pop("engine"), "written during a measurement"),
    (lambda c: c.state.update(engine=None), "written during a measurement"),
    (lambda c: c.state.update(next_push=-1), r"is not the state of a run: next_push: .*, got -1$"),
    (one_worker_more, "worker numbers are"),
    (a_worker_twice, "worker numbers are"),
    (lambda c: view_of(c)["workers"].pop(0), "clock_counts do not match"),
    (lambda c: view_of(c).update(num_workers=9), "engine.view.num_workers is 9"),
    (lambda c: c.state["engine"].update(parts={}), "its state cannot be restored"),
    (lambda c: c.tensors.pop("buffers"), "has no tensor 'buffers'"),
    (other("parameters", lambda x: x[1:]), "tensor 'parameters' has shape"),
    (other("parameters", lambda x: x.double()), "has dtype torch.float64"),
    (other("parameters", lambda x: x * float("nan")), "has NaN or infinity"),
    (an_unknown_row("worker", 3), "row 3 of its log has a worker beyond 2"),
    (an_unknown_row("kind", 99), "row 3 of its log has an unknown kind"),
    (an_unknown_row("time_s", -1.0), "row 3 of its log has a time that is negative"),
    (an_unknown_row("text", 99), "row 3 of its log has a reference to a missing text"),
]


def look_at(path, checkpoint, experiment, workload):
    check(path, checkpoint, experiment)
    check_against(path, checkpoint, workload)
    log = EventLog()
    log.extend(checkpoint.tensors["log"].numpy().view(ROW), checkpoint.state["log"]["texts"])
    check_log(path, log, workload.profile.num_workers)


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=range(len(REFUSED)))
def test_a_checkpoint_that_no_run_writes_is_refused(change, words, written):
    path, experiment, workload = written
    checkpoint = Checkpoint.load(path)
    change(checkpoint)
    with pytest.raises(DataError, match=words):
        look_at(path, checkpoint, experiment, workload)


def test_events_of_any_kind_and_the_state_of_an_aggregation_are_taken(written):
    path, _, workload = written
    log = EventLog()
    mixed = '{"rows":{"0":{"0":1.0}},"sent":false,"steps_first":false}'
    log.add(Kind.JOIN, 0.0)
    log.add(max(Kind), 0.0, version=1, text=mixed)
    check_log(path, log, 1)
    checkpoint = Checkpoint.load(path)
    state = {"vector": checkpoint.tensors["parameters"], "number": torch.tensor(1.0, dtype=torch.float64)}
    checkpoint.tensors |= {f"aggregation/mean/{name}": value for name, value in state.items()}
    check_against(path, checkpoint, workload)


def test_a_push_beyond_the_next_and_checkpoints_of_two_runs_are_refused(written, tmp_path):
    path, experiment, _ = written
    checkpoint = Checkpoint.load(path)
    view_of(checkpoint)["pending"] = []
    checkpoint.state["next_push"] = 0
    check(path, checkpoint, experiment)
    worker = view_of(checkpoint)["workers"][0]["id"]
    pushes = [dict.fromkeys(PUSH, 1) | {"id": number, "worker": worker} for number in (7, 3)]
    view_of(checkpoint)["pending"] = pushes
    checkpoint.state["next_push"] = 7
    with pytest.raises(DataError, match="push 7 is pending, but the next push is numbered 7"):
        check(path, checkpoint, experiment)
    for name in ("a", "b"):
        Checkpoint({}, {"run_id": name}).save(tmp_path / f"{name}.npz")
    with pytest.raises(DataError, match=r"b\.npz: belongs to a different run from a\.npz"):
        find(tmp_path)


def test_the_last_checkpoint_is_the_one_with_most_rows_then_the_latest(tmp_path):
    states = {"none": {}, "a": {"log": {"rows": 0}}, "timeless": {"log": {"rows": 5}}}
    states |= {"b": {"log": {"rows": 5}, "time_s": 0.5}, "c": {"log": {"rows": 5}, "time_s": 0.7}}
    for letter, name in zip("zyxwv", states, strict=True):
        Checkpoint({}, states[name]).save(tmp_path / f"{letter}-{name}.npz")
        assert find(tmp_path).stem.endswith(name)


def test_a_state_is_written_alike_in_whatever_order_it_was_made(tmp_path):
    states = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    files = [Checkpoint({}, state).save(tmp_path / f"{n}.npz") for n, state in enumerate(states)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_epochs_with_one_label_have_files_of_their_own(tmp_path):
    folder = CheckpointFolder(tmp_path, "one", EventLog())
    names = []
    for _ in range(3):
        folder.write("epoch-1", Checkpoint({}, {"logged": [0, 1]}))
        names.append(Path(folder.paths[-1]).name)
    assert names == ["epoch-1.npz", "epoch-1-2.npz", "epoch-1-3.npz"]
