"""A package of a stranger's, built and installed, adds a command, a backend and a strategy."""

import json
import os
import subprocess
import sys
import zipfile

import pytest
from hatchling.builders.wheel import WheelBuilder

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "stranger"
version = "1.0"
[project.entry-points."psbench.commands"]
greet = "stranger:greet"
run = "stranger:greet"
broken = "stranger:nothing_of_the_kind"
[project.entry-points."psbench.backends"]
twice = "stranger:TWICE"
[project.entry-points."psbench.strategies"]
stranger = "stranger"
"""
MODULE = '''
from psbench.backend import Backend
from psbench.backends.simulated import BACKEND
from psbench.core import Commit, Consistency, Release
from psbench.errors import ParameterError
from psbench.strategies import Published, register


def greet(name: str = "you"):
    """Say hello."""
    print(f"hello {name}")


class Eager(Consistency):
    """Commit every push at once."""

    name = "eager"
    waits_for = "none"
    singly = True

    def on_push(self, push, view):
        return [Commit([push]), Release(push.worker)]


register(Published("eager", "commits every push at once", "this test", parts=[Eager]))


def check(experiment):
    if experiment.num_workers % 2:
        raise ParameterError("cluster: the backend 'twice' needs an even number of workers")


def run(workload, log, *given, client=None):
    found = BACKEND.run(workload, log, *given)
    found.facts["was"] = "here"
    return found


TWICE = Backend(run=run, check=check)
'''
SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import psbench as ps
from psbench.backend import backend_names
from psbench.testing import toy_experiment

done = ps.run(toy_experiment("eager", backend="twice", cluster={"workers": 2}))
plain = ps.run(toy_experiment("asp", cluster={"workers": 2}))
try:
    toy_experiment("eager", backend="twice", cluster={"workers": 3})
except ps.SpecError as error:
    refusal = str(error)
report = ps.compare([done]).report(sys.argv[1]).read_text()
same = [run.log.of_kind(2)["time_s"].tolist() for run in (done, plain)]
facts = {"was": done.meta["was"], "reported": "Runs of twice: What a repetition reproduces" in report}
facts["same"] = same[0] == same[1] and len(same[0]) > 5
print(json.dumps(facts | {"refusal": refusal, "backends": backend_names()}))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return an environment in which the package is installed: a wheel of plain Python is only unpacked."""
    source, site = (tmp_path_factory.mktemp(name) for name in ("stranger", "site"))
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "stranger.py").write_text(MODULE)
    wheel = next(WheelBuilder(str(source)).build(directory=str(source / "dist")))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "100"}


def python(environment, *words):
    command = [sys.executable, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_command_is_run_listed_and_cannot_take_the_place_of_one_of_ours(environment):
    done = python(environment, "-m", "psbench", "greet", "--name", "Ada")
    assert (done.returncode, done.stdout) == (0, "hello Ada\n"), done.stderr
    shown = python(environment, "-m", "psbench", "--help")
    assert shown.returncode == 0
    assert "Say hello." in shown.stdout
    warned = [line for line in shown.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warned) == 2, shown.stderr
    assert "'broken' of psbench.commands (stranger:nothing_of_the_kind) cannot be loaded" in warned[0]
    assert "'run' of psbench.commands (stranger:greet) is ignored" in warned[1]


def test_a_backend_and_a_strategy_are_used_by_their_names(environment, tmp_path):
    done = python(environment, "-c", SCRIPT, str(tmp_path / "report.html"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["was"], found["same"], found["reported"]) == ("here", True, True)
    assert found["refusal"] == "cluster: the backend 'twice' needs an even number of workers"
    assert found["backends"] == ["simulated", "dask", "twice"]
