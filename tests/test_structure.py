"""How the package is built: no cycles, few arguments, privacy, and little in the package root."""

import ast
import json
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import grimp
import numpy as np
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from psbench.cli import main
from psbench.experiment import Experiment
from psbench.training.build import Workload
from psbench_widgets.check import as_values, check

ROOT = Path(__file__).parent.parent
PACKAGES = (
    *(ROOT / "psbench", ROOT / "widgets/psbench_widgets", ROOT / "tests/psbench_fuzz"),
    *(ROOT / "notebooks/assignments/psbench_course", ROOT / "notebooks/reproduce/psbench_papers"),
)
FILES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))

#: what belongs in the package root: what people import and call, and what every folder needs
IN_THE_ROOT = {
    *("__init__.py", "__main__.py", "py.typed", "errors.py", "seeds.py", "references.py"),
    *(
        "experiment.py",
        "specfile.py",
        "terminal.py",
        "progress.py",
        "progress_events.py",
        "percents.py",
        "arrays.py",
        "backend.py",
    ),
}

#: words for persons, and the files in which one of them is an answer of the panel's
PERSONS = re.compile(r"\b(nobody|somebody|everybody|anybody|a person|person's)\b", re.IGNORECASE)
ANSWERS = {"predictions.py", "lab.py"}
#: a path in a text, with a folder or the ending of a module, and where it may begin
PATH = re.compile(r"`([\w<>.-]+/[\w<>./-]*|\w+\.(?:py|js))`")
HOMES = [
    ROOT,
    ROOT / "psbench",
    ROOT / "psbench/backends/dask",
    ROOT / "psbench/causes",
    ROOT / "psbench/optimal",
    ROOT / "psbench/twin",
]
#: documents of the site that name files
SITE = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "notebooks/site").rglob("*.md"))
TEXTS = ["DESIGN.md", "README.md", "CONTRIBUTING.md", *SITE]
#: the target of a link, without the heading
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
#: documents that `notebooks/site/catalogue_pages.py` copies to the site
COPIED = {"design.md"}
#: letters of a test's name
LONGEST_NAME = 69
#: arguments of a constructor, those of data classes aside
MOST_ARGUMENTS = 8
#: files that read what another library keeps for itself: Dask (what its fork server loads), torch (buffers by
#: name, which a module gives out only slowly, hooks of tensors, and the function that moves a module)
READS_PRIVATES = {
    *("psbench/system/private_apis.py", "psbench/models/base.py", "psbench/training/buffers.py"),
    *("psbench/training/dense_gradient.py", "psbench/training/dry_run.py"),
    "psbench/training/forward_state.py",
}
#: public in spite of their names: attributes of named tuples, and the exit without clean-up
PUBLIC = {"_asdict", "_fields", "_replace", "_exit"}


def cycles(imports):
    """Return the strongly connected components of more than one module, of a mapping module -> imported."""
    names = sorted({*imports, *(name for imported in imports.values() for name in imported)})
    number = {name: i for i, name in enumerate(names)}
    edges = [(number[name], number[other]) for name in imports for other in imports[name]]
    rows, columns = zip(*edges, strict=True) if edges else ((), ())
    graph = coo_matrix((np.ones(len(edges)), (rows, columns)), shape=(len(names),) * 2)
    _, labels = connected_components(graph, connection="strong")
    members = {label: frozenset(np.array(names)[labels == label].tolist()) for label in set(labels)}
    return {found for found in members.values() if len(found) > 1}


def long_constructors(nodes):
    """Return the classes of a file, data classes aside, whose constructor has too many arguments."""
    found = []
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                    arguments = each.args.posonlyargs + each.args.args + each.args.kwonlyargs
                    if len(arguments) > 1 + MOST_ARGUMENTS:
                        found.append(node.name)
    return found


def starred_tuples(nodes):
    """Return the lines of calls that pass positional arguments as a tuple with a star."""
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    given = [argument for call in calls for argument in call.args if isinstance(argument, ast.Starred)]
    return [each.lineno for each in given if isinstance(each.value, ast.Tuple)]


def foreign_privates(nodes):
    """Return the private attributes that a file reads of an object that is not of a class of its own.

    A name that some class or function of the file defines, or sets on itself, is the file's own.
    """
    own = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    others = []
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("_"):
            itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if itself and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
            elif not itself:
                others.append(node)
    found = [ast.unparse(each) for each in others if each.attr not in own | PUBLIC]
    return [each for each in found if not each.startswith("super()._")]


# -------------------------------------------------------------------- the package


@cache
def import_graph():
    return grimp.build_graph(*(package.name for package in PACKAGES), cache_dir=None)


def test_no_modules_import_each_other_in_a_cycle():
    """Imports in functions and for type checking count."""
    graph = import_graph()
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    found = cycles(imports)
    assert [sorted(each) for each in found] == []


def test_no_folders_import_each_other_in_a_cycle():
    """A module of the package root counts as a folder, and so does an `__init__`: the face of its folder."""
    graph, imports = import_graph(), {}
    for name in graph.modules:
        imported = graph.find_modules_directly_imported_by(name)
        others = {folder_of(each, graph) for each in imported}
        imports.setdefault(folder_of(name, graph), set()).update(others - {folder_of(name, graph)})
    assert [sorted(each) for each in cycles(imports)] == []


def folder_of(module, graph):
    parts = module.split(".")
    if graph.find_children(module):
        return f"{module}.__init__"
    return module if len(parts) < 3 else ".".join(parts[:-1])


def nodes_of(text):
    """Return all nodes of a file's text, the module first."""
    return [*ast.walk(ast.parse(text))]


@cache
def files():
    return {str(path.relative_to(ROOT)): nodes_of(path.read_text()) for path in FILES}


def test_constructors_have_few_arguments():
    found = {name for nodes in files().values() for name in long_constructors(nodes)}
    assert found == set()


def test_no_tuple_with_a_star_passes_positional_arguments():
    found = {path for path, nodes in files().items() if starred_tuples(nodes)}
    assert found == set()


def test_no_file_reads_a_private_attribute_of_a_class_of_another():
    found = {(path, each) for path, nodes in files().items() for each in foreign_privates(nodes)}
    assert {each for each in found if each[0] not in READS_PRIVATES} == set()


def test_the_package_root_holds_what_belongs_there():
    found = {path.name for path in (ROOT / "psbench").iterdir() if path.suffix in {".py", ".typed"}}
    assert found == IN_THE_ROOT


def test_processes_workers_and_users_are_called_that():
    """What the panel asks has the answer "nobody"."""
    found = {path.name for path in FILES if path.name not in ANSWERS and PERSONS.search(path.read_text())}
    assert found == set()


def test_names_of_tests_are_short():
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    names = {name for text in texts for name in re.findall(r"^ *def (test_\w+)", text, re.MULTILINE)}
    assert len(names) > 2000
    assert sorted(name for name in names if len(name) > LONGEST_NAME) == []


def test_the_drawing_of_the_packages_is_the_contract():
    named = [name.strip() for layer in layers() for name in layer.split("|")]
    page = (ROOT / "notebooks/site/architecture.md").read_text()
    drawing = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1]
    assert re.findall(r"\bpsbench[.\w]+", drawing) == named
    modules = {
        name.split(".")[0] if name.startswith("psbench_") else ".".join(name.split(".")[:2])
        for name in import_graph().modules
    }
    assert modules - {"psbench", "psbench.__main__"} == set(named)


#: pydantic calls the validators of the class that it builds from here
BUILDER = "psbench.core.specification"
#: an experiment asks its backend, which is found by its name, whether it can run it
ASKS_BACKEND = ("psbench.experiment", "psbench.backends.simulated")


def test_an_experiment_is_handed_down_from_command_to_engine(capsys):
    calls = handed_on(lambda: main(["run", "--set", "stop.updates=4", "--json"]))
    assert json.loads(capsys.readouterr().out)["updates"] == 4
    assert ("psbench.backends.simulated.simulation", "psbench.training.build") in calls  # to build the engine
    check_upward(calls)


def test_values_of_the_panel_are_handed_down_to_the_experiment():
    found = []
    calls = handed_on(lambda: found.append(check(as_values(Experiment())).experiment))
    assert found == [Experiment()]
    check_upward(calls)


def check_upward(calls):
    up = upward(calls)
    assert {(caller, callee) for caller, callee in up if caller != BUILDER} == {ASKS_BACKEND}
    assert len(up) <= 3


@pytest.mark.parametrize("text", TEXTS)
def test_paths_that_texts_name_exist(text):
    """Every path with a folder, and every module; a text may leave out the package."""
    assert missing_paths((ROOT / text).read_text()) == []


@pytest.mark.parametrize("text", TEXTS)
def test_links_of_texts_lead_to_files(text):
    """Links and pictures, except addresses on the internet."""
    assert broken_links(ROOT / text) == []


def layers():
    """Return the layers of packages from top to bottom, as the import contract lists them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [layer for each in contracts if each["type"] == "layers" for layer in each["layers"]]


def handed_on(work):
    """Return the pairs of modules of which one hands an experiment, or values of one, to the other."""
    names = {
        str(path): ".".join(path.relative_to(p.parent).with_suffix("").parts)
        for p in PACKAGES
        for path in p.rglob("*.py")
    }
    pairs = set()

    def look(frame, event, _):
        if event != "call" or (callee := names.get(frame.f_code.co_filename)) is None:
            return
        code = frame.f_code
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if not any(is_of_an_experiment(frame.f_locals.get(name)) for name in given):
            return
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename not in names:
            caller = caller.f_back
        if caller is not None:
            pairs.add((names[caller.f_code.co_filename], callee))

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return {tuple(name.removesuffix(".__init__") for name in pair) for pair in pairs}


def is_of_an_experiment(value):
    is_specification = isinstance(value, dict) and bool({"strategy", "name"} & value.keys())
    return is_specification or isinstance(value, (Experiment, Workload))


def upward(calls):
    """Return the calls from a module to one of a higher layer."""
    levels = {name.strip(): -place for place, layer in enumerate(layers()) for name in layer.split("|")}

    def level(module):
        return next(levels[name] for name in levels if f"{module}.".startswith(f"{name}."))

    return {(caller, callee) for caller, callee in calls if level(callee) > level(caller)}


def broken_links(path):
    """Return the links of a text without a file; documents that the site copies from elsewhere count."""
    links = {link for link in LINK.findall(path.read_text()) if not (path.parent / link).is_file()}
    return sorted(link for link in links if Path(link).name not in COPIED)


def missing_paths(text):
    """Return the paths of a text for which there is nothing."""
    named = [path for path in PATH.findall(text) if "<" not in path]
    return sorted({path for path in named if not any((home / path).exists() for home in HOMES)})


# -------------------------------------------------------------------- that the tests see what they should


def test_a_call_to_a_higher_layer_is_found():
    calls = {
        ("psbench.runs.execution", "psbench.cli.monitor"),
        ("psbench.runs.execution", "psbench.experiment"),
    }
    assert upward(calls) == {("psbench.runs.execution", "psbench.cli.monitor")}


def test_cycles_are_found():
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "e": {"f"}, "f": {"e"}}
    assert cycles(imports) == {frozenset("bc"), frozenset("ef")}
    assert cycles({"a": {"b"}}) == cycles({}) == set()


def test_long_constructors_are_found():
    names = ", ".join(f"a{i}" for i in range(MOST_ARGUMENTS))
    short, long = (f"class A:\n    def __init__(self, {each}): ...\n" for each in (names, names + ", *, b"))
    assert (long_constructors(nodes_of(short)), long_constructors(nodes_of(long))) == ([], ["A"])


def test_words_for_persons_are_found():
    assert [
        bool(PERSONS.search(text)) for text in ("Nobody waits", "a person's", "a worker", "personal")
    ] == [*(True, True, False, False)]


def test_paths_of_nothing_are_found():
    text = (
        "| `core/engine.py`, `core/nothing.py` | `tests/`, `strategies/ghost/` | `some.value` | `engine.py` |"
    )
    assert missing_paths(text) == ["core/nothing.py", "engine.py", "strategies/ghost/"]


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("[a](page.md#b) [c](ghost.md) ![d](ghost.png) [e](https://e.org) [f](../design.md)")
    assert broken_links(page) == ["ghost.md", "ghost.png"]


def test_tuples_with_a_star_are_found():
    assert starred_tuples(nodes_of("f(1, *(a, b))")) == [1]
    assert starred_tuples(nodes_of("f(*given)\nx = *a, b\n{*(a, b)}")) == []


def test_private_attributes_of_others_are_found():
    own = "class A:\n    def __init__(self, b):\n        self._x = 1\n    def same(self, b):\n        "
    assert foreign_privates(nodes_of(own + "return self._x == b._x")) == []
    assert foreign_privates(nodes_of(own + "return b._y, super()._z")) == ["b._y"]
