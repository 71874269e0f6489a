"""The panel as a person uses it: pick, run, switch, stop, reload, compare, take away; light and dark."""

from __future__ import annotations

import json
import re
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from .jupyter import LONG_S, PICTURES, ROOT, Page

playwright = pytest.importorskip("playwright.sync_api")

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

CELLS = [
    "from psbench import Experiment\nfrom psbench_widgets import Lab\n"
    "switch = Experiment(strategy='strategy_switch', stop={'epochs': 40})\n"
    "lab = Lab(switch, renderer='svg', pace='fast', folder='kept')\nlab",
    "print('answer', 6 * 7)",
    "print('count', lab._figures.charts['val_accuracy'].count(), lab._figures.charts['train_loss'].count())",
    "import threading\nprint([t.name for t in threading.enumerate() if t.name.startswith('psbench')])",
]
KEPT = ".jp-OutputArea-child:has(.psb-lab) + .jp-OutputArea-child"
KEPT_PICTURE = ".jp-CodeCell >> nth=0 >> .jp-RenderedImage img"
#: pictures of a run under way: enough to see that it moves
FRAMES = 4
#: scroll the notebook; where its top is, that of the controls, and that of what they control
SCROLL = """(by) => { const outer = document.querySelector('.jp-WindowedPanel-outer');
 outer.scrollTop = by;
 return [outer, ...['.psb-bar-top', '.psb-main'].map((name) => document.querySelector(name))]
   .map((element) => element.getBoundingClientRect().top); }"""
ROWS = "(key) => Number(document.querySelector(`.psb-slot[data-key=${key}] .psb-chart`)?.dataset.rows ?? 0)"


def panel(page: Page, name: str, cells: list[str] = CELLS) -> Any:
    """Open a notebook with a panel that is ready to run."""
    page.open(name, cells)
    # no test runs on for what is drawn next
    page.jupyter.execute("from psbench_widgets import run_view; run_view.SHARE = 0.3")
    page.page.keyboard.press("Control+b")  # the file browser takes room that a panel can use
    page.run_all()
    page.page.wait_for_selector(".psb-lab button.psb-run:enabled")
    # somebody else's warm-up would be measured too: wait for the first probe
    page.page.wait_for_selector(".psb-labels", state="attached")
    return page.page


def all_settings(web: Any) -> None:
    """Open what the sentence leaves out."""
    if web.get_attribute(".psb-all-settings", "aria-expanded") == "false":
        web.click(".psb-all-settings")


def machines(web: Any) -> None:
    """Open the fields of the cluster."""
    if web.get_attribute(".psb-section-cluster", "open") is None:
        web.click(".psb-section-cluster > summary")


def pick(web: Any, section: str, field: str, value: str) -> None:
    said = web.locator(f'.psb-ask-part > [data-field="{field}"]')
    if section == "strategy" and said.count():
        said.fill(value)
        return
    if section == "cluster":
        machines(web)
    else:
        all_settings(web)
    place = web.locator(f".psb-section-{section}")
    if place.get_attribute("open") is None:
        place.locator("> summary").click()
    place.locator(f'[data-field="{field}"]').fill(value)


def take(web: Any, strategy: str) -> None:
    """Choose a strategy of the catalogue."""
    web.click(".psb-chooser-head")
    web.click(f'.psb-option[data-name="{strategy}"]')


def rows(web: Any, key: str) -> int:
    return int(web.evaluate(ROWS, key))


def wait_rows(web: Any, key: str, more_than: int) -> None:
    try:
        web.wait_for_function(f"([key, n]) => ({ROWS})(key) > n", arg=[key, more_than])
    except playwright.TimeoutError as error:
        shown = web.evaluate("() => document.querySelector('.psb-lab')?.innerText ?? 'no panel'")
        raise AssertionError(f"{key} has {rows(web, key)} rows; the panel says: {shown}") from error


def wait_over(web: Any, status: str) -> None:
    web.wait_for_function("(s) => document.querySelector('.psb-answer').textContent.includes(s)", arg=status)
    web.wait_for_selector('.psb-lab[data-running=""]')


@pytest.mark.nightly
def test_the_tutorial_runs_and_its_picture_moves(page: Page, screenshots: Path) -> None:
    tutorial = json.loads((ROOT / "notebooks" / "07_lab.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in tutorial["cells"] if cell["cell_type"] == "code"]
    web = panel(page, "07_lab", cells[:2])
    web.click("button.psb-run")
    wait_over(web, "run 1 finished")
    wait_rows(web, "val_accuracy", 20)
    assert rows(web, "val_accuracy") == 21  # before the first epoch, and after each of 20

    pick(web, "stop", "epochs", "1000")
    web.click("button.psb-run")
    wait_rows(web, "val_accuracy", 3)
    web.evaluate("document.querySelector('.psb-main, .psb-lab').scrollIntoView()")
    frames = []
    for _ in range(FRAMES):
        frames.append(Image.open(BytesIO(web.screenshot())).resize((1080, 750)))
        shown = web.get_attribute(".psb-stage", "data-now")
        web.wait_for_function("(now) => document.querySelector('.psb-stage').dataset.now !== now", arg=shown)
    frames[0].save(
        screenshots / "lab-running.webp",
        save_all=True,
        append_images=frames[1:],
        duration=400,
        loop=0,
        quality=70,
    )
    assert len({frame.tobytes() for frame in frames}) == FRAMES  # it moves
    web.locator("button.psb-stop").click()
    wait_over(web, "run 2 stopped")
    assert page.errors == []
    assert page.strangers == []


def test_a_person_picks_runs_switches_stops_reloads_and_compares(page: Page, screenshots: Path) -> None:
    web = panel(page, "lab")
    pick(web, "stop", "epochs", "3000")
    web.click(".psb-section-strategy > summary")
    web.locator('.psb-nested:has(> .psb-label:text-is("rule")) select').first.select_option("manual")
    web.click(".psb-all-settings")  # open, they would push the charts out of sight

    web.click("button.psb-run")
    wait_rows(web, "val_accuracy", 3)
    before, width = rows(web, "val_accuracy"), web.locator(".psb-meter-fill").first.bounding_box()["width"]
    # more rows, or, of a line that has become long, fewer: it is thinned
    web.wait_for_function(f"([key, n]) => ({ROWS})(key) !== n", arg=["val_accuracy", before])
    web.wait_for_function(
        "(w) => document.querySelector('.psb-meter-fill').getBoundingClientRect().width > w", arg=width
    )
    assert re.search(r"of 3000, .*virtual", web.text_content(".psb-words") or "")
    # one scrolls down to other charts and cells: Run, Stop, Switch now and the progress stay in sight
    top, bar, main = web.evaluate(SCROLL, 500)
    assert bar == pytest.approx(top, abs=2)
    assert main < top - 300
    assert web.is_visible(".psb-meter")
    page.shot(screenshots / "lab-scrolled-light.png")
    web.evaluate(SCROLL, 0)
    assert "running 1: strategy_switch · digits · mlp · c2" in (web.text_content(".psb-echo") or "")

    # the kernel stays free
    assert "answer 42" in page.run_cell(1)

    web.click("button.psb-switch")
    mark = web.locator('.psb-slot[data-key="val_accuracy"] svg text', has_text="switch to asp")
    web.evaluate(SCROLL, 0)  # only charts in sight are drawn while the run goes on
    mark.wait_for()
    web.wait_for_function("() => document.querySelector('.psb-words').textContent.includes(', asp')")
    page.shot(screenshots / "lab-running-light.png")

    # without it a page asks widget by widget, and may take an update of a chart for the answer
    page.jupyter.execute("import comm; assert 'jupyter.widget.control' in comm.get_comm_manager().targets")
    page.reload(shows=".psb-main")
    web.evaluate(SCROLL, 0)  # JupyterLab may show the cell that was used last
    wait_rows(web, "val_accuracy", 5)
    web.locator("button.psb-stop").click()
    wait_over(web, "run 1 stopped")
    counted = page.run_cell(2).split("count ")[1].split()
    web.wait_for_function(f"([key, n]) => ({ROWS})(key) === n", arg=["val_accuracy", int(counted[0])])
    web.wait_for_function(f"([key, n]) => ({ROWS})(key) >= n", arg=["train_loss", int(counted[1])])
    assert rows(web, "train_loss") == int(counted[1])  # complete, and no row twice
    mark.wait_for()

    take(web, "ssp")
    pick(web, "stop", "epochs", "8")
    web.click("button.psb-run")
    wait_over(web, "run 2 finished")
    wait_rows(web, "val_accuracy", 8)
    assert rows(web, "val_accuracy") == 9
    page.shot(screenshots / "lab-watch-light.png")

    web.click(".psb-tab-compare")
    web.wait_for_selector(".psb-comparison tbody tr:nth-child(2)")
    assert web.locator(".psb-tick:checked").count() == 2
    overlay = web.locator(".psb-compare .psb-chart").first
    overlay.locator('path[aria-roledescription="line mark"]').nth(1).wait_for()
    shown = overlay.locator("svg").text_content() or ""
    assert "ssp" in shown
    assert "strategy_switch" in shown
    web.select_option(".psb-axis", "epoch")
    web.wait_for_function(
        "() => document.querySelector('.psb-compare .psb-chart svg').textContent.includes('epochs')"
    )
    page.shot(screenshots / "lab-compare-light.png")
    if PICTURES:  # what is hard to read in the dark is found without Jupyter
        page.theme("JupyterLab Dark")
        page.shot(screenshots / "lab-compare-dark.png", after_ms=1500)
        web.click(".psb-tab-watch")
        page.shot(screenshots / "lab-watch-dark.png", after_ms=800)
        page.theme("JupyterLab Light")

    web.click(".psb-tab-take")
    # that such a script has the digest of its run is tested without a browser
    scope: dict[str, Any] = {}
    exec((web.text_content(".psb-python") or "").partition("run = ")[0], scope)
    assert scope["experiment"].strategy.name == "ssp"
    assert scope["experiment"].stop.epochs == 8

    # what the notebook keeps for readers without a kernel is hidden where the panel is
    assert web.locator(KEPT).count() == 1
    assert not web.is_visible(KEPT)
    _, kept = page.save()[0]["outputs"]
    words = "".join(kept["data"]["text/plain"])
    # of the last run, though the page was loaded anew before it
    assert words.startswith("Run 2: ssp\nRun this cell again for the panel.")
    assert kept["data"]["image/png"]
    assert page.errors == []
    assert page.strangers == []


@pytest.mark.nightly
def test_without_its_kernel_it_says_so_and_shows_the_last_state(page: Page, screenshots: Path) -> None:
    web = panel(page, "kept")
    pick(web, "stop", "epochs", "2")
    web.click("button.psb-run")
    wait_over(web, "run 1 finished")
    web.wait_for_selector(KEPT, state="attached")  # drawn once the run is over
    page.save()
    page.restart_kernel()
    said = "() => document.querySelector('.psb-answer').textContent"
    web.wait_for_function(f"{said} === 'The kernel was restarted: run this cell again.'")
    assert web.locator("button.psb-run:disabled").count() == 1
    assert "[]" in page.run_cell(3)  # the page loaded below is to find the new kernel, not one that starts

    # a notebook that is opened when its kernel has no panel any more shows the last state
    page.reload()
    web.wait_for_function(
        "() => document.querySelector('.jp-CodeCell').textContent.includes('model not found')"
    )
    still = web.locator(KEPT_PICTURE)
    still.wait_for()
    assert still.evaluate("(image) => image.naturalWidth") > 600
    page.shot(screenshots / "lab-reopened.png")
    assert page.errors == []


@pytest.mark.nightly
def test_running_the_cell_again_leaves_no_thread_behind(page: Page) -> None:
    web = panel(page, "again")
    pick(web, "stop", "epochs", "100000")
    web.click("button.psb-run")
    wait_rows(web, "val_accuracy", 1)
    assert "psbench-run" in page.run_cell(3)
    page.run_cell(0)
    web.wait_for_selector(".psb-lab button.psb-run:enabled")
    assert web.locator(".psb-lab").count() == 1
    until = time.monotonic() + LONG_S
    while "psbench-run" in (told := page.run_cell(3)):
        assert time.monotonic() < until, told
    assert page.errors == []


@pytest.mark.nightly
def test_a_panel_whose_cell_is_deleted_stops_its_run(page: Page) -> None:
    web = panel(page, "deleted")
    pick(web, "stop", "epochs", "100000")
    web.click("button.psb-run")
    wait_rows(web, "val_accuracy", 1)
    web.locator(".jp-CodeCell").first.locator(".jp-InputPrompt").click()
    web.keyboard.press("d")
    web.keyboard.press("d")
    web.wait_for_selector(".psb-lab", state="detached")
    until = time.monotonic() + LONG_S
    while "psbench-" in (told := page.run_cell(2)):
        assert time.monotonic() < until, told
        time.sleep(0.5)
    assert page.errors == []
