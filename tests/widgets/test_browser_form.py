"""The panel's form in a browser: wrong values, nested choices, the picture of the cluster, other data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psbench import Experiment
from psbench_widgets import Lab, bridge

from .direct import SIDEWAYS, Direct
from .test_browser_lab import ROWS, all_settings, machines, pick, take

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

MAY_RUN = "(yes) => document.querySelector('button.psb-run').disabled !== yes"
YAML = "(text) => document.querySelector('.psb-yaml').textContent.includes(text)"


@pytest.fixture(scope="module")
def page(chromium: Any) -> Iterator[Direct]:
    direct = Direct(chromium)
    direct.show(Lab(renderer="svg", pace="fast"))
    yield direct
    direct.close()


@pytest.fixture
def panel(page: Direct) -> Iterator[Direct]:
    """A panel as it is at first, but for the runs there are."""
    page.lab.experiment = Experiment()
    page.settle(300)
    yield page
    assert page.errors() == []


def rows(panel: Direct, key: str) -> int:
    return int(panel.web.evaluate(ROWS, key))


def wait_rows(panel: Direct, key: str, more_than: int) -> None:
    panel.wait(f"([key, n]) => ({ROWS})(key) > n", argument=[key, more_than])


def test_wrong_values_keep_run_off_until_they_are_mended(panel: Direct, screenshots: Path) -> None:
    web = panel.web
    take(web, "ssp")
    panel.settle(300)
    pick(web, "strategy", "staleness_bound", "-4")
    panel.wait(MAY_RUN, argument=False)
    assert "staleness_bound" in (web.text_content(".psb-section-strategy .psb-error") or "")
    panel.shot(screenshots / "lab-wrong-value.png")
    assert panel.audit() == []
    pick(web, "strategy", "staleness_bound", "2")
    panel.wait(MAY_RUN, argument=True)

    pick(web, "rest", "scheduler", "tcp://127.0.0.1:9")
    web.locator('.psb-section-rest [data-field="backend"]').select_option("dask")
    said = "() => document.querySelector('.psb-section-rest .psb-error')?.textContent"
    panel.wait(f"{said}?.includes('no Dask scheduler answers at')")
    assert not web.is_visible(".psb-pace")  # machines have their own
    panel.wait(MAY_RUN, argument=False)
    pick(web, "rest", "scheduler", "")
    panel.wait(MAY_RUN, argument=True)

    if web.get_attribute(".psb-section-strategy", "open") is None:
        web.click(".psb-section-strategy > summary")
    web.click('.psb-mode:text-is("composed")')
    panel.wait("() => document.querySelectorAll('.psb-domain option:disabled').length > 0")
    placement = web.locator('.psb-domain:has(> .psb-domain-name:text-is("placement")) select').first
    refused = placement.locator("option:disabled").all_text_contents()
    assert any("needs all workers" in each for each in refused), refused
    panel.shot(screenshots / "lab-composed.png")


@pytest.mark.nightly
def test_a_codec_is_picked_within_a_strategy_and_its_ratio_within_it(
    panel: Direct, screenshots: Path
) -> None:
    web = panel.web
    take(web, "bsp")
    panel.settle(300)
    all_settings(web)
    if web.get_attribute(".psb-section-strategy", "open") is None:
        web.click(".psb-section-strategy > summary")
    up = web.locator('.psb-nested:has(> .psb-label:text-is("codec"))')
    more = web.locator(".psb-section-strategy .psb-more:has(.psb-nested)")
    if more.count():
        more.first.locator("> summary").click()
    up.locator("select").first.select_option("top_k")
    panel.settle(300)
    web.locator('.psb-section-strategy [data-field="ratio"]').fill("0.25")
    pick(web, "stop", "epochs", "2")
    panel.wait(YAML, argument="ratio: 0.25")
    panel.shot(screenshots / "lab-codec-light.png")
    web.click("button.psb-run")
    panel.over("run 1 finished")
    wait_rows(panel, "val_accuracy", 2)
    assert rows(panel, "val_accuracy") == 3
    panel.shot(screenshots / "lab-codec-run-light.png")


def test_the_speeds_of_a_cluster_are_edited_in_their_picture(panel: Direct) -> None:
    machines(panel.web)
    speed = panel.web.locator(".psb-bar input").nth(3)
    speed.fill("0.1")
    speed.press("Tab")
    panel.wait(YAML, argument="- 0.1")
    assert "name: custom" in (panel.web.text_content(".psb-yaml") or "")


def test_a_regression_is_run_and_its_loss_is_drawn(panel: Direct, screenshots: Path) -> None:
    """Targets that are numbers, of which there is no accuracy."""
    web = panel.web
    pick(web, "optimizer", "lr", "0.01")
    pick(web, "stop", "epochs", "2")
    for section in ("data", "model"):
        place = web.locator(f".psb-section-{section}")
        if place.get_attribute("open") is None:
            place.locator("> summary").click()
    web.locator(".psb-section-data .psb-select").first.select_option("synthetic_table")
    panel.settle(300)
    web.locator('.psb-section-data [data-field="layout"]').select_option(label="year prediction msd")
    web.locator(".psb-section-model .psb-select").first.select_option("linear")
    panel.settle(300)
    pick(web, "data", "samples", "2000")
    panel.wait(YAML, argument="year_prediction")
    panel.shot(screenshots / "lab-numbers-picked-light.png")
    number = len(panel.lab.runs) + 1
    web.click("button.psb-run")
    panel.over(f"run {number} finished")
    wait_rows(panel, "train_loss", 2)
    panel.shot(screenshots / "lab-numbers-light.png")


def test_a_failed_run_says_why(panel: Direct, screenshots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("the disk is full: /" + "a_folder/" * 30) from OSError("no space left\n" * 30)

    monkeypatch.setattr(bridge, "run_experiment", fails)
    web = panel.web
    web.click("button.psb-run")
    panel.over("failed: RuntimeError: the disk is full")
    assert panel.audit() == []
    top = "(all) => all.map((e) => e.getBoundingClientRect().top)"
    tops = web.locator(".psb-tab-watch, .psb-stop, .psb-all-settings").evaluate_all(top)
    assert max(tops) - min(tops) < 8  # a long error pushes nothing aside
    assert web.locator(".psb-stop").bounding_box()["x"] > web.viewport_size["width"] / 2
    web.click(".psb-tab-compare")
    web.click(".psb-runs .psb-traceback > summary")
    traceback = web.locator(".psb-runs pre")
    assert "in perform" in traceback.inner_text()
    assert traceback.evaluate("(pre) => pre.scrollHeight > pre.clientHeight")  # and keys must scroll it
    assert web.evaluate(SIDEWAYS) == 0  # nor does a long traceback widen the table
    panel.shot(screenshots / "lab-failed.png")
    assert panel.audit() == []
    web.click(".psb-tab-watch")


def test_detached_runs_are_listed_on_demand_and_attached_by_a_button(
    panel: Direct, screenshots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web, asked = panel.web, list[str]()
    monkeypatch.setattr(panel.lab._runner.cluster, "find", lambda name, *rest: asked.append(name))
    web.click(".psb-tab-compare")
    web.click(".psb-cluster-runs > summary")
    words = "(text) => document.querySelector('.psb-cluster-words').textContent.includes(text)"
    panel.wait(words, argument="a detached run belongs to a running Dask cluster; give its address")
    run = {"name": "ssp", "state": "running", "words": "epoch 3 of 40", "folder": "/shared/ssp"}
    panel.lab.cluster = {"at": "tcp://10.0.0.1:8786", "runs": [run]}
    panel.wait(words, argument="tcp://10.0.0.1:8786 lists 1 detached run")
    assert (
        web.text_content(".psb-cluster-runs tr[data-name=ssp]") == "ssprunningepoch 3 of 40/shared/sspattach"
    )
    assert panel.audit() == []
    panel.shot(screenshots / "lab-cluster-runs.png")
    web.click(".psb-attach")
    panel.settle(300)
    assert asked == ["ssp"]
    web.click(".psb-cluster-runs > summary")
    web.click(".psb-tab-watch")
