"""The page's half: its own tests in Node.js, and that the bundle was made from the sources that are here."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from psbench_widgets.frontend import STATIC

HERE = Path(__file__).parent
SOURCES = STATIC.parent / "js"
TESTS = sorted(HERE.glob("*.test.mjs"))


def test_the_bundle_was_made_from_these_sources() -> None:
    digest = hashlib.sha256()
    for file in sorted(SOURCES.iterdir()):
        if re.search(r"\.(js|mjs|css)$|^package.*json$", file.name):
            digest.update(file.read_bytes())
    first = (STATIC / "engine.js").read_text().partition("\n")[0]
    assert digest.hexdigest() in first, "run `npm ci && npm run build` in widgets/psbench_widgets/js"


def test_no_line_is_too_long() -> None:
    files = [*SOURCES.glob("*.js"), *SOURCES.glob("*.mjs"), *TESTS]
    lines = [(file.name, line) for file in files for line in file.read_text().splitlines()]
    assert [each for each in lines if len(each[1]) > 110] == []


def test_tooltips_define_terms_as_the_glossary_does() -> None:
    terms = re.findall(r'^  "(.+)": "(.+)",$', (SOURCES / "terms.js").read_text(), re.MULTILINE)
    glossary = (HERE.parents[1] / "notebooks/site/glossary.md").read_text()
    assert len(terms) > 5
    assert [each for each in terms if "| **{}** | {} |".format(*each) not in glossary] == []


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name.partition(".")[0])
def test_what_the_page_computes(file: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node found: install Node.js 20 or newer to test the page's half")
    done = subprocess.run([node, "--test", file], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
