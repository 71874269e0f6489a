"""The panel with targets that are numbers, of which there is no accuracy."""

from __future__ import annotations

from pathlib import Path

import pytest

from .jupyter import Page
from .test_browser_lab import panel, pick, wait_over, wait_rows

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_regression_is_run_and_its_loss_is_drawn(page: Page, screenshots: Path) -> None:
    web = panel(page, "numbers")
    web.click(".psb-advanced > summary")
    for section in ("data", "model"):
        place = web.locator(f".psb-section-{section}")
        if place.get_attribute("open") is None:
            place.locator("> summary").click()
    web.locator(".psb-section-data .psb-select").first.select_option("synthetic_table")
    web.locator('.psb-section-data [data-field="layout"]').select_option(label="year prediction msd")
    web.locator(".psb-section-model .psb-select").first.select_option("linear")
    pick(web, "optimizer", "lr", "0.01")
    pick(web, "stop", "epochs", "2")
    web.wait_for_function("() => document.querySelector('.psb-yaml').textContent.includes('year_prediction')")
    web.screenshot(path=screenshots / "lab-numbers-picked-light.png")
    web.click("button.psb-run")
    wait_over(web, "run 1 finished")
    web.screenshot(path=screenshots / "lab-numbers-light.png")
    wait_rows(web, "train_loss", 2)
    assert page.errors == []
