"""A saved notebook, opened in JupyterLab and not run: its charts are drawn, and nothing is fetched."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from .jupyter import ROOT, Jupyter, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

AXIS_TITLE = ".jp-RenderedVegaCommon5 svg.marks .role-axis-title text"


def colour(page: Page, selector: str) -> str:
    """Return the colour that a text is drawn in, as the browser has worked it out."""
    found: str = page.page.eval_on_selector(selector, "(e) => getComputedStyle(e).fill")
    return found


@pytest.mark.nightly
def test_charts_of_a_saved_notebook_are_drawn_in_the_colours_of_the_theme(
    page: Page, jupyter: Jupyter, screenshots: Path, chromium: Any
) -> None:
    shutil.copy(ROOT / "notebooks" / "01_first_run.ipynb", jupyter.folder)
    page.name = "01_first_run"
    page.page.goto(jupyter.address(page.name))
    page.ready()
    title = page.page.wait_for_selector(AXIS_TITLE, state="attached")
    assert title is not None
    title.scroll_into_view_if_needed()
    assert page.page.locator(".jp-RenderedImage").count() == 0  # the picture is for those who cannot draw
    light = colour(page, AXIS_TITLE)
    page.shot(screenshots / "notebook-light.png")
    page.theme("JupyterLab Dark")
    page.shot(screenshots / "notebook-dark.png")
    assert colour(page, AXIS_TITLE) != light
    assert page.errors == []
    assert page.strangers == []
