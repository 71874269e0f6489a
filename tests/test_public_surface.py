"""The public surface and what it costs to import, the walls between folders, the lists of dependencies."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import psbench
from psbench.system.private_apis import NAME, defer_grammar

ROOT = Path(__file__).resolve().parents[1]
LARGE = (
    "torch",
    "torchvision",
    "dask",
    "distributed",
    "cryptography",
    "altair",
    "pandas",
    "sklearn",
    "pyarrow",
    "IPython",
)


def test_all_is_sorted_and_is_the_whole_surface():
    assert sorted(psbench.__all__) == psbench.__all__
    assert dir(psbench) == psbench.__all__
    for name in psbench.__all__:
        assert getattr(psbench, name) is not None


def test_all_agrees_with_what_type_checkers_see():
    tree = ast.parse(Path(psbench.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported | {"__version__"} == set(psbench.__all__)


def test_what_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        psbench.nothing_of_the_kind  # noqa: B018


@pytest.mark.nightly
def test_charts_load_the_grammar_of_addresses_only_when_needed(monkeypatch):
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    defer_grammar()
    stand_in = sys.modules[NAME]
    importlib.reload(jsonschema._format)
    assert sys.modules[NAME] is stand_in
    assert stand_in.is_valid_syntax("iri", "http://例え.jp/")
    assert not stand_in.is_valid_syntax("iri", "no address")
    assert stand_in.syntax_parser is sys.modules[NAME].syntax_parser
    assert sys.modules[NAME] is not stand_in


def test_functions_are_not_shadowed_by_modules_of_their_name():
    import psbench.runs.comparing
    import psbench.runs.execution

    assert callable(psbench.run)
    assert callable(psbench.compare)
    assert callable(psbench.replay)


LOADED_AFTER = """
import json, os, sys
shown, sys.stdout = sys.stdout, open(os.devnull, "w")
found = {}
for statement in json.loads(sys.argv[1]):
    exec(statement)
    found[statement] = sorted(sys.modules)
json.dump(found, shown)
shown.flush()
"""


def large_after(*statements: str) -> dict[str, set[str]]:
    """Return which large libraries are loaded after each of some statements in one fresh interpreter.

    Statements after which there are none are left out.
    """
    command = [sys.executable, "-c", LOADED_AFTER, json.dumps(statements)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {each: large for each, names in json.loads(done.stdout).items() if (large := {*LARGE} & {*names})}


def test_nothing_large_is_loaded_before_it_is_needed():
    """Nor by commands that look things up or are refused; what is loaded is seen."""
    statements = [
        "import psbench",
        "psbench.strategies.ssp(staleness_bound=3)",
        "psbench.Experiment(cluster='hermes', strategy='ssp').to_yaml()",
        "import psbench.core, psbench.clusters, psbench.sharding",
        "from psbench.cli import main",
    ]
    commands = [
        *(["--help"], ["run", "--help"], ["list", "strategies"], ["list", "models"]),
        *(["reproduce", "nope"], ["reproduce", "hermes", "Table 99"], ["verify", "nope"]),
        *(["doctor", "--scheduler", "tcp://127.0.0.1:1"], ["runs", "--scheduler", "tcp://127.0.0.1:1"]),
        ["run", "--set", "strategy=asp", "--backend", "dask", "--scheduler", "tcp://127.0.0.1:1"],
        ["run", "--backend", "dask", "--scheduler-file", "/nope"],
        ["sweep", "--grid", "strategy=[bsp]", "--scheduler", "tcp://127.0.0.1:1"],
        *([name, "/nope"] for name in ("compare", "report", "optimal", "predict", "resume")),
        *(["why", "/nope", "--against", "/nope"], ["calibrate", "--from", "/nope"], ["run", "--resume"]),
    ]
    calls = (f"main({words!r})" for words in commands)
    found = large_after(*statements, *calls, "import pyarrow", "pass")
    assert found == {"import pyarrow": {"pyarrow"}, "pass": {"pyarrow"}}


def test_a_dask_scheduler_does_not_import_torch_for_its_page():
    """While it imports, it answers nobody, and counts Dask workers as silent."""
    (found,) = large_after("import psbench.backends.dask.dashboard_page").values() or [set()]
    assert "torch" not in found


RUN_IN_A_TERMINAL = """
import io, sys

class Terminal(io.StringIO):
    first = None

    def isatty(self):
        return True

    def write(self, text):
        if self.first is None:
            self.first = (text, sorted(sys.modules))
            if sys.argv[1:] == ["no further"]:
                raise SystemExit
        return super().write(text)

out, sys.stdout, sys.stderr = sys.stdout, io.StringIO(), Terminal()
from psbench.cli import main
try:
    main(["run", "--set", "strategy=bsp", "--set", "stop.updates=1"])
except SystemExit:
    pass
import json
json.dump([*sys.stderr.first, sorted(sys.modules)], out)
out.flush()  # it is no longer sys.stdout, which is flushed at the end
"""


@pytest.mark.parametrize("far", ["no further", pytest.param("to its end", marks=pytest.mark.nightly)])
def test_a_terminal_shows_something_before_anything_large_is_loaded(far: str):
    command = [sys.executable, "-c", RUN_IN_A_TERMINAL, far]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shown, before, after = json.loads(done.stdout)
    assert shown == "psbench: reading the specification ..."
    assert set(before) & {*LARGE, "numpy", "rich.console"} == set()
    if far == "no further":
        return
    needless = {"distributed", "altair", "torchvision", "cryptography"}
    assert set(after) & needless == set()
    assert "torch" in after


def test_walls_between_folders():
    # in a process of its own: it sets up logging for the whole process
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as f; f()"]
    done = subprocess.run([*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


# ------------------------------------------------------------------ environment.yml


#: conda calls them otherwise; what its dask needs for data frames is in its dask
CONDA_NAMES = {"torch": "pytorch", "dask[dataframe]": "dask"}


def as_conda(requirement: str) -> str:
    requirement = requirement.split(";")[0]  # who uses conda has no browser's Python
    name = requirement.replace(">", " ").replace("<", " ").replace("!", " ").split()[0]
    return CONDA_NAMES.get(name, name) + requirement.removeprefix(name)


def test_environment_for_conda_mirrors_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {as_conda(each) for each in (*project["dependencies"], *project["optional-dependencies"]["lab"])}
    wanted |= {f"python{project['requires-python']}", "pip"}
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    listed = {each for each in environment["dependencies"] if isinstance(each, str)}
    assert listed == wanted
    assert environment["dependencies"][-1] == {"pip": ["-e ."]}
    assert environment["channels"][0] == "conda-forge"
    recipe = yaml.safe_load((ROOT / "notebooks/site/conda/recipe.yaml").read_text())
    needs = {each.replace(" ", "", 1) for each in recipe["requirements"]["run"] if "{" not in each}
    assert needs == {each for each in wanted if not each.startswith(("python>", "pip"))}
    assert recipe["context"] == {"name": "psbench", "version": project["version"], "python_min": "3.11"}
    assert recipe["build"]["python"]["entry_points"] == [f"psbench = {project['scripts']['psbench']}"]


# ------------------------------------------------------------------ constraints.txt


def test_constraints_pin_what_is_required_for_every_python():
    """`make lock` writes them anew."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = [
        Requirement(each)
        for group in groups
        if group is not project["optional-dependencies"]["bench"]
        for each in group
    ]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [Requirement(line) for line in lines]
    assert not [line for line in lines if "://" in line or line.startswith(("-", "/", "."))]
    for need in wanted:
        pins = [pin for pin in pinned if pin.name == canonicalize_name(need.name)]
        assert pins or need.name == "psbench", f"{need.name} is not pinned"
        for pin in pins:
            (only,) = pin.specifier
            assert only.operator == "=="
            assert need.specifier.contains(only.version), f"{pin} is not {need}"
