"""The examples in the docstrings, of one module after another."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = [ROOT / "tests/oracles/moment.py", *sorted((ROOT / "psbench").rglob("*.py"))]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in FILES
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_show_what_is_printed(name):
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), name)
    examples = [each for each in found if each.examples]
    assert examples
    runner = doctest.DocTestRunner()
    assert not sum(runner.run(each).failed for each in examples)
