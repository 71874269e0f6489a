"""The command line: what it prints where, what it leaves, and how it ends."""

from __future__ import annotations

import ast
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import unicodedata
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

import psbench
from psbench import Control, Experiment, Run, __version__, compare
from psbench.cli import main
from psbench.cli.app import as_json_text, put, say
from psbench.cli.catalogue import KINDS
from psbench.cli.execution import run_all
from psbench.cli.monitor import Monitor
from psbench.cli.summary_text import summary_text
from psbench.core.part import REGISTRY
from psbench.strategies import CATALOGUE
from psbench.system.start_progress import start_progress

QUICK = ("--set", "stop={updates: 6}", "--set", "cluster={workers: 3}", "--set", "strategy=ssp")


def ok(capsys, *argv: str) -> tuple[str, str]:
    """Run a command that must succeed; return what it printed on standard output and error."""
    code = main(argv)
    out, err = capsys.readouterr()
    assert code == 0, err
    return out, err


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run that was saved by the command."""
    out = tmp_path_factory.mktemp("cli") / "run"
    assert main(["run", *QUICK, "--seed", "5", "--out", str(out)]) == 0
    return out


# ------------------------------------------------------------------ run


def test_json_is_the_summary_and_nothing_else_on_standard_output(capsys):
    out, _ = ok(capsys, "run", *QUICK, "--json")
    summary = json.loads(out)
    assert (summary["strategy"], summary["updates"], summary["workers"]) == ("ssp", 6, 3)
    assert summary["status"] == "finished"


@pytest.mark.filterwarnings("default::psbench.errors.DoubtfulComposition")
def test_what_is_probably_not_meant_is_one_line_on_standard_error(capsys):
    _, err = ok(capsys, "run", *QUICK, "--set", "strategy={name: lb_bsp, aggregation: sum}")
    (line,) = [line for line in err.splitlines() if "batches of different sizes" in line]
    assert line.startswith("warning: strategy 'lb_bsp': lb_bsp gives workers batches of different sizes")


def test_summary_for_a_person_names_what_matters(capsys):
    out, _ = ok(capsys, "run", *QUICK)
    assert "ssp, seed 0, simulated, 3 workers" in out
    assert "6 updates are done" in out
    assert "(virtual)" in out


def test_file_settings_and_options_in_that_order(tmp_path, capsys):
    (tmp_path / "spec.yaml").write_text("{strategy: ssp, seed: 1, stop: {updates: 3}, cluster: {workers: 2}}")
    spec = str(tmp_path / "spec.yaml")
    settings = ("--set", "strategy.staleness_bound=5", "--set", "seed=2", "--seed", "3")
    ok(capsys, "run", spec, *settings, "--out", str(tmp_path / "out"))
    written = yaml.safe_load((tmp_path / "out/experiment.yaml").read_text())
    assert written["strategy"]["consistency"]["staleness_bound"] == 5
    assert (written["seed"], written["stop"]) == (3, {"updates": 3})


def test_saved_run_is_the_run(saved):
    run = Run.load(saved)
    record = json.loads((saved / "run.json").read_text())
    assert run.experiment.seed == 5
    assert record["summary"]["digest"] == run.log.digest()
    assert run.summary() == record["summary"]
    assert not list(saved.glob("*.part"))


def test_same_command_same_digest(saved, tmp_path, capsys):
    out, _ = ok(capsys, "run", str(saved / "experiment.yaml"), "--json")
    again = json.loads(out)
    before = json.loads((saved / "run.json").read_text())["summary"]
    assert (again["digest"], again["params_digest"]) == (before["digest"], before["params_digest"])


def test_run_that_diverges_is_saved_and_says_which_push(tmp_path, capsys):
    settings = ("--set", "optimizer.lr=1e30", "--set", "strategy=asp")
    assert main(["run", *QUICK[:4], *settings, "--json", "--out", str(tmp_path / "out")]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "diverged"
    assert "diverged: push" in err.splitlines()[-1]
    assert Run.load(tmp_path / "out").meta["status"] == "diverged"


def test_nobody_left_to_train_is_exit_code_1(capsys):
    lost = "cluster={workers: 1, failures: [{worker: 0, at_s: 0.5}]}"
    assert main(["run", "--set", "strategy=asp", "--set", lost]) == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("error: every worker is gone")


# ------------------------------------------------------------------ Ctrl-C, in a process of its own


def endless(out, **options) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "psbench", "run", "--set", "stop={epochs: 1000000}"]
    command += ["--set", "strategy=asp", "--set", "cluster={workers: 2}", "--json", "--out", str(out)]
    return subprocess.Popen(command, text=True, **options)


@pytest.mark.parametrize(
    ("number", "name"),
    [pytest.param(signal.SIGINT, "Ctrl-C", marks=pytest.mark.nightly), (signal.SIGTERM, "SIGTERM")],
)
def test_a_signal_stops_and_keeps_what_there_is_with_a_checkpoint(number, name, tmp_path):
    folder = tmp_path / "out"
    with endless(folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stderr.readline()  # progress: it is under way
        process.send_signal(number)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + number
    summary = json.loads(out)
    assert (summary["status"], summary["reason"]) == ("stopped", "stopped by hand")
    assert f"stopped by {name}; the completed part is kept; to continue: psbench resume {folder}" in err
    assert Run.load(folder).log.digest() == summary["digest"]
    (checkpoint,) = (folder / "checkpoints").iterdir()
    assert checkpoint.name == f"stopped-version-{summary['updates']}.npz"
    goal = f"stop={{updates: {summary['updates'] + 5}}}"
    assert main(["resume", str(folder), "--set", goal]) == 0
    assert Run.load(folder).summary()["updates"] == summary["updates"] + 5


def test_run_with_resume_begins_goes_on_or_says_that_the_run_has_ended(tmp_path, capsys):
    folder = tmp_path / "out"
    command = [
        "run",
        *QUICK[2:],
        "--set",
        "stop.epochs=1",
        "--set",
        "checkpoint_every=1",
        "--json",
        "--out",
        str(folder),
        "--resume",
    ]

    def printed(*settings: str) -> tuple[dict, str]:
        assert main([*command, *settings]) == 0
        out, err = capsys.readouterr()
        return json.loads(out), err

    first, said = printed()
    assert "starting the run" in said
    again, said = printed()
    assert "has ended" in said
    assert again == first
    (folder / "run.json").unlink()  # killed before it was saved
    redone, said = printed()
    assert "continuing the run" in said
    assert redone["params_digest"] == first["params_digest"]
    longer, said = printed("--set", f"stop.epochs={first['epochs'] + 1}")
    assert "continuing the run" in said
    assert longer["updates"] > first["updates"]
    assert main([*command, "--set", "strategy=asp"]) == 2
    assert "belongs to another experiment: strategy.name" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 2


def test_ctrl_c_before_the_run_begins_leaves_nothing(tmp_path, capsys, monkeypatch):
    def interrupt(experiment):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("psbench.training.build.Workload.build", interrupt)
    assert main(["run", "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "error: interrupted; the run is discarded\n"
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------ progress


def test_progress_where_there_is_no_terminal_is_a_few_plain_lines(capsys, monkeypatch):
    monkeypatch.setattr("psbench.cli.monitor.LINE_EVERY_S", 0.0)
    monkeypatch.setattr("psbench.cli.monitor.FIRST_LINE_S", 0.0)
    out, err = ok(capsys, "run", "--set", "stop.epochs=3", "--set", "strategy=bsp", "--json")
    assert json.loads(out)["updates"] > 0
    lines = err.splitlines()
    assert len(lines) >= 3
    assert all(line.startswith("bsp: ") and "\x1b" not in line for line in lines)
    assert "epoch 3 of 3, accuracy " in lines[-1]


def test_the_start_of_a_live_run_is_told_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr("psbench.cli.monitor.FIRST_LINE_S", 0.0)
    experiment = Experiment(backend="dask", cluster={"workers": 1})
    with Monitor("asp", experiment, {"dataset_size": 10, "num_workers": 1}, Control()):
        start_progress().expect(["coordinator", "worker 0"])
        start_progress().see(["tcp://a"])  # less than a line's time later
    start_progress().expect(["worker 1"])  # nobody watches any more
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"asp: starting 2 processes: 0 up, \d\.\d s", line)


def test_progress_in_a_terminal_is_a_bar_on_standard_error(capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("psbench.cli.monitor.BAR_EVERY_S", 0.0)
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert main(["run", "--set", "stop.epochs=3", "--set", "strategy=bsp", "--json"]) == 0
    shown = sys.stderr.getvalue()
    assert "\x1b[" in shown
    assert "epoch" in shown
    assert json.loads(capsys.readouterr().out)["status"] == "finished"


# ------------------------------------------------------------------ compare, report, replay


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two strategies over two seeds, saved."""
    folder = tmp_path_factory.mktemp("compare")
    rest = "stop: {updates: 6}\ncluster: {workers: 3}\n"
    (folder / "asp.yaml").write_text("strategy: asp\n" + rest)
    (folder / "bsp.yaml").write_text("strategy: bsp\nseed: 7\n" + rest)
    specs = [str(folder / name) for name in ("asp.yaml", "bsp.yaml")]
    assert main(["compare", *specs, "--seeds", "2", "--out", str(folder / "out")]) == 0
    return folder


def test_compare_saves_every_run_and_a_report(compared):
    names = sorted(path.name for path in (compared / "out").iterdir())
    assert names == ["asp-seed0", "asp-seed1", "bsp-seed7", "bsp-seed8", "report.html"]
    assert Run.load(compared / "out/bsp-seed8").experiment.seed == 8


def test_compare_prints_a_table(compared, capsys):
    out, _ = ok(capsys, "compare", str(compared / "asp.yaml"), str(compared / "bsp.yaml"), "--seeds", "2")
    assert "equal budget: updates 6 on digits" in out
    assert {"asp", "bsp"} <= {*out.split()}  # one a row, or one a column where rows are too long


def test_compare_as_json(compared, capsys):
    argv = ("--seeds", "1", "--json", "--set", "stop={updates: 4}")
    out, _ = ok(capsys, "compare", str(compared / "asp.yaml"), str(compared / "bsp.yaml"), *argv)
    found = json.loads(out)
    assert [row["strategy"] for row in found["table"]] == ["asp", "bsp"]
    assert [row["updates"] for row in found["table"]] == [4, 4]


def test_a_stopped_compare_shows_what_there_is_without_its_baseline(compared, capsys, monkeypatch):
    def stopped(planned, *where, **options):
        return run_all(planned[:1], *where, **options)[0], 130

    monkeypatch.setattr("psbench.cli.commands.comparisons.run_all", stopped)
    specs = [str(compared / "asp.yaml"), str(compared / "bsp.yaml")]
    assert main(["compare", *specs, "--seeds", "1", "--baseline", "bsp", "--json"]) == 130
    found = json.loads(capsys.readouterr().out)
    assert (found["baseline"], [row["strategy"] for row in found["table"]]) == ("asp", ["asp"])


def test_unnamed_specifications_of_one_strategy_are_named_by_their_files(tmp_path, capsys):
    for bound in (1, 4):
        spec = {"strategy": {"name": "ssp", "staleness_bound": bound}, "stop": {"updates": 4}}
        (tmp_path / f"bound{bound}.yaml").write_text(yaml.safe_dump(spec))
    specs = [str(tmp_path / f"bound{bound}.yaml") for bound in (1, 4)]
    ok(capsys, "compare", *specs, "--seeds", "1", "--out", str(tmp_path / "out"))
    assert (tmp_path / "out/bound1-seed0").is_dir()
    assert (tmp_path / "out/bound4-seed0").is_dir()


def test_report_of_a_folder_of_runs(compared, tmp_path, capsys):
    out, _ = ok(capsys, "report", str(compared / "out"), "--out", str(tmp_path / "all.html"))
    assert out.strip() == str(tmp_path / "all.html")
    text = (tmp_path / "all.html").read_text()
    assert "asp" in text
    assert "bsp" in text


def test_why_explains_a_saved_run_and_saves_what_the_answer_rests_on(saved, tmp_path, capsys):
    ok(capsys, "run", *QUICK, "--set", "strategy=bsp", "--seed", "5", "--out", str(tmp_path / "bsp"))
    command = ["why", str(saved), "--against", str(tmp_path / "bsp"), "--causes", "staleness", "--seeds", "1"]
    out, err = ok(capsys, *command, "--out", str(tmp_path / "why"))
    assert " ".join(out.split()).startswith("ssp ends with a val_loss of ")
    assert "replaced alone" in out
    assert err.splitlines()[-1] == f"saved in {tmp_path / 'why'}; open {tmp_path / 'why/why.html'}"
    page = (tmp_path / "why/why.html").read_text()
    assert re.search(r"Why is ssp (worse|better) than bsp\?", page)
    folders = sorted(path.name for path in (tmp_path / "why/recomputed").iterdir())
    assert folders == ["bsp_seed_5", "ssp_seed_5", "ssp_staleness_of_bsp_seed_5"]
    assert "staleness" in Run.load(tmp_path / "why/recomputed" / folders[2]).meta["reason"]
    plain = json.loads(ok(capsys, *command, "--json")[0])
    assert (plain["run"], plain["against"], plain["seeds"]) == ("ssp", "bsp", [5])


def test_optimal_puts_saved_runs_beside_the_worst_case(saved, tmp_path, capsys):
    out, _ = ok(capsys, "optimal", str(saved), "--unlike-data", "--out", str(tmp_path / "optimal.html"))
    assert "ssp took" in " ".join(out.split())
    assert out.splitlines()[-1] == str(tmp_path / "optimal.html")
    page = (tmp_path / "optimal.html").read_text()
    assert "How fast could it be?" in page
    assert "Malenia SGD guarantees it" in page
    plain = json.loads(ok(capsys, "optimal", str(saved), "--json")[0])
    assert plain["value"] == "loss"
    assert plain["runs"][0]["ratio"] == plain["runs"][0]["time_s"] / plain["guaranteed_s"]


def test_a_detached_run_is_controlled_as_it_is_said(monkeypatch, capsys):
    asked = []

    class Detached:
        def __getattr__(self, method):
            return lambda *arguments: asked.append((method, *arguments))

    monkeypatch.setattr("psbench.cli.commands.detached.cluster_client", lambda *_: nullcontext())
    monkeypatch.setattr("psbench.detached.attach", lambda name, client: Detached())
    for line in ("stop a", "switch a", "switch a --to 1", "fault a 2 lost", "fault a 0 speed --factor 0.25"):
        ok(capsys, *line.split())
    faults = [("press", 2, "lost", 1.0), ("press", 0, "speed", 0.25)]
    assert asked == [("stop",), ("switch", None), ("switch", 1), *faults]


def test_replay_takes_every_decision_again(saved, capsys):
    out, _ = ok(capsys, "replay", str(saved))
    assert out == f"{len(Run.load(saved).log)} rows compared: every decision is the same\n"


def test_replay_of_a_run_that_decided_otherwise_is_exit_code_1(saved, tmp_path, capsys):
    for file in saved.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    spec = yaml.safe_load((tmp_path / "experiment.yaml").read_text())
    spec["strategy"]["consistency"]["staleness_bound"] = 0
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(spec))
    assert main(["replay", str(tmp_path)]) == 1
    line = capsys.readouterr().err
    assert line.startswith("error: row ")
    assert "recorded release" in line
    assert "decided now: hold" in line


# ------------------------------------------------------------------ list, help, lab


@pytest.mark.parametrize("kind", KINDS)
def test_list_as_json_has_every_name_and_where_it_comes_from(kind, capsys):
    out, _ = ok(capsys, "list", kind, "--json")
    found = json.loads(out)
    wanted = list(CATALOGUE) if kind == "strategies" else [n for d in KINDS[kind] for n in REGISTRY[d]]
    assert [entry["name"] for entry in found] == wanted
    for entry in found:
        assert entry["summary"]
        for each in entry["parameters"]:
            assert set(each) == {"name", "default", "unit", "range", "summary", "source"}


@pytest.mark.parametrize("kind", KINDS)
def test_list_for_a_person_is_a_line_for_each(kind, capsys):
    out, _ = ok(capsys, "list", kind)
    entries = json.loads(ok(capsys, "list", kind, "--json")[0])
    heading, *lines, hint = out.splitlines()
    assert "description" in heading
    assert hint == f"psbench list {kind} NAME shows one in full"
    assert len(lines) == len(entries)
    for entry in entries:
        assert any(entry["name"] in line.split() and entry["summary"] in line for line in lines)


def test_a_list_fits_a_screen(capsys, monkeypatch):
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = ok(capsys, "list", "strategies")[0].splitlines()
    assert len(lines) == len(CATALOGUE) + 2
    assert all(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= 80 for line in lines)
    assert sum("…" in line for line in lines) > 0


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("strategies", "ssp", ("Ho et al. 2013", "staleness_bound", "steps >= 0", "Reduces to: BSP when")),
        ("strategies", "strategy_switch", ("switching empirical", "Provatas", "cost_s")),
        ("strategies", "dyn_sgd", ("aggregation dyn_sgd", "consistency ssp")),
        ("clusters", "c2", ("seconds_per_sample", "Strategy-Switch")),
        ("models", "mlp", ("hidden",)),
        ("losses", "huber", ("delta",)),
    ],
)
def test_one_entry_is_shown_in_full(kind, name, says, capsys):
    out, _ = ok(capsys, "list", kind, name)
    assert out.startswith(f"{name}: ")
    entry = json.loads(ok(capsys, "list", kind, name, "--json")[0])
    for text in (*says, *(each["name"] for each in entry["parameters"])):
        assert text in out


def test_list_says_default_unit_and_range(capsys):
    out, _ = ok(capsys, "list", "strategies", "--json")
    ssp = next(entry for entry in json.loads(out) if entry["name"] == "ssp")
    bound = next(each for each in ssp["parameters"] if each["name"] == "staleness_bound")
    assert (bound["default"], bound["unit"], bound["range"]) == (3, "steps", ">= 0")


def test_version(capsys):
    assert ok(capsys, "--version")[0] == f"{__version__}\n"


@pytest.mark.parametrize(
    "command", ["run", "attach", "compare", "sweep", "search", "list", "report", "replay"]
)
def test_help_gives_examples(command, capsys):
    out, _ = ok(capsys, command, "--help")
    assert f"psbench {command}" in out
    assert "Example" in out


def test_help_is_shown_as_it_is_written(capsys, monkeypatch):
    """Rich takes square brackets for its own markup."""
    monkeypatch.setenv("COLUMNS", "200")
    shown = " ".join(re.sub("[│╭╰─╮╯]", " ", ok(capsys, "sweep", "--help")[0]).split())
    assert "--grid 'strategy=[bsp, asp]' --grid 'optimizer.lr=[0.05, 0.1]' --seeds 3" in shown
    assert "For example strategy=[bsp, asp], optimizer.lr=[0.05, 0.1]." in shown


def test_help_of_list_names_every_kind(capsys):
    words = set(re.findall("[a-z]+", ok(capsys, "list", "--help")[0]))
    assert words >= {*KINDS}


def test_no_command_shows_the_help(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert "compare" in out + err
    assert "error" not in err


def test_lab_without_jupyterlab_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setattr("psbench.cli.lab.find_spec", lambda name: None)
    assert main(["lab"]) == 2
    assert "pip install 'psbench[lab]'" in capsys.readouterr().err


def test_lab_starts_jupyterlab_on_the_folder(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr("psbench.cli.lab.subprocess.call", lambda command: called.append(command) or 0)
    assert main(["lab", str(tmp_path)]) == 0
    assert called == [[sys.executable, "-m", "jupyterlab", str(tmp_path)]]


# ------------------------------------------------------------------ what a terminal obeys


STEERING = "\x1b[31mRED\x1b]0;owned\x07\x9b2J\u202e"


def test_a_name_that_steers_a_terminal_is_refused(tmp_path, capsys):
    for number, spec in enumerate(
        ({"name": STEERING}, {"name": "two\nlines"}, {"strategy": {"name": STEERING, "consistency": "asp"}})
    ):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(spec | {"cluster": {"workers": 2}, "stop": {"updates": 4}}))
        assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 2
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err
        assert err.startswith(f"error: {path}: ")
        assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_nothing_that_is_printed_steers_a_terminal(saved, tmp_path, capsys, monkeypatch):
    """Paths, texts of saved runs, labels of comparisons and warnings are written out."""
    folder = shutil.copytree(saved, tmp_path / f"{STEERING}-run")
    record = json.loads((folder / "run.json").read_text())
    record["meta"] |= {"reason": STEERING, "lr_convention": STEERING}
    (folder / "run.json").write_text(json.dumps(record))
    assert main(["report", str(folder)]) == 0
    assert main(["export", str(folder), "--csv", str(folder / "run.csv")]) == 0
    assert main(["replay", str(folder / "nothing")]) == 2
    run = Run.load(folder)
    run.experiment.__dict__["name"] = run.meta["name"] = STEERING
    print(compare([run]))
    put(summary_text(run.summary()))
    put(as_json_text({"name": STEERING}))
    say(STEERING)
    monkeypatch.setattr("psbench.cli.monitor.LINE_EVERY_S", 0.0)
    monkeypatch.setattr("psbench.cli.monitor.FIRST_LINE_S", 0.0)
    run_all([(STEERING, run.experiment.but(name="x"))])
    out, err = capsys.readouterr()
    assert not [each for each in out + err if each != "\n" and unicodedata.category(each) in ("Cc", "Cf")]
    assert "\\x1b[31mRED" in out
    assert "\\x1b[31mRED" in err


def test_all_that_is_printed_is_made_safe_first():
    """Whatever prints outside of the two functions for it names `shown`, or prints a constant."""
    found = []
    for path in sorted(Path(psbench.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for call in ast.iter_child_nodes(node) if not isinstance(node, ast.FunctionDef) else ():
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "print":
                    found += [f"{path.name}:{call.lineno}"] if "shown" not in ast.unparse(call) else []
    allowed = {"starting.py"}  # the text of its line is made safe before
    assert {each.partition(":")[0] for each in found} <= allowed
