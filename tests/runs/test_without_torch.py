"""A recorded run opens where there is no torch, and in a browser's Python: log, charts, moments, replay."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import psbench as ps
from psbench.testing import toy_experiment
from psbench_widgets.handout import write_handout

ROOT = Path(__file__).parents[2]
#: what a browser has not: Pyodide has no wheels of these, and the requirements leave them out there
ABSENT = (
    "torch",
    "torchvision",
    "pyarrow",
    "dask",
    "distributed",
    "psutil",
    "safetensors",
    "vl_convert",
)
ABSENT += ("sklearn", "cryptography", "typer", "anywidget", "ipywidgets")
SCRIPT = """
import psbench as ps
from psbench_widgets.handout import write_handout

run = ps.Run.load(sys.argv[1])
print(run.summary()["status"], len(run.metrics), ps.replay(run) == len(run.log), run.parameters)
print(run.log.digest(), len(run.chart().to_dict()["vconcat"]))
write_handout(run, sys.argv[1] + "/run.html")
print(ps.strategies.ssp(staleness_bound=3).name, ps.Experiment(strategy="asp").num_workers)
"""


@pytest.fixture
def kept(tmp_path):
    """A run in the format for a browser, and what a script that opens it prints."""
    run = ps.run(toy_experiment("ssp"))
    run.save(tmp_path / "run", log="json")
    charts = len(run.chart().to_dict()["vconcat"])
    return run, [f"finished {len(run.metrics)} True None", f"{run.log.digest()} {charts}", "ssp 9"]


def opened(command, run, expected, folder):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == expected
    # every moment with its reasons, and the charts' rows: the same as where the run was made
    here = write_handout(run, folder / "here.html").read_bytes()
    assert (folder / "run" / "run.html").read_bytes() == here


def test_a_recorded_run_opens_without_torch(kept, tmp_path):
    absent = f"import sys; sys.modules.update(dict.fromkeys({ABSENT}))\n"  # importing such a name fails
    opened([sys.executable, "-c", absent + SCRIPT, str(tmp_path / "run")], *kept, tmp_path)


@pytest.mark.nightly
@pytest.mark.skipif(not os.environ.get("PSBENCH_PYODIDE"), reason="PSBENCH_PYODIDE names no folder with it")
def test_a_recorded_run_opens_in_pyodide(kept, tmp_path):
    """The folder has `node_modules/pyodide`, of npm, and `wheels` that Pyodide adds (numpy, pandas, ...)."""
    node = [shutil.which("node"), str(Path(__file__).with_name("open_run.mjs"))]
    places = [os.environ["PSBENCH_PYODIDE"], str(ROOT), str(tmp_path / "run")]
    opened([*node, *places, "import sys\n" + SCRIPT], *kept, tmp_path)


def test_what_a_browser_is_asked_to_install_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [Requirement(each) for each in project["dependencies"]]
    browser = {
        each.name for each in needs if not each.marker or each.marker.evaluate({"sys_platform": "emscripten"})
    }
    # Pyodide has wheels of these, or they are pure Python
    pure = {"altair", "cloudpickle", "jinja2", "markdown-it-py", "pydantic", "rich"}
    assert browser == pure | {"numpy", "pandas", "pillow", "pyarrow", "pyyaml", "scipy"}
    assert all(each.marker is None or each.marker.evaluate() for each in needs)  # here all are
