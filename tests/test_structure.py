"""How the package is built: no import cycles, small files and classes, and little in the package root."""

import ast
from pathlib import Path

import grimp
import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "psbench", ROOT / "widgets" / "psbench_widgets")
FILES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))

#: what belongs in the package root: what people import and call, and what every folder needs
IN_THE_ROOT = {
    *("__init__.py", "py.typed", "errors.py", "seeds.py", "references.py"),
    *("experiment.py", "specfile.py", "progress.py", "progress_events.py"),
}

MOST_LINES, MOST_METHODS = 400, 25
#: how a docstring begins the sentence that says why a file or class is larger
LONG_FILE, LARGE_CLASS = f"Over {MOST_LINES} lines because", f"Over {MOST_METHODS} methods because"


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


def oversized(source):
    """Return what of a file is too large and does not say why: of "file" and the names of classes."""
    tree = ast.parse(source)
    found = []
    if source.count("\n") > MOST_LINES and LONG_FILE not in (ast.get_docstring(tree) or ""):
        found.append("file")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) for each in node.body)
            if methods > MOST_METHODS and LARGE_CLASS not in (ast.get_docstring(node) or ""):
                found.append(node.name)
    return found


# -------------------------------------------------------------------- the package


def test_no_modules_import_each_other_in_a_cycle():
    """Imports in functions and for type checking count."""
    graph = grimp.build_graph("psbench", "psbench_widgets", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    found = cycles(imports)
    assert [sorted(each) for each in found] == []


def test_files_and_classes_are_small_or_say_why_not():
    files = [*FILES, *(ROOT / "tests").rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if oversized(path.read_text())}
    assert found == set(), f"split these, or say in the docstring: '{LONG_FILE} ...'"


def test_the_package_root_holds_what_belongs_there():
    found = {path.name for path in (ROOT / "psbench").iterdir() if path.suffix in {".py", ".typed"}}
    assert found == IN_THE_ROOT


# -------------------------------------------------------------------- that the tests see what they should


def test_cycles_are_found():
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "e": {"f"}, "f": {"e"}}
    assert cycles(imports) == {frozenset("bc"), frozenset("ef")}
    assert cycles({"a": {"b"}}) == cycles({}) == set()


def test_large_files_and_classes_are_found():
    methods = "".join(f"\n    def f{i}(self): ..." for i in range(MOST_METHODS + 1))
    assert oversized(f"class A:{methods}\n") == ["A"]
    assert oversized(f'class A:\n    """It is large.\n\n    {LARGE_CLASS} of this.\n    """{methods}\n') == []
    assert oversized("x = 1\n" * MOST_LINES) == []
    assert oversized("x = 1\n" * (MOST_LINES + 1)) == ["file"]
    assert oversized(f'"""{LONG_FILE} of this."""\n' + "x = 1\n" * MOST_LINES) == []
