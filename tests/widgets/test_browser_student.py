"""What a student does with the panel, in a browser, at four widths and in both themes.

The panel is shown without Jupyter (`direct`), so a width costs a second; its pictures are the README's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psbench.metrics.moment import moment
from psbench.metrics.recording import recording
from psbench_widgets import Lab

from .direct import LOOK, Direct

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WIDTHS = {705: 768, 1060: 768, 1366: 768, 1920: 1080}
MOST_PRESSES = 12
AUDIT = (Path(__file__).parent / "audit.js").read_text()
SHOWN = """() => { const bottom = document.getElementById('scroll').getBoundingClientRect().bottom;
 const places = ['.psb-run', '.psb-why', '.psb-timeline-canvas', '.psb-slot[data-key=val_accuracy] svg'];
 return places.filter((place) => {
   const box = document.querySelector(place).getBoundingClientRect();
   return box.height < 5 || box.top < 0 || box.bottom > bottom + 1; }); }"""


@pytest.fixture(scope="module")
def panel(chromium: Any) -> Iterator[Direct]:
    direct = Direct(chromium)
    direct.show(Lab(renderer="svg"))
    yield direct
    direct.close()


CONTROLS = """(what) => [...document.querySelectorAll(
    '.psb-lab button:enabled, .psb-lab input:enabled, .psb-lab select:enabled')].filter((e) =>
  what === 'nameless' ? !(e.textContent.trim() || e.ariaLabel || e.title || e.labels?.length)
  : e.tabIndex < 0 && e.getAttribute('role') !== 'tab').map((e) => e.outerHTML)"""


class Presses:
    """Presses things, and counts."""

    def __init__(self, panel: Direct) -> None:
        self.panel, self.count = panel, 0

    def press(self, place: str) -> None:
        self.count += 1
        self.panel.web.click(place)
        self.panel.settle(300)

    def choose(self, place: str, value: str) -> None:
        self.count += 1
        self.panel.web.select_option(place, value)
        self.panel.settle(200)


def test_a_student_predicts_runs_rewinds_reads_why_forks_and_compares(
    panel: Direct, screenshots: Path
) -> None:
    student = Presses(panel)
    student.press('[data-preset="slow_worker"]')
    student.press(".psb-predict > summary")
    student.choose(".psb-predict-most", "3")
    student.press(".psb-run")
    panel.over("run 1 finished")
    panel.wait("() => document.querySelector('.psb-gaps li')")
    assert "You expected worker 3 to wait most" in panel.web.text_content(".psb-gaps")
    panel.web.click(".psb-predict > summary")  # out of the way of the picture
    assert panel.web.evaluate(SHOWN) == []  # all four are on one screen

    student.press(".psb-first-wait")
    why = panel.web.text_content(".psb-why")
    assert why.startswith("Worker ")
    assert "for worker 3: it was 4 steps ahead of the slowest, its bound is 3" in why
    run = panel.lab.finished[0]
    state = moment(recording(run.log, [3]), float(panel.web.get_attribute(".psb-stage", "data-now")))
    assert state.sentences[0] in why
    panel.shot(screenshots / "lab-wait-light.png")

    student.press(".psb-fork")
    panel.over("run 2 finished")
    panel.wait("() => document.querySelectorAll('.psb-film').length === 2")
    assert "asp from" in panel.web.text_content(".psb-first-curve svg")
    panel.shot(screenshots / "lab-fork-light.png")
    student.press(".psb-tab-compare")
    panel.wait("() => document.querySelectorAll('.psb-comparison tbody tr').length === 2")
    panel.shot(screenshots / "lab-runs-light.png")
    assert student.count <= MOST_PRESSES
    assert panel.errors() == []
    assert panel.lab._error == ""


@pytest.mark.parametrize("theme", LOOK)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("tab", ["watch", "compare"])
def test_no_text_overlaps_is_cut_off_or_hard_to_read(
    panel: Direct, screenshots: Path, width: int, theme: str, tab: str
) -> None:
    panel.look(width, WIDTHS[width], theme)
    panel.web.click(f".psb-tab-{tab}")
    panel.shot(screenshots / f"lab-{tab}-{width}-{theme}.png")
    assert panel.web.evaluate(AUDIT) == []


def test_the_page_finds_the_same_state_as_python(panel: Direct) -> None:
    """The stage's own search against `psbench.metrics.moment`, at many moments."""
    run = panel.lab.finished[0]
    recorded = recording(run.log, [3])
    times = [float(t) for t in np.linspace(0, recorded.end_s * 0.999, 60)]
    found = panel.web.evaluate(
        "(times) => times.map((t) => document.querySelector('.psb-lab').stage.films[0].recording.at(t))",
        times,
    )
    for at, state in zip(times, found, strict=True):
        expected = moment(recorded, at)
        assert state["version"] == expected.version
        assert [tuple(each) for each in state["buffer"]] == list(expected.buffer)
        for own, other in zip(expected.workers, state["workers"], strict=True):
            assert (own.worker, own.phase, own.clock, own.version, own.waited_for, own.why) == tuple(
                other[name] for name in ("worker", "phase", "clock", "version", "waitedFor", "why")
            )


def test_the_moment_moves_by_keyboard_and_everything_has_a_name(panel: Direct) -> None:
    panel.web.click(".psb-tab-watch")
    panel.web.select_option(".psb-step", "update")
    panel.web.focus(".psb-slider")
    before = float(panel.web.get_attribute(".psb-stage", "data-now"))
    panel.web.keyboard.press("ArrowRight")
    after = float(panel.web.get_attribute(".psb-stage", "data-now"))
    versions = recording(panel.lab.finished[0].log).versions["time_s"]
    assert after > before
    others = recording(panel.lab.finished[1].log).versions["time_s"]
    assert min(np.abs(np.append(versions, others) - after)) < 1e-9
    assert panel.web.evaluate(CONTROLS, "nameless") == []
    # the tab key alone comes to every control that is shown
    assert panel.web.evaluate(CONTROLS, "unreachable") == []


def test_strategies_are_found_by_a_word_and_typed_values_come_back(panel: Direct) -> None:
    web = panel.web
    web.fill('.psb-section-cluster [data-field="speed"]', "[1, 1, 1, 0.25]")
    web.select_option(".psb-section-cluster select >> nth=0", "homogeneous")
    panel.settle(200)
    web.select_option(".psb-section-cluster select >> nth=0", "custom")
    assert web.input_value('.psb-section-cluster [data-field="speed"]') == "[1, 1, 1, 0.25]"
    web.click(".psb-chooser-head")
    titles = web.locator(".psb-option-title").all_text_contents()
    assert titles[0] == "Consistency: who waits for whom"
    web.fill(".psb-search", "thesis straggl")
    shown = web.locator(".psb-option:visible .psb-option-name").all_text_contents()
    assert shown
    assert all(name != "ssp" for name in shown)
    web.fill(".psb-search", "switch to")
    web.fill(".psb-search", "strategy_switch")
    web.press(".psb-search", "Enter")
    panel.settle(300)
    first = web.locator(".psb-section-strategy .psb-nested > .psb-label").first
    assert first.text_content() == "rule"
    assert panel.errors() == []
