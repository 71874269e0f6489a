"""The moment in long runs and in runs under way: what is drawn is what was, or the word "loading"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oracles.moment import moment

from psbench import Experiment
from psbench.metrics.recording import Recording, recording
from psbench_widgets import Lab, film

from .direct import Direct

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LONG = Experiment(
    strategy="ssp",
    cluster={"workers": 4, "speed": [1, 1, 1, 0.25]},
    stop={"epochs": 100_000},
    model="logistic",
    data="mixture",
)
#: spans of a piece: a run is long after a second already
PIECE = 3000
SHOWN = """() => { const stage = document.querySelector('.psb-lab').stage;
 const canvas = document.querySelector('.psb-timeline-canvas');
 const pen = canvas.getContext('2d'); const ratio = window.devicePixelRatio;
 const { timeline, recording } = stage.films[0];
 const x = timeline.x(timeline.view.now);
 // the colour of each row just beside the line of the moment
 const colours = timeline.shown.map((_, i) => {
   const at = [Math.round((x + 2.5) * ratio), Math.round((i + 0.5) * timeline.row * ratio)];
   return [...pen.getImageData(...at, 1, 1).data]; });
 return { now: stage.now, end: stage.end, follow: stage.follow,
   why: document.querySelector('.psb-why').textContent,
   loaded: stage.element.dataset.loaded === 'true', drawn: colours.filter((c) => c[3] > 0).length,
   phases: [...document.querySelectorAll('.psb-node')].map((e) => e.dataset.phase) }; }"""


@pytest.fixture
def panel(chromium: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Direct]:
    monkeypatch.setattr(film, "SPANS", PIECE)
    direct = Direct(chromium)
    direct.show(Lab(LONG, renderer="svg"))
    yield direct
    direct.close()


def seen(panel: Direct) -> Any:
    panel.wait("() => document.querySelector('.psb-stage').dataset.loaded === 'true'")
    panel.settle(60)
    return panel.web.evaluate(SHOWN)


def truth(whole: Recording, now: float) -> list[str]:
    return moment(whole, now).sentences


def test_a_run_under_way_and_a_long_one_are_shown_as_they_were(panel: Direct, screenshots: Path) -> None:
    web = panel.web
    panel.web.click(".psb-run")
    panel.wait("() => document.querySelector('.psb-lab').stage.films[0]?.recording.begin > 0")
    web.click(".psb-first-wait")
    panel.wait("() => !document.querySelector('.psb-lab').stage.follow")
    first = seen(panel)
    job = panel.lab._bridge.current
    early = recording(job.log, [3])
    assert first["now"] == early.next("wait", -1.0)
    assert truth(early, first["now"])[0] in first["why"]
    assert first["drawn"] == 4
    assert "gone" not in first["phases"]
    grown = "(t) => document.querySelector('.psb-lab').stage.end > t"
    panel.wait(grown, argument=first["end"])  # newer pieces come, and are ignored
    later = seen(panel)
    assert (later["now"], later["why"]) == (first["now"], first["why"])
    panel.shot(screenshots / "lab-moved-away.png")
    web.click(".psb-live")
    panel.wait("(t) => document.querySelector('.psb-lab').stage.now > t", argument=first["end"])
    newest = seen(panel)
    assert newest["follow"]
    assert newest["now"] == newest["end"]
    web.click(".psb-stop")
    panel.over("stopped")
    whole = recording(panel.lab.finished[0].log, [3])

    # over the whole run, far beyond the piece that is here
    web.click(".psb-first-wait")
    panel.settle(200)
    assert seen(panel)["now"] == whole.next("wait", -1.0)
    web.select_option(".psb-step", "epoch")
    at = seen(panel)["now"]
    for _ in range(4):
        web.click(".psb-forth")
        panel.settle(120)
        shown = seen(panel)
        assert shown["now"] == whole.next("epoch", at)
        assert shown["drawn"] == 4
        at = shown["now"]
    web.evaluate("(t) => document.querySelector('.psb-lab').stage.go(t, true)", whole.end_s * 0.6)
    panel.settle(100)
    before = seen(panel)
    web.select_option(".psb-speed", "50")
    piece = "() => document.querySelector('.psb-lab').stage.films[0].recording.end"
    edge = web.evaluate(piece)
    web.click(".psb-play")
    panel.wait("(t) => document.querySelector('.psb-lab').stage.now > t", argument=edge)
    web.click(".psb-play")
    played = seen(panel)
    assert played["now"] > edge > before["now"]
    assert played["drawn"] == 4
    sentences = truth(whole, played["now"])
    assert (sentences[0] if sentences else "At this moment nobody waits") in played["why"]
    # at the edges of a piece, too, a wait has its whole length
    for time in web.evaluate(
        "() => { const r = document.querySelector('.psb-lab').stage.films[0].recording;"
        " return [r.begin, r.end]; }"
    ):
        web.evaluate("(t) => document.querySelector('.psb-lab').stage.go(t, true)", time)
        panel.settle(100)
        for sentence in truth(whole, seen(panel)["now"])[:1]:
            assert sentence in seen(panel)["why"]
    panel.shot(screenshots / "lab-long.png")
    assert panel.errors() == []
    assert panel.lab._error == ""
