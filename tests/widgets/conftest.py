"""A panel, and a JupyterLab and a browser for the tests that need them; screenshots: `build/screenshots`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from .jupyter import FLAGS, ROOT, Jupyter, Page, browser_path
from .panel import BRIEF, Panel


@pytest.fixture(scope="package")
def screenshots() -> Path:
    folder = ROOT / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="package")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    server = Jupyter(tmp_path_factory.mktemp("lab"))
    yield server
    server.close()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    path = browser_path()
    if path is None:
        pytest.skip("no browser found: install chromium, or set PSBENCH_BROWSER to one")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def context(chromium: Any) -> Iterator[Any]:
    """What all pages share: its cache spares them loading JupyterLab again."""
    size = {"width": 1440, "height": 1000}
    with closing(chromium.new_context(viewport=size, reduced_motion="reduce")) as shared:
        yield shared


@pytest.fixture
def page(context: Any, jupyter: Jupyter) -> Iterator[Page]:
    notebook = Page(jupyter, context)
    yield notebook
    notebook.page.close()
    jupyter.execute("if 'lab' in globals(): lab.close(); del lab")


@pytest.fixture
def panel(tmp_path: Path) -> Iterator[Panel]:
    """A panel without a browser, which leaves no thread behind."""
    before = {*threading.enumerate()}
    lab = Panel(BRIEF, folder=tmp_path / "runs")
    yield lab
    lab.close()
    assert [t.name for t in {*threading.enumerate()} - before if t.name.startswith("psbench")] == []


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    """A panel after one run, for tests that look at it."""
    with closing(Panel(BRIEF, folder=tmp_path_factory.mktemp("brief") / "runs")) as lab:
        lab.click(BRIEF)
        assert lab.wait(120)
        yield lab
