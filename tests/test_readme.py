"""Every code block of the README and of the guide runs, and what it shows is what one gets."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from psbench.cli import main
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run
from psbench.strategies import CATALOGUE

ROOT = Path(__file__).parent.parent
README, GUIDE, MEASUREMENTS = (
    (ROOT / path).read_text()
    for path in ("README.md", "notebooks/site/guide.md", "notebooks/site/measurements.md")
)
TEXT = README + GUIDE  # the guide goes on from the README
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [body for found, body in BLOCKS if found == language]


def lines_of(language: str, program: str) -> list[list[str]]:
    """The shell lines that call `program`, as words."""
    lines = [shlex.split(line, comments=True) for body in blocks(language) for line in body.splitlines()]
    return [words for words in lines if words[:1] == [program]]


def judge(run: Run) -> str:
    """Refuse an example that did not learn; of two classes half would be right by chance, of ten a tenth."""
    accuracy = run.summary()["best_val_accuracy"]
    assert accuracy > (0.9 if run.experiment.data.name == "digits" else 0.75), (run, accuracy)
    assert not [text for text in run.summary()["warnings"] if "rate" in text], run
    return run.experiment.title


@pytest.mark.slow
def test_what_its_yaml_composes_learns() -> None:
    """Examples that name no data: the default experiment, a strategy composed of parts, a robust one."""
    examples = [Experiment.from_spec(yaml.safe_load(body)) for body in blocks("yaml")]
    learns = [each for each in examples if each.data.name == "digits" and each.backend == "simulated"]
    assert [each.title for each in learns] == ["strategy-switch-on-c2", "custom", "custom"]
    for each in learns:
        judge(run(each.but(stop={"epochs": 12})))


@pytest.mark.slow
def test_python_blocks_run_in_order_and_print_what_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("readme")  # a module that can be found again, as pickling a class needs
    monkeypatch.setitem(sys.modules, "readme", module)
    # a class of this module cannot be found by other processes, as one of a script can
    monkeypatch.setattr("psbench.runs.sweeps.execution.cores", lambda: 1)
    space = vars(module)
    printed, judged = [], set()
    for body in blocks("python"):
        exec(compile(body, "README.md", "exec"), space)
        printed.append(capsys.readouterr().out)
        judged |= {judge(run) for run in [space["runs"][-1], space.get("mine")] if isinstance(run, Run)}
        judged |= {judge(run) for run in space["comparison"].runs}
    assert {"asp", "bsp", "ssp", "all_reduce", "custom"} <= judged
    # virtual times, staleness and bytes depend on no CPU's arithmetic; accuracies may, in the last digit
    shown = blocks("text")[0]
    for name in ("time (s)", "speed-up", "updates", "staleness mean", "staleness max", "idle", "MB sent"):
        row = next(line for line in shown.splitlines() if line.startswith(name))
        assert row.split() in [line.split() for line in printed[0].splitlines()], name
    assert (tmp_path / "compare.html").stat().st_size > 100_000
    for name in ("mine.html", "sweep.html", "best.html", "curves.csv"):
        assert (tmp_path / name).is_file(), name


def test_yaml_blocks_are_experiments() -> None:
    for body in blocks("yaml"):
        values = yaml.safe_load(body)
        experiment = Experiment.from_spec(values)
        assert Experiment.from_spec(experiment.spec()) == experiment


@pytest.mark.slow
def test_psbench_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    called = lines_of("bash", "psbench")
    assert len(called) >= 4
    for words in called:
        assert main(words[1:]) == 0, words


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_lines_are_targets() -> None:
    called = lines_of("bash", "make")
    assert {"demo", "test", "quick", "bench"} <= {words[1] for words in called}
    for words in called:
        subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)


def test_the_table_of_strategies_is_the_catalogue() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| (?:`(\w+)`|–) \|$", README, re.MULTILINE)
    assert [row[:3] for row in rows] == [(e.name, e.summary, e.source) for e in CATALOGUE.values()]
    numbers = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|$", MEASUREMENTS, re.MULTILINE)
    measured = {name: (float(accuracy), float(speed_up)) for name, accuracy, speed_up in numbers}
    assert len(measured) > 20
    assert set(measured) <= set(CATALOGUE)
    assert measured["bsp"][1] == 1.0  # what the others are compared with
    assert all(90 < accuracy <= 100 for accuracy, _ in measured.values())


def test_forms_and_workflows_can_be_read_and_call_targets() -> None:
    """GitHub shows a form that is no YAML to no reader, and says nothing."""
    files = {
        path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github").rglob("*.yml"))
    }
    assert files["bug"]["body"]
    assert files["strategy"]["body"]
    ran = {
        step.get("run", "").split("#")[0].strip()
        for name in ("test", "nightly")
        for job in files[name]["jobs"].values()
        for step in job["steps"]
    }
    assert {"bash .ci/run", "make nightly"} <= ran
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("exec make test")
    assert "nightly: test notebooks lowest" in (ROOT / "Makefile").read_text()
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["version"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_notebooks_it_names_exist() -> None:
    named = set(re.findall(r"(?:notebooks/)?(\d\d_\w+)", TEXT))
    assert named
    for name in named:
        assert (ROOT / "notebooks" / f"{name}.ipynb").is_file(), name


def test_what_it_shows_and_links_to_exists() -> None:
    shown = re.findall(r"!?\[.+?\]\((?!https?:)(.+?)\)", README)
    assert shown
    for path in shown:
        assert (ROOT / path).is_file(), path
