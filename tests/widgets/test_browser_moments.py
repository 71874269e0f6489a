"""The moment in long runs and in runs under way: what is drawn is what was, or the word "loading"."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.moment import told

from psbench import Experiment, run
from psbench.core.log import Kind
from psbench.metrics.recording import Recording
from psbench.metrics.recording_reader import recording
from psbench.metrics.rows import end_of
from psbench_widgets import Lab, playback
from psbench_widgets.playback import part_of

from .direct import Direct
from .panel import rows
from .test_browser_lab import machines

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

LONG = Experiment(
    strategy="ssp",
    cluster={"workers": 4, "speed": [1, 1, 1, 0.25]},
    stop={"epochs": 100_000},
    model="logistic",
    data="mixture",
)
#: seconds of a run that is long: many pieces, and more than is played in a moment
LENGTH_S = 40
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


#: pauses where it plays beyond a moment: by hand that would come late on a busy machine, perhaps at the end
PAUSES = """(t) => {
  const look = () => {
    if (document.querySelector('.psb-lab').stage.now <= t) return requestAnimationFrame(look);
    document.querySelector('.psb-play').click();
    window.paused = true; };
  look(); }"""


DRAWN = """() => {
  const room = document.getElementById('scroll').getBoundingClientRect();
  window.isInSight = (each) => {
    const { top, bottom } = each.getBoundingClientRect();
    return bottom >= room.top && top <= room.bottom; };
  window.drawn = [];
  new MutationObserver((all) => drawn.push(...all.map((each) => each.target))).observe(
    document.querySelector('.psb-watch'),
    { subtree: true, attributes: true, attributeFilter: ['data-rows'] }); }"""


@pytest.fixture
def panel(chromium: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Direct]:
    monkeypatch.setattr(playback, "MOST_SPANS", PIECE)
    direct = Direct(chromium)
    direct.show(Lab(LONG, renderer="svg", pace="10"))
    yield direct
    direct.close()


def seen(panel: Direct) -> Any:
    panel.wait("() => document.querySelector('.psb-stage').dataset.loaded === 'true'")
    panel.settle(60)
    return panel.web.evaluate(SHOWN)


def test_a_run_under_way_and_a_long_one_are_shown_as_they_were(panel: Direct, screenshots: Path) -> None:
    web = panel.web
    panel.web.click(".psb-run")
    panel.wait("() => document.querySelector('.psb-lab').stage.films[0]?.recording.begin > 0")
    assert web.locator(".psb-mark-now").count() == 0  # the opening's moment is not one of this run
    assert web.locator(".psb-opening").count() == 0
    web.click(".psb-first-wait")
    panel.wait("() => !document.querySelector('.psb-lab').stage.follow")
    first = seen(panel)
    job = panel.lab._runner.bridge.current
    early = recording(job.log, [3])
    assert first["now"] == early.next("wait", -1.0)
    bold = told(early, first["now"], early.end_s).partition(". ")[0]  # until when was not known before
    assert first["why"].startswith(bold)
    assert first["drawn"] == 4
    assert "gone" not in first["phases"]
    grown = "(t) => document.querySelector('.psb-lab').stage.end > t"
    panel.wait(grown, argument=first["end"])  # newer pieces come, and are ignored
    panel.web.evaluate(DRAWN)
    panel.wait("() => drawn.length > 0")  # while the run goes on, only charts that are in sight
    panel.settle(200)
    assert web.evaluate("() => drawn.filter((each) => !isInSight(each)).length") == 0
    later = seen(panel)
    assert (later["now"], later["why"]) == (first["now"], first["why"])
    panel.shot(screenshots / "lab-moved-away.png")
    web.click(".psb-live")
    panel.wait("(t) => document.querySelector('.psb-lab').stage.now > t", argument=first["end"])
    newest = seen(panel)
    assert newest["follow"]
    assert newest["now"] == newest["end"]
    panel.wait(grown, argument=LENGTH_S)
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
    web.evaluate(
        "(t) => document.querySelector('.psb-lab').stage.go(t, true)", whole.end_s * 0.25
    )  # far from the end, where playing stops
    panel.settle(100)
    before = seen(panel)
    web.select_option(".psb-speed", "10")
    edge = web.evaluate("document.querySelector('.psb-lab').stage.films[0].recording.end")
    web.evaluate(PAUSES, edge)
    web.click(".psb-play")
    panel.wait("() => window.paused")
    played = seen(panel)
    assert played["now"] > edge > before["now"]
    assert played["drawn"] == 4
    assert played["why"] == told(whole, played["now"], whole.end_s)
    # at the edges of a piece, too, a wait has its whole length
    for border in web.evaluate(
        "() => { const r = document.querySelector('.psb-lab').stage.films[0].recording;"
        " return [r.begin, r.end]; }"
    ):
        web.evaluate("(t) => document.querySelector('.psb-lab').stage.go(t, true)", border)
        panel.settle(100)
        assert seen(panel)["why"] == told(whole, seen(panel)["now"], whole.end_s)
    panel.shot(screenshots / "lab-long.png")
    assert panel.audit() == []  # large numbers of versions and steps, too
    assert panel.errors() == []
    assert panel.lab._error == ""


SHORT = LONG.but(stop={"epochs": 6})


@pytest.fixture(scope="module")
def short(chromium: Any) -> Iterator[Direct]:
    direct = Direct(chromium)
    direct.show(Lab(SHORT, renderer="svg", pace="fast"))
    yield direct
    direct.close()


def run_it(panel: Direct, number: int) -> None:
    panel.web.click(".psb-run")
    panel.over(f"run {number} finished")
    key = "(n) => document.querySelector('.psb-lab').stage.films[0].recording.about.key === `run ${n}`"
    panel.wait(key, argument=number)
    panel.settle(300)


def test_it_is_said_which_run_is_shown_and_of_which_span_every_sum_is(
    short: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = short.web
    machines(web)
    speed = '.psb-section-cluster [data-field="speed"]'
    web.fill(speed, "[1, 1, 1, 0.2")
    short.wait("() => document.querySelector('.psb-run').disabled")
    assert "speed: '[1, 1, 1, 0.2' is incomplete" in web.text_content(".psb-answer")
    web.fill(speed, "[1, 1, 1, 0.25]")
    short.wait("() => !document.querySelector('.psb-run').disabled")
    web.keyboard.press("Escape")
    assert web.get_attribute(".psb-section-cluster", "open") is None
    assert web.text_content(".psb-answer") == ""
    assert web.locator("[data-lm-suppress-shortcuts] .psb-run").count() == 1

    short.lab.experiment = SHORT.but(strategy="asp")
    short.settle(300)
    # of a long run the page has the last piece; a wait is looked for in all others, and there is none
    with monkeypatch.context() as pieces:
        pieces.setattr(playback, "MOST_SPANS", 100)
        run_it(short, 1)
        assert web.evaluate("() => document.querySelector('.psb-lab').stage.films[0].recording.begin") > 0
        assert web.get_attribute(".psb-stage", "data-loaded") == "true"
        assert web.locator(".psb-loading").count() == 0
        web.click(".psb-first-wait")
        nobody = "No worker waited for another in this run."
        short.wait("(words) => document.querySelector('.psb-why').textContent === words", argument=nobody)
    short.lab.experiment = SHORT
    short.settle(300)
    run_it(short, 2)
    assert "in this run" not in web.text_content(".psb-why")  # of the run before
    title = web.text_content(".psb-film-name")
    assert title == "ssp · custom cluster of 4 · seed 0 · simulated"
    assert web.locator(".psb-section.psb-differs").count() == 0
    web.fill('.psb-ask [data-field="staleness_bound"]', "7")
    short.wait("() => document.querySelector('.psb-section-strategy').classList.contains('psb-differs')")
    assert web.locator(".psb-section.psb-differs").count() == 1

    # before the first wait no chart has waiting in it; after, all that are sums are of the same span
    whole = recording(short.lab.finished[-1].log, [3])
    note = "(key) => document.querySelector(`[data-key=${key}] .psb-chart-note`).textContent"
    first = whole.next("wait", -1.0)
    for at, waiting in ((first / 2, False), (first * 4, True)):
        web.evaluate("(t) => document.querySelector('.psb-lab').stage.go(t, true)", at)
        for key in ("idle", "time_use", "share", "staleness", "bytes"):
            says = f"([key, words]) => ({note})(key).startsWith(words)"
            short.wait(says, argument=[key, f"up to {at:.4g} s"])
        shares = {r["worker"]: r["fraction"] for r in rows(short.lab, "time_use") if r["phase"] == "wait"}
        assert bool(rows(short.lab, "idle")) is waiting is any(shares.values())
        assert web.evaluate(note, "val_accuracy") == "whole run"
        # the tree is of the gradients applied by then, of which the last dozen are drawn
        applied = int((short.lab.finished[-1].log.of_kind(Kind.APPLY)["time_s"] <= at).sum())
        drawn = "(n) => document.querySelector('.psb-tree').dataset.applied === String(n)"
        short.wait(drawn, argument=applied)
        assert web.locator(".psb-tree-arc").count() == min(12, applied)
        assert web.text_content(".psb-tree-words").startswith(f"Gradient {applied} is worker ")
        assert " is R = " in web.text_content(".psb-tree-words")


@pytest.mark.nightly
def test_a_switch_is_a_phase_of_its_own(short: Direct, screenshots: Path) -> None:
    web = short.web
    web.click(".psb-first-wait")
    short.settle(200)
    at = float(web.get_attribute(".psb-stage", "data-now"))
    disabled = (
        "() => [...document.querySelectorAll('.psb-what-strategy option:disabled')].map((o) => o.value)"
    )
    assert web.evaluate(disabled) == ["ssp"]
    web.click(".psb-fork-open")
    web.select_option(".psb-what-momentum", "zero")
    web.click(".psb-fork")
    short.over("run 3 finished")
    assert short.lab.runs[0]["label"].endswith(f" -> asp at {at:.4g} s, momentum reset")
    short.wait("() => document.querySelectorAll('.psb-film').length === 2")
    assert (
        web.locator(".psb-film > .psb-film-name").text_content()
        == f"ssp -> asp at {at:.4g} s, momentum reset"
    )
    web.evaluate("(t) => document.querySelector('.psb-lab').stage.go(t, true)", at + 1e-3)
    short.settle(300)
    assert "the strategies are being switched" in web.text_content(".psb-why")
    assert "switching" in web.text_content(".psb-legend")
    short.shot(screenshots / "lab-switching.png")

    assert short.errors() == []
    assert short.lab._error == ""


def test_a_switch_by_hand_lands_where_the_watched_run_was(short: Direct) -> None:
    """At ten seconds of the run in a second, which the run alone would pass a hundred times as fast."""
    web = short.web
    manual = {"name": "strategy_switch", "rule": {"name": "manual"}}
    short.lab.experiment = LONG.but(strategy=manual)
    short.settle(200)
    web.select_option(".psb-pace", "10")
    number, clicked = len(short.lab.runs) + 1, time.monotonic()
    web.click(".psb-run")
    short.wait(
        "(key) => { const { stage } = document.querySelector('.psb-lab');"
        " return stage.films[0]?.recording.about.key === key && stage.end > 2; }",
        argument=f"run {number}",
    )
    log = short.lab._runner.bridge.current.log
    for _ in range(3):  # what is shown follows the run, which is far on after so many drawings otherwise
        shown = web.evaluate("document.querySelector('.psb-lab').stage.end")
        short.wait("(t) => document.querySelector('.psb-lab').stage.end > t", argument=shown)
    assert end_of(log.rows()) < 10 * (time.monotonic() - clicked) + 100
    before, began = end_of(log.rows()), time.monotonic()
    web.click(".psb-switch")
    short.wait("() => document.querySelector('.psb-words').textContent.includes(', asp')")
    most = before + 10 * (time.monotonic() - began) + 1
    web.click(".psb-stop")
    short.over("stopped")
    web.select_option(".psb-pace", "fast")
    (switched,) = [each["time_s"] for each in short.lab.finished[-1].summary()["switches"]]
    assert before <= switched <= most


#: what a frame takes while it plays: calls that draw on a canvas, and elements that are put into the page
WORK_A_FRAME = """() => {
  const stage = document.querySelector('.psb-lab').stage;
  const pen = CanvasRenderingContext2D.prototype;
  const own = {};
  let strokes = 0;
  for (const name of ['fillRect', 'strokeRect', 'fillText', 'stroke', 'fill']) {
    own[name] = pen[name];
    pen[name] = function (...given) { strokes += 1; return own[name].apply(this, given); };
  }
  const seen = new MutationObserver(() => {});
  seen.observe(document.querySelector('.psb-watch'), { subtree: true, childList: true });
  const film = (frame) => stage.go(stage.end * (0.3 + frame / 600), true); // the whole run in ten seconds
  film(0);
  strokes = 0;
  for (let frame = 1; frame <= 10; frame++) film(frame);
  Object.assign(pen, own);
  const added = seen.takeRecords().flatMap((each) => [...each.addedNodes]);
  const put = added.filter((each) => each.querySelectorAll);
  const elements = put.reduce((sum, each) => sum + 1 + each.querySelectorAll('*').length, 0);
  return { strokes: strokes / 10, elements: elements / 10 }; }"""


#: whether the timeline is the same, pixel by pixel, if nothing is kept of its bands, after so many frames
KEPT_AND_ANEW = """(frames) => {
  const { stage } = document.querySelector('.psb-lab');
  const { timeline, recording: { begin, end } } = stage.films[0];
  const canvas = document.querySelector('.psb-timeline-canvas');
  const pixels = () => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const isKept = () => {
    const kept = pixels();
    timeline.bands.forget();
    stage.draw();
    const anew = pixels();
    return kept.some((value) => value) && kept.every((value, i) => value === anew[i]);
  };
  const found = [];
  for (const zoom of [1, 0.5, 4]) {
    stage.rescale(zoom);
    for (const from of [0.2, 0.7, 0.1]) { // forwards and back
      const at = (frame) => begin + (end - begin) * (from + frame / 300);
      for (let frame = 0; frame < frames; frame++) stage.go(at(frame), true);
      found.push(isKept());
    }
    stage.rescale(0.97);
    found.push(isKept());
    canvas.parentElement.style.width = `${500 + 100 * zoom}px`;
    stage.draw();
    found.push(isKept());
    canvas.parentElement.style.width = '';
  }
  stage.zoom = 1;
  stage.draw();
  return found; }"""


#: how opaque each band is on the last pixel of the run
AT_THE_END = """() => {
  const { stage } = document.querySelector('.psb-lab');
  const { timeline } = stage.films[0];
  const pen = document.querySelector('.psb-timeline-canvas').getContext('2d');
  const opaque = (x, y) => pen.getImageData(...[x, y].map((at) => at * devicePixelRatio), 1, 1).data[3];
  const found = [1, 0.9, 0.8, 0.7, 0.6].flatMap((zoom) => {
    stage.zoom = zoom;
    stage.go(stage.end - 0.3 * stage.window(), true); // its line is not there
    return timeline.shown.slice(1, 9).map((_, i) =>
      opaque(timeline.width - timeline.right - 1, (i + 1.5) * timeline.row)); });
  stage.zoom = 1;
  stage.draw();
  return found; }"""


def repeated(one: Recording, times: int) -> Recording:
    """A run of so many times as many workers, who do the same."""
    count = len(one.workers)

    def more(name: str) -> dict[str, Any]:
        table = getattr(one, name)
        if "worker" not in table:
            return dict(table)
        blocks = range(times) if name != "pushes" else range(1)  # sorted by worker, or by time
        return {
            column: np.concatenate(
                [values + (count * block if column == "worker" else 0) for block in blocks]
            )
            for column, values in table.items()
        }

    return replace(one, workers=list(range(count * times)), **{name: more(name) for name in one.tables})


def test_five_hundred_workers_are_one_screen(short: Direct, screenshots: Path) -> None:
    """Bands by speed with the fastest and the slowest; bars for each worker become a distribution."""
    speeds = [round(0.3 + 0.7 * i / 499, 3) for i in range(500)]
    many = SHORT.but(cluster={"workers": 500, "speed": speeds}, batch_size=1000, timing_only=True)
    short.look(1366, 768, "light")
    short.lab.experiment = many.but(stop={"updates": 3000})
    short.settle(300)
    number = len(short.lab.runs) + 1
    run_it(short, number)
    short.settle(900)
    short.shot(screenshots / "lab-500.png")
    rows_shown = "() => document.querySelector('.psb-lab').stage.films[0].timeline.shown.map((r) => r.label)"
    labels = short.web.evaluate(rows_shown)
    assert len(labels) == 13
    steps = recording(short.lab.finished[-1].log, [3]).step_s
    fastest, slowest = int(labels[0].removeprefix("fastest: ")), int(labels[9].removeprefix("slowest: "))
    assert steps[fastest] == steps[steps > 0].min()
    assert steps[slowest] == steps.max()
    assert short.web.locator(".psb-node").count() <= 40
    assert "of 500 workers, evenly chosen" in short.web.text_content(".psb-machine")
    heights = (
        "() => [...document.querySelectorAll('.psb-watch .psb-slot, .psb-stage')].map((e) => e.offsetHeight)"
    )
    assert max(short.web.evaluate(heights)) < 500
    # the bounds are not played for so many, and those of the machines before are not shown
    assert "grey" not in short.web.text_content("[data-key=trade] .psb-chart-note")
    assert [row["label"] for row in rows(short.lab, "trade")] == ["this run"]
    waiting = {row["worker"] for row in rows(short.lab, "time_use")}
    assert len(waiting) == 10
    drawn = """() => { const { timeline } = document.querySelector('.psb-lab').stage.films[0];
      const pen = document.querySelector('.psb-timeline-canvas').getContext('2d');
      return timeline.shown.slice(0, 10).filter((_, i) => pen.getImageData(
        Math.round((timeline.gutter + 40) * devicePixelRatio),
        Math.round((i + 0.5) * timeline.row * devicePixelRatio), 1, 1).data[3] > 0).length; }"""
    assert short.web.evaluate(drawn) == 10

    # what is kept of the bands is as if it were drawn anew: played, jumped back, zoomed, with another size
    assert set(short.web.evaluate(KEPT_AND_ANEW, 20)) == {True}
    short.look(1366, 768, "dark")
    assert set(short.web.evaluate(KEPT_AND_ANEW, 5)) == {True}

    assert min(short.web.evaluate(AT_THE_END)) > 0  # up to the edge

    # four times as many cost no more strokes and no more elements a frame
    few = short.web.evaluate(WORK_A_FRAME)
    own = recording(short.lab.finished[-1].log, [3])
    plain = part_of(repeated(own, 4), many, "many", "many", None)
    show = "(text) => document.querySelector('.psb-lab').stage.show([JSON.parse(text)], { at: 0 })"
    short.web.evaluate(show, json.dumps(plain))
    most = short.web.evaluate(WORK_A_FRAME)
    assert len(short.web.evaluate(rows_shown)) == 13
    assert 50 < few["strokes"] < 800, few  # of the bands only what has come into view
    assert few["elements"] < 100  # what is drawn again stays in the page
    for kind, least in (("strokes", 0), ("elements", 100)):
        assert most[kind] < max(least, 1.3 * few[kind]), (few, most)
    assert short.errors() == []

    # and where the panel is narrow, with ten thousand workers
    short.look(781, 768, "dark")
    assert set(short.web.evaluate(KEPT_AND_ANEW, 5)) == {True}
    plain = part_of(repeated(own, 20), many, "ten thousand", "ten thousand", own.end_s / 2)
    assert 0 < plain["begin_s"] < plain["end_s"] < plain["whole_s"]  # a piece, which ends within the picture
    short.web.evaluate(show, json.dumps(plain))
    count = "document.querySelector('.psb-lab').stage.films[0].recording.workers.length"
    assert short.web.evaluate(count) == 10_000
    assert set(short.web.evaluate(KEPT_AND_ANEW, 5)) == {True}


#: whether each line from a worker that waits is within the picture
INSIDE = """() => [...document.querySelectorAll('.psb-waits')].map((each) => {
  const { y, height } = each.getBBox();
  return y >= 0 && y + height <= each.ownerSVGElement.viewBox.baseVal.height; })"""


@pytest.mark.parametrize(
    ("strategy", "words"), [("all_reduce", "with every worker"), ("d_psgd", "each has its own model")]
)
def test_workers_without_a_server_stand_in_a_ring(short: Direct, strategy: str, words: str) -> None:
    plan = SHORT.but(strategy=strategy, stop={"updates": 40}, timing_only=True)
    plain = part_of(recording(run(plan).log), plan, strategy, strategy, None)
    show = "(text) => document.querySelector('.psb-lab').stage.show([JSON.parse(text)], { at: 0 })"
    short.web.evaluate(show, json.dumps(plain))
    short.web.click(".psb-first-wait")
    assert words in short.web.text_content(".psb-machine")
    assert short.web.locator(".psb-server").count() == 0
    assert set(short.web.evaluate(INSIDE)) == {True}
    assert short.errors() == []


@pytest.mark.nightly
def test_workers_of_a_live_run_are_pressed(chromium: Any, screenshots: Path) -> None:
    """Dragged slower, lost and brought back, while newer pieces are drawn; a link says why it cannot be."""
    panel = Direct(chromium)
    panel.show(Lab(LONG.but(backend="dask", cluster={"workers": 3}), renderer="svg"))
    web = panel.web
    web.click(".psb-run")
    panel.wait("() => document.querySelector('.psb-lab').stage.films[0]?.recording.about.key === 'run 1'")
    said = "(words) => document.querySelector('.psb-answer').textContent.includes(words)"

    def drag(place: str, down: float) -> None:
        box = web.locator(place).first.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        web.mouse.move(x, y)
        web.mouse.down()
        web.mouse.move(x, y + down / 2, steps=3)
        panel.settle(500)  # it is drawn anew meanwhile
        web.mouse.move(x, y + down, steps=3)
        web.mouse.up()

    drag(".psb-node-ring", 80)
    panel.wait(said, argument="worker 0 was made 0.25 times as fast by hand")
    web.locator(".psb-node").nth(1).focus()
    panel.settle(500)
    web.keyboard.press("Delete")  # the focus stays where it was
    panel.wait(said, argument="worker 1 was removed by hand")
    gone = "() => document.querySelector('.psb-why').textContent.includes('Worker 1 has been gone since')"
    panel.wait(gone)
    panel.shot(screenshots / "lab-pressed-live.png")
    box = web.locator(".psb-gone .psb-node-ring").bounding_box()
    web.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, delay=400)
    panel.wait(said, argument="worker 1 was brought back by hand")
    drag(".psb-link-hold", 60)
    panel.wait(said, argument="a live run's link cannot be throttled")
    web.click(".psb-stop")
    panel.over("stopped")
    leaves, joins = (panel.lab.finished[0].log.of_kind(kind)["worker"] for kind in (Kind.LEAVE, Kind.JOIN))
    assert (leaves.tolist(), joins.tolist()) == ([1], [0, 1, 2, 1])
    assert panel.errors() == []
    assert panel.lab._error == ""
    panel.close()
