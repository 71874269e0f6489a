"""Bad input: one clear line, exit code 2, before any training starts, and nothing left behind."""

from __future__ import annotations

import errno
import io
import json
import socket
import struct
from functools import partial
from pathlib import Path

import pytest
from bad_specifications import ALL, TOO_LONG

from psbench.cli import execution, main
from psbench.core import specification
from psbench.core.specification import problem
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.runs.comparing import compare


def idx(*shape: int, missing: int = 0) -> bytes:
    """Return an IDX file of zeros, cut short by some."""
    size = 1
    for length in shape:
        size *= length
    return b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(size - missing)


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def folder(tmp_path):
    """The files that cases of the group "data" are about."""
    for name, images, labels in (
        ("truncated", idx(10, 28, 28, missing=9), idx(10)),
        ("other", b"<html>not found</html>", idx(10)),
        ("short", idx(10, 28, 28), idx(7)),
    ):
        write(tmp_path / name / "MNIST/raw/train-images-idx3-ubyte", images)
        write(tmp_path / name / "MNIST/raw/train-labels-idx1-ubyte", labels)
    write(tmp_path / "unlabelled/MNIST/raw/train-images-idx3-ubyte", idx(10, 28, 28))
    write(tmp_path / "cifar/cifar-10-batches-py/data_batch_1", b"not a pickle of theirs")
    write(tmp_path / "flat/0.png", b"")
    write(tmp_path / "images/cat/0.png", b"no image")
    write(tmp_path / "a.csv", b"1,2.5\n0,3.5\n" * 500)
    return tmp_path


@pytest.fixture(autouse=True)
def small_machine(monkeypatch):
    """Estimates are compared with these; nothing of that size is allocated."""
    monkeypatch.setattr("psbench.system.limits.available_memory", lambda: 10**9)
    monkeypatch.setattr("psbench.system.limits.free_disk", lambda folder: 10_000)


@pytest.fixture(autouse=True)
def words_of_others(monkeypatch):
    """No message depends on how pydantic words its own."""
    monkeypatch.setattr(
        specification, "problem", lambda error: problem({**error, "msg": "what pydantic says"})
    )


@pytest.fixture
def no_training(monkeypatch):
    """Fail if a backend is started."""

    def started(control):
        raise AssertionError("training has started")

    monkeypatch.setattr("psbench.runs.execution.stop_on_signals", started)


def refused(capsys, argv: list[str]) -> str:
    """Return the one line that refuses a command."""
    code = main(argv)
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
@pytest.mark.usefixtures("no_training")
def test_refused_in_one_line_before_anything_starts(case, folder, capsys):
    argv = ["run", "--out", str(folder / "out")]
    if case.spec is not None:
        content = case.spec if isinstance(case.spec, bytes) else case.spec.encode()
        write(folder / "spec.yaml", content)
        argv.append(str(folder / "spec.yaml"))
    for setting in case.sets:
        argv += ["--set", setting.replace("{tmp}", str(folder))]
    before = sorted(folder.rglob("*"))
    line = refused(capsys, [*argv, *case.args])
    for fragment in case.says:
        assert fragment.replace("{tmp}", str(folder)) in line
    assert sorted(folder.rglob("*")) == before


def test_there_are_at_least_45_cases():
    assert len(ALL) >= 45


@pytest.mark.usefixtures("no_training")
def test_data_folder_of_the_environment_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PSBENCH_DATA", str(tmp_path / "nowhere"))
    line = refused(capsys, ["run", "--set", "data=fashion_mnist", "--set", "model=cnn"])
    assert str(tmp_path / "nowhere") in line


@pytest.mark.parametrize("target", ["file", "file/below", "/proc/psbench"])
@pytest.mark.usefixtures("no_training")
def test_output_folder_that_cannot_be(target, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    line = refused(capsys, ["run", "--out", str(tmp_path / target)])
    assert target in line
    assert "choose another output folder" in line
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.usefixtures("no_training")
def test_output_folder_that_is_full_or_read_only(error, tmp_path, capsys, monkeypatch):
    def fail(self, mode):
        raise OSError(error, "cannot write")

    monkeypatch.setattr(Path, "open", fail)
    assert "cannot write" in refused(capsys, ["run", "--out", str(tmp_path / "a/b")])
    assert list(tmp_path.iterdir()) == []


def test_disk_that_fills_up_while_a_run_is_saved_leaves_no_half_run(tmp_path, capsys, monkeypatch):
    def fail(log, file, run_id):
        if not isinstance(file, io.BytesIO):  # in memory there is room
            raise OSError(errno.ENOSPC, "No space left on device")

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("psbench.results.storage._write_parquet", fail)
    monkeypatch.setattr(execution, "save_elsewhere", partial(execution.save_elsewhere, wait=interrupt))
    argv = ["run", "--set", "stop={updates: 2}", "--set", "strategy=bsp", "--out", str(tmp_path / "out")]
    assert main(argv) == 130
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "the run stays in memory until there is room" in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.dask
@pytest.mark.usefixtures("folder")
def test_scheduler_that_does_not_answer(tmp_path, capsys, monkeypatch):
    with socket.socket() as silent:  # bound but not listening: nobody answers there
        silent.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        argv = ["run", "--set", "strategy=asp", "--out", str(tmp_path / "out")]
        line = refused(capsys, [*argv, "--backend", "dask", "--scheduler", address])
    assert address in line
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------ commands on saved runs, and others


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run that was saved."""
    out = tmp_path_factory.mktemp("saved") / "run"
    settings = ["stop={updates: 3}", "strategy=asp", "cluster={workers: 2}"]
    assert main(["run", "--out", str(out), *(word for s in settings for word in ("--set", s))]) == 0
    return out


@pytest.fixture
def damaged(saved, tmp_path):
    """A copy of the run, to be damaged."""
    for file in saved.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize("command", ["report", "replay"])
def test_folder_that_is_no_run(command, tmp_path, capsys):
    line = refused(capsys, [command, str(tmp_path)])
    assert str(tmp_path) in line
    assert "run.json" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["log.parquet", "run.json", "experiment.yaml", "model.npz"])
@pytest.mark.parametrize("left", [0, 0.5])
def test_truncated_files_of_a_run(file, left, damaged, capsys):
    whole = (damaged / file).read_bytes()
    (damaged / file).write_bytes(whole[: int(len(whole) * left)])
    if file == "experiment.yaml" and left:
        (damaged / file).write_bytes(whole[: whole.index(b"strategy:") + 9] + b" [")
    assert file in refused(capsys, ["replay", str(damaged)])


def test_log_of_another_format(damaged, capsys, monkeypatch):
    monkeypatch.setattr("psbench.results.storage.FORMAT", 99)
    assert "format 1, expected 99" in refused(capsys, ["replay", str(damaged)])


def test_record_without_what_is_needed(damaged, capsys):
    (damaged / "run.json").write_text(json.dumps({"meta": {}}))
    assert "run.json" in refused(capsys, ["replay", str(damaged)])


def test_report_that_cannot_be_written(saved, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "report.html"
    assert str(tmp_path / "file") in refused(capsys, ["report", str(saved), "--out", str(target)])


COMMANDS = {
    "no such command": (["runn"], ("'runn'", "see psbench --help")),
    "no such kind": (["list", "stratgies"], ("stratgies", "did you mean 'strategies'?")),
    "no such strategy to list": (["list", "strategies", "sspp"], ("unknown strategy 'sspp'", "'ssp'")),
    "no such model to list": (["list", "models", "ressnet20"], ("unknown model", "'resnet20'")),
    "no such loss to list": (["list", "losses", "huper"], ("unknown loss 'huper'", "'huber'")),
    "no such metric to list": (["list", "metrics", "perplexty"], ("unknown metric", "'perplexity'")),
    "nothing to export": (["export", "nowhere"], ("nothing to write", "--csv FILE")),
    "export of no run": (["export", "nowhere", "--csv", "a.csv"], ("nowhere: there is no such",)),
    "no such table": (["export", "a", "--csv", "a.csv", "--table", "event"], ("did you mean 'events'?",)),
    "a CSV called otherwise": (["export", "a", "--csv", "a.txt"], ("a.txt", "must end in .csv")),
    "no specification": (["compare"], ("SPEC",)),
    "no seeds": (["compare", "a.yaml", "--seeds", "0"], ("--seeds", "1")),
    "a file that is not there": (["compare", "nowhere.yaml"], ("nowhere.yaml: there is no such",)),
    "a folder for a file": (["run", "/"], ("/", "cannot be read")),
    "a folder that is not there": (["replay", "nowhere"], ("nowhere: there is no such",)),
    "below a folder that is not there": (["replay", "nowhere/a"], ("nor a folder nowhere",)),
    "an extra argument": (["replay", "a", "b"], ("(b)",)),
    "a notebook folder that is not there": (["lab", "nowhere"], ("nowhere",)),
}


@pytest.mark.parametrize(("argv", "says"), COMMANDS.values(), ids=COMMANDS)
@pytest.mark.usefixtures("no_training")
def test_commands_that_cannot_be(argv, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, argv)
    for fragment in says:
        assert fragment in line
    assert list(tmp_path.iterdir()) == []


#: what lies in the folder in which a user makes one of these mistakes
FILES = {
    "ssp.yaml": "{strategy: ssp, stop: {updates: 1}}",
    "bsp.yaml": "{strategy: bsp, stop: {updates: 1}}",
    "misspelt.yaml": "strategy: spp",
    "mixture.yaml": "{strategy: asp, data: mixture}",
    "live.yaml": "{strategy: asp, backend: dask}",
    "file": "",
}
MISTAKES = {
    "a misspelt file": (["run", "sps.yaml"], ("sps.yaml: there is no such", "did you mean ssp.yaml?")),
    "one of two files": (
        ["compare", "ssp.yaml", "misspelt.yaml"],
        ("misspelt.yaml: unknown strategy 'spp'",),
    ),
    "a misspelt baseline": (["compare", "ssp.yaml", "bsp.yaml", "--baseline", "bps"], ("mean 'bsp'?",)),
    "an unknown amount": (["compare", "ssp.yaml", "--equal", "byte"], ("mean 'bytes'?",)),
    "an equal amount of what is not evaluated": (
        ["compare", "ssp.yaml", "--equal", "bytes", "--set", "timing_only=true", "--out", "out"],
        ("equal = 'bytes': ssp is timing-only, so it is never evaluated",),
    ),
    "an equal amount on different data": (
        ["compare", "ssp.yaml", "mixture.yaml", "--equal", "samples"],
        ("the runs are on different data (digits, mixture)",),
    ),
    "an equal time on two clocks": (
        ["compare", "ssp.yaml", "live.yaml", "--equal", "time"],
        ("virtual and wall-clock seconds cannot be compared",),
    ),
    "a curve over nothing": (["predict", "ssp.yaml", "--over", "=1,2"], ("--over =1: expected path=value",)),
    "a misspelt run to resume": (["resume", "fil"], ("did you mean file?",)),
    "a misspelt run to report": (["report", "fil"], ("did you mean file?",)),
    "a misspelt run to replay": (["replay", "fil"], ("did you mean file?",)),
    "a misspelt run to export": (["export", "fil", "--csv", "a.csv"], ("did you mean file?",)),
    "a misspelt run to fit": (["calibrate", "--from", "fil"], ("did you mean file?",)),
    "a misspelt record": (["twin", "--from", "fil"], ("did you mean file?",)),
    "stored runs and a scheduler": (
        ["twin", "--from", "file", "--scheduler", "tcp://10.0.0.1:8786"],
        ("remove SPEC, --set, --scheduler, --quick",),
    ),
    "a speed without a factor": (["fault", "ssp", "0", "speed"], ("give --factor X with the fault speed",)),
    "a factor of what is lost": (["fault", "ssp", "0", "lost", "--factor", "2"], ("and with no other",)),
    "a misspelt trace": (["diagnose", "fil"], ("did you mean file?",)),
    "a misspelt profile": (["predict", "sps.yaml"], ("did you mean ssp.yaml?",)),
    "a misspelt folder of runs": (["verify", "hermes", "--out", "fil"], ("did you mean file?",)),
    "no scheduler": (["sweep", "--grid", "strategy=[bsp]", "--scheduler", "here"], ("is not an address",)),
    "no host of a scheduler": (
        ["runs", "--scheduler", "tcp://10.0.0..1:8786"],
        ("'tcp://10.0.0..1:8786': there is no such host",),
    ),
    "no port of a scheduler": (["runs", "--scheduler", "tcp://10.0.0.1:87866"], ("is not an address",)),
    "a grid twice": (
        ["sweep", "--grid", "strategy=[bsp]", "--grid", "strategy=[asp]"],
        ("--grid strategy: is given twice",),
    ),
    "a file as output folder": (["reproduce", "hermes", "--out", "file"], ("file: cannot be written",)),
    "a profile below a file": (["calibrate", "--out", "file/a.yaml"], ("file: cannot be written",)),
    "a cluster below a file": (["doctor", "--out", "file/a.yaml"], ("file: cannot be written",)),
    "a report below a file": (["demo", "--out", "file/demo.html"], ("file: cannot be written",)),
    "a file as the answer's folder": (
        ["why", "file", "--against", "file", "--out", "file"],
        ("file: cannot be written",),
    ),
    "an optimal time below a file": (
        ["optimal", "file", "--out", "file/a.html"],
        ("file: cannot be written",),
    ),
    "a file as twin's folder": (["twin", "--out", "file"], ("file: cannot be written",)),
    "a folder as profile": (["calibrate", "--out", "."], (".: is a folder; name a file in it",)),
}


@pytest.mark.parametrize(("argv", "says"), MISTAKES.values(), ids=MISTAKES)
@pytest.mark.usefixtures("no_training")
def test_mistakes_are_refused_with_the_nearest_name(argv, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    line = refused(capsys, argv)
    for fragment in says:
        assert fragment in line
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == FILES


SWEEPS = {
    "nothing to sweep over": ("strategy: bsp", (), ("nothing to sweep over", "--grid 'strategy=[bsp, asp]'")),
    "a grid that is none": ("sweep: [bsp, asp]", (), ("expected a mapping of paths",)),
    "no list": ("sweep: {strategy: bsp}", (), ("strategy: expected a list of values, got 'bsp'",)),
    "an empty list": ("sweep: {strategy: []}", (), ("strategy: expected a list", "[]")),
    "an unknown path": ("sweep: {optimzer.lr: [1]}", (), ("'optimzer'", "did you mean 'optimizer'?")),
    "an unknown strategy": ("sweep: {strategy: [bsp, aspp]}", (), ("strategy=aspp", "did you mean 'asp'?")),
    "a value out of range": ("sweep: {optimizer.lr: [0.1, 0]}", (), ("optimizer.lr=0", "greater than 0")),
    "the seed": ("sweep: {seed: [1, 2]}", (), ("give seeds",)),
    "no seeds": ("{sweep: {strategy: [bsp]}, seeds: 0}", (), ("seeds: give a number", "got 0")),
    "a misspelt field": ("{sweeep: {strategy: [bsp]}}", (), ("unknown field", "'sweeep'")),
    "what only the data show": ("sweep: {batch_size: [64, 5000]}", (), ("batch_size=5000", "1438")),
    "a grid without values": ("", ("--grid", "strategy"), ("--grid strategy", "path=value")),
    "a grid that is not YAML": ("", ("--grid", "strategy=[a"), ("--grid strategy=[a", "not YAML")),
    "no such result": (
        "sweep: {strategy: [bsp]}",
        ("--value", "accuracy"),
        ("did you mean 'val_accuracy'?",),
    ),
    "no such parameter": ("sweep: {strategy: [bsp]}", ("--by", "lr"), ("parameter of the sweep 'lr'",)),
    "no processes": ("sweep: {strategy: [bsp]}", ("--processes", "0"), ("--processes",)),
}


@pytest.mark.parametrize(("spec", "options", "says"), SWEEPS.values(), ids=SWEEPS)
@pytest.mark.usefixtures("no_training")
def test_sweeps_that_cannot_be(spec, options, says, tmp_path, capsys):
    (tmp_path / "sweep.yaml").write_text(spec or "{}")
    line = refused(capsys, ["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out"), *options])
    for fragment in says:
        assert fragment in line
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


@pytest.mark.usefixtures("no_training")
def test_compare_refuses_what_is_no_run():
    with pytest.raises(ParameterError, match=r"give runs and experiments, not 'ssp' \(str\)"):
        compare({"ssp": Experiment(strategy="ssp")})


def test_compare_refuses_before_its_first_run_what_would_end_its_last(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("strategy: asp")
    (tmp_path / "b.yaml").write_text("data: {name: mixture, num_samples: 3}")
    specs = [str(tmp_path / name) for name in ("a.yaml", "b.yaml")]
    assert "3 samples" in refused(capsys, ["compare", *specs, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_training")
def test_compare_refuses_a_title_that_no_folder_can_have(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(f"{{name: {'t' * 300}, strategy: asp}}")
    line = refused(capsys, ["compare", str(tmp_path / "a.yaml"), "--out", str(tmp_path / "out")])
    assert TOO_LONG in line
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


@pytest.mark.parametrize("command", [["run"], ["replay"], ["report"], ["resume"], ["compare"], ["lab"]])
@pytest.mark.usefixtures("no_training")
def test_a_name_of_300_characters_is_one_line(command, capsys):
    line = refused(capsys, [*command, "n" * 300])
    assert TOO_LONG in line or "there is no such file or folder" in line


@pytest.mark.usefixtures("no_training")
def test_rows_beyond_the_disk(tmp_path, capsys):
    argv = ["generate", "higgs", "--rows", str(10**30), "--out", str(tmp_path / "higgs.csv")]
    assert "10 kB are free; make fewer" in refused(capsys, argv)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_training")
def test_compare_refuses_two_of_the_same_name(tmp_path, capsys):
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("{name: same, strategy: asp}")
    line = refused(capsys, ["compare", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")])
    assert "'same'" in line


def test_traceback_only_with_debug(capsys):
    assert main(["run", "--set", "strategy=sssp", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.strip().splitlines()[-1].startswith("error: unknown strategy 'sssp'")


def test_error_of_ours_is_one_line_and_another_exit_code(capsys, monkeypatch):
    def fail(kind):
        raise RuntimeError("something\nunforeseen")

    monkeypatch.setattr("psbench.cli.catalogue.entries", fail)
    assert main(["list", "models"]) == 70
    assert capsys.readouterr().err == (
        "error: internal: RuntimeError: something unforeseen (use --debug for the traceback)\n"
    )
