"""Every code block of the README and of the how-tos runs, and prints what is shown."""

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
SITE = ROOT / "notebooks/site"
README, MEASUREMENTS = ((path).read_text() for path in (ROOT / "README.md", SITE / "measurements.md"))
#: what tells a reader what to type: the README, and a page for each task
PAGES = {path.stem: path.read_text() for path in [ROOT / "README.md", *sorted((SITE / "howto").glob("*.md"))]}
TEXT = "\n".join(PAGES.values())


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def lines_of(language: str, program: str, text: str = TEXT) -> list[list[str]]:
    """The shell lines that call `program`, as words."""
    lines = [
        shlex.split(line, comments=True) for body in blocks(language, text) for line in body.splitlines()
    ]
    return [words for words in lines if words[:1] == [program]]


def judge(run: Run) -> str:
    """Refuse an example that did not learn; of two classes half would be right by chance, of ten a tenth."""
    accuracy = run.summary()["best_val_accuracy"]
    assert accuracy > (0.9 if run.experiment.data.name == "digits" else 0.75), (run, accuracy)
    assert not [text for text in run.summary()["warnings"] if "rate" in text], run
    return run.experiment.title


@pytest.mark.slow
def test_what_its_yaml_composes_learns() -> None:
    """Examples on digits: samples that are chosen, a strategy composed of parts, a robust one, a switch."""
    examples = [Experiment.from_spec(yaml.safe_load(body)) for body in blocks("yaml")]
    learns = [each for each in examples if each.data.name == "digits" and each.backend == "simulated"]
    assert [each.title for each in learns] == ["asp", "custom", "custom", "strategy-switch-on-c2"]
    for each in learns:
        judge(run(each.but(stop={"epochs": 12})))


@pytest.mark.by_day(2)
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if blocks("python", text)])
def test_python_blocks_run_in_order_and_learn(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType(page)  # a module that can be found again, as pickling a class needs
    monkeypatch.setitem(sys.modules, page, module)
    # a class of this module cannot be found by other processes, as one of a script can
    monkeypatch.setattr("psbench.runs.sweeps.execution.cores", lambda: 1)
    space = vars(module)
    for body in blocks("python", PAGES[page]):
        exec(compile(body, f"{page}.md", "exec"), space)
    printed = capsys.readouterr().out
    runs = [each for each in space.values() if isinstance(each, Run)]
    runs += space["comparison"].runs if "comparison" in space else []
    judged = {judge(run) for run in runs}
    assert judged or {"check_strategy", "check_backend", "engine"} & space.keys()
    for name in re.findall(r'"(\w+\.(?:html|csv))"', PAGES[page]):
        assert (tmp_path / name).is_file(), name
    if page != "README":
        return
    assert {"all_reduce", "ssp", "asp"} <= judged
    # virtual times, staleness and bytes depend on no CPU's arithmetic; accuracies may, in the last digit
    shown = blocks("text", README)[0]
    for name in ("time (s)", "speed-up", "updates", "staleness mean", "staleness max", "waiting", "MB sent"):
        row = next(line for line in shown.splitlines() if line.startswith(name))
        assert row.split() in [line.split() for line in printed.splitlines()], name
    assert (tmp_path / "compare.html").stat().st_size > 100_000


def test_yaml_blocks_are_experiments() -> None:
    for body in blocks("yaml"):
        values = yaml.safe_load(body)
        experiment = Experiment.from_spec(values)
        assert Experiment.from_spec(experiment.spec()) == experiment


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if lines_of("bash", "psbench", text)])
def test_psbench_lines_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in lines_of("bash", "psbench", PAGES[page]):
        assert main(words[1:]) == 0, words


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_lines_are_targets() -> None:
    called = lines_of("bash", "make")
    assert {"demo", "test", "quick", "bench"} <= {words[1] for words in called}
    for words in called:
        subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)


def test_the_measured_strategies_are_of_the_catalogue() -> None:
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
