"""Why a run is worse: asked, followed, cancelled and read in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from psbench import Experiment
from psbench_widgets import Lab

from .direct import Direct

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

#: staleness is most of the difference of these, with this seed alone
SHORT = Experiment(
    data="digits",
    model={"name": "mlp", "hidden": [16]},
    cluster={"name": "homogeneous", "workers": 8},
    strategy="asp",
    optimizer={"name": "sgd", "lr": 0.12, "momentum": 0.9},
    stop={"epochs": 2},
)
STATE = "(s) => document.querySelector('.psb-explain').dataset.state === s"


def test_a_question_is_asked_followed_and_answered(
    chromium: Any, screenshots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSBENCH_CORES", "1")
    panel = Direct(chromium, height=1000)
    panel.show(Lab(SHORT, renderer="svg", pace="fast", folder=tmp_path))
    web = panel.web
    try:
        for number, name in enumerate(("asp", "bsp"), 1):
            panel.lab.experiment = SHORT.but(strategy=name)
            panel.lab.run()
            panel.over(f"run {number} finished")
        web.click(".psb-tab-compare")
        panel.settle()
        assert web.locator(".psb-explain-run option").all_text_contents() == ["1: asp", "2: bsp"]
        assert web.input_value(".psb-explain-run") == "1"
        assert web.input_value(".psb-explain-other") == "2"

        web.fill(".psb-explain-seeds", "40")
        web.click(".psb-explain-ask")
        panel.wait(
            "() => /of .* runs done.* left/.test(document.querySelector('.psb-explain-words').textContent)"
        )
        web.locator(".psb-explain").scroll_into_view_if_needed()
        panel.shot(screenshots / "why-running.png")
        assert web.is_disabled(".psb-explain-ask")
        web.click(".psb-explain-cancel")
        panel.wait(STATE, argument="cancelled")

        web.fill(".psb-explain-seeds", "2")
        web.click(".psb-explain-ask")
        panel.wait(STATE, argument="answered")
        said = web.text_content(".psb-explain-sentence") or ""
        assert said.startswith("Why is asp worse than bsp? asp ends with a val_loss of")
        causes = web.locator(".psb-explain-tables table").first
        assert causes.locator("tbody th").first.text_content() == "not explained by these causes"
        assert "staleness" in causes.locator("tbody th").all_text_contents()
        panel.wait("() => document.querySelector('.psb-explain-chart svg')")
        panel.settle(2000)  # the axis of the chart is placed last
        web.locator(".psb-explain-sentence").scroll_into_view_if_needed()
        panel.shot(screenshots / "why-answered.png")
        assert panel.audit() == [], panel.audit()

        web.click(".psb-explain-runs > summary")
        place = web.locator(".psb-explain-runs tr", has_text="staleness of bsp, seed 1")
        place.locator("button").first.click()
        panel.wait("() => document.querySelector('.psb-tab-watch').getAttribute('aria-selected') === 'true'")
        opened = "(l) => document.querySelector('.psb-lab').stage.films[0]?.recording.about.key.includes('-')"
        panel.wait(opened)
        panel.shot(screenshots / "why-opened.png")
        assert panel.errors() == []
    finally:
        panel.close()
