"""The examples in the docstrings, of one module after another."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = [
    *(ROOT / "psbench", ROOT / "tests/psbench_fuzz", ROOT / "notebooks/assignments/psbench_course"),
    ROOT / "notebooks/reproduce/psbench_papers",
]
#: files, each with the folder from which it is imported
FILES = [
    (ROOT, ROOT / "tests/oracles/moment.py"),
    *((package.parent, path) for package in PACKAGES for path in sorted(package.rglob("*.py"))),
]


MODULES = [
    ".".join(path.relative_to(home).with_suffix("").parts).removesuffix(".__init__")
    for home, path in FILES
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_show_what_is_printed(name):
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), name)
    examples = [each for each in found if each.examples]
    assert examples
    runner = doctest.DocTestRunner()
    assert not sum(runner.run(each).failed for each in examples)
