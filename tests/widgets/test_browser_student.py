"""What a student does with the panel, by pointer and by keyboard, in a browser: three widths, both themes.

The panel is shown without Jupyter (`direct`), so a width costs a second; its pictures are the README's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.moment import moment, told
from PIL import Image

from psbench import run
from psbench.charts.colours import WAIT
from psbench.core.log import Kind
from psbench.metrics import timeline
from psbench.metrics.recording_reader import recording
from psbench.results.run import Run
from psbench_widgets import Lab
from psbench_widgets.opening import EXPERIMENT, FILE, recorded

from .direct import AUDIT, BESIDE, Direct, violations
from .jupyter import PICTURES, ROOT
from .test_browser_lab import all_settings, machines

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

#: the layout goes by the room that the panel has: beside a file browser, 1024 leave as much as 705 alone
WIDTHS = {705: 768, 1920: 1080, 1366: 768}
MOST_PRESSES = 12
#: names of runs, of which some are long
NAMES = [
    "a slow network: bsp, bandwidth 1000 Mbit/s, no failures",
    "ssp -> asp at 0.16 s -> k_asp at 0.3 s",
    "one slow worker: ssp, bound 10",
    "a failing worker: strategy_switch",
    "data that differs: ssp, speed [1, 1, 1, 0.33]",
]
SHOWN = """() => { const room = document.getElementById('scroll').getBoundingClientRect().bottom;
 const places = ['.psb-presets', '.psb-buttons', '.psb-run', '.psb-stop', '.psb-switch', '.psb-all-settings',
   '.psb-predict summary', '.psb-result', '.psb-timeline-canvas', '.psb-strip', '.psb-scrub', '.psb-why',
   '.psb-slot[data-key=val_accuracy] svg', '.psb-machine'];
 return places.filter((place) => {
   const boxes = [...document.querySelectorAll(place)].map((each) => each.getBoundingClientRect());
   const isOut = ({ top, bottom, height }) => height < 5 || top < 0 || bottom > room + 1;
   return !boxes.length || boxes.some(isOut); }); }"""
#: the panel beside a file browser on a small screen, and what it has on a larger one: 934 x 808 px
ONE_SCREEN = {(1366, 768), (934 + BESIDE + 12, 808 + 114)}


@pytest.fixture(scope="module")
def panel(chromium: Any) -> Iterator[Direct]:
    direct = Direct(chromium, moves=True)
    direct.show(Lab(renderer="svg", pace="fast"))
    yield direct
    direct.close()


CONTROLS = """(what) => [...document.querySelectorAll(
    '.psb-lab button:enabled, .psb-lab input:enabled, .psb-lab select:enabled')].filter((e) =>
  what === 'nameless' ? !(e.textContent.trim() || e.ariaLabel || e.title || e.labels?.length)
  : e.tabIndex < 0 && e.getAttribute('role') !== 'tab').map((e) => e.outerHTML)"""


WIDER = """() => [...document.querySelectorAll('.psb-compare .psb-scroll')]
  .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth)
  .map((e) => `${e.scrollWidth} of ${e.clientWidth}`)"""


CUT = """() => [...document.querySelectorAll('.role-legend-label text, .role-legend-label tspan,'
  + ' .role-axis-label text')]
  .filter((e) => e.checkVisibility() && e.textContent.endsWith('…')).map((e) => e.textContent)"""


#: of charts beside each other, those whose title or drawing begins higher or lower than that of the first;
#: and what of the controls of a run under way has no room in their line
IN_LINE = """() => {
  const top = (e, place) => Math.round(e.querySelector(place).getBoundingClientRect().top);
  const live = document.querySelector('.psb-live');
  const wasHidden = live.hidden;
  live.hidden = false;
  const row = document.querySelector('.psb-scrub');
  const middle = (e) => e.getBoundingClientRect().top + e.getBoundingClientRect().height / 2;
  const below = [...row.children].filter((e) => middle(e) - middle(row.firstChild) > 8);
  live.hidden = wasHidden;
  const uneven = [...document.querySelectorAll('.psb-watch .psb-grid')].flatMap((grid) => {
    const charts = [...grid.querySelectorAll('.psb-chart')].filter((e) => e.checkVisibility());
    return charts.filter((each, i) => {
      const before = charts[i - 1];
      if (!before || before.getBoundingClientRect().left > each.getBoundingClientRect().left) return false;
      const differs = (place) => Math.abs(top(each, place) - top(before, place)) > 1;
      return ['.psb-chart-title', '.psb-chart-place'].some(differs);
    });
  });
  return [...below, ...uneven].map((e) => e.textContent.slice(0, 40)); }"""


OUTSIDE = """() => { const room = document.querySelector('.psb-lab').getBoundingClientRect();
 return [...document.querySelectorAll('.psb-predict-body :is(label, svg)')].filter((e) => {
   const { left, right } = e.getBoundingClientRect();
   return left < room.left - 1 || right > room.right + 1; }).map((e) => e.outerHTML.slice(0, 60)); }"""


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


def picture_of_the_readme(screenshots: Path) -> None:
    """Put the three states behind each other, without the margins that stand for JupyterLab."""
    shots = [Image.open(screenshots / f"lab-{name}-light.png") for name in ("wait", "fork", "runs")]
    frames = [shot.convert("RGB").crop((BESIDE - 12, 80, shot.width, shot.height - 12)) for shot in shots]
    frames[0].save(
        screenshots / "lab.webp", save_all=True, append_images=frames[1:], duration=4000, loop=0, quality=70
    )


def test_without_a_run_it_opens_with_a_recorded_one_that_plays(panel: Direct, screenshots: Path) -> None:
    web = panel.web
    assert web.locator(".psb-opening li").count() == 3
    assert "a recorded run" in web.text_content(".psb-film-name")
    now = "document.querySelector('.psb-lab').stage.now"
    asked = list[Any]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(panel.lab, "_on_message", lambda *message: asked.append(message))
        before = web.evaluate(now)
        panel.wait(f"(t) => {now} > t + 0.05", argument=before)
    assert asked == []  # playing costs the kernel nothing
    web.click(".psb-play")  # pauses
    web.click(".psb-first-wait")
    whole = recording(run(EXPERIMENT).log, [3])
    assert json.loads(FILE.read_text()) == json.loads(json.dumps(recorded()))
    assert "this run" in web.text_content("[data-key=trade] svg")  # among all bounds
    assert web.evaluate(now) == whole.next("wait", -1.0)
    assert web.text_content(".psb-why") == told(whole, web.evaluate(now), whole.end_s)
    panel.shot(screenshots / "lab-opening.png")
    assert panel.audit() == []
    web.select_option(".psb-drawn-as", "messages")  # the same moment as a sequence diagram
    shown = web.locator(".psb-sequence")
    between = [float(shown.get_attribute(f"data-{edge}") or "nan") for edge in ("from", "to")]
    spans = timeline(run(EXPERIMENT).log)
    spans = spans[(spans["end_s"] > between[0]) & (spans["start_s"] < between[1])]
    arrows = {phase: web.locator(f'.psb-arrow[data-phase="{phase}"]').count() for phase in ("send", "pull")}
    assert arrows == {phase: int((spans["phase"] == phase).sum()) for phase in arrows}
    assert arrows["send"] > 5
    panel.shot(screenshots / "lab-messages.png")
    assert panel.audit() == []
    web.select_option(".psb-drawn-as", "machines")
    web.click(".psb-play")
    film = json.loads(FILE.read_text())["film"]
    film["about"]["key"] = "run 7"
    web.evaluate("film => document.querySelector('.psb-lab').stage.show([film])", film)  # while another plays
    assert web.evaluate(now) == whole.next("wait", -1.0)


def test_a_student_predicts_runs_rewinds_reads_why_forks_and_compares(
    panel: Direct, screenshots: Path
) -> None:
    student = Presses(panel)
    student.press('[data-preset="slow_worker"]')
    cards = panel.web.locator(".psb-preset")
    assert cards.count() == 5
    assert all(" " in text and "?" in text for text in cards.all_text_contents())
    chosen = panel.web.locator('.psb-preset[aria-pressed="true"]')
    assert chosen.all_text_contents() == ["One slow workerwho waits, and how long?"]
    sentence = " ".join(panel.web.inner_text(".psb-buttons").split())
    assert (
        sentence == "Train with SSP – a bounded lead and a bound of steps on 4 workers: 1, 1, 1, 0.33 × ▶ Run"
    )
    student.press(".psb-predict > summary")
    student.choose(".psb-predict-most", "3")
    student.press(".psb-run")
    panel.over("run 1 finished")
    panel.wait("() => document.querySelector('.psb-gaps li')")
    # what waiting costs and buys: the run on the curve of all bounds, which are played in the background
    panel.wait("() => document.querySelector('[data-key=trade] svg')?.textContent.includes('ASP')")
    points = panel.lab._figures.charts["trade"].rows()
    of, took = ({each["label"]: each[name] for each in points} for name in ("staleness", "per_100_s"))
    assert of["bound 0"] < of["bound 3"] < of["ASP"]
    assert took["bound 0"] > took["bound 3"] > took["ASP"]
    # the other runs are as long as this one, so it is where its bound is
    assert (of["this run"], took["this run"]) == pytest.approx((of["bound 3"], took["bound 3"]), rel=0.01)
    assert panel.audit() == []
    assert "You expected worker 3 to wait most" in panel.web.text_content(".psb-gaps")
    for width, height in sorted(ONE_SCREEN, reverse=True):
        panel.look(width, height, "light")
        assert panel.web.evaluate(SHOWN) == [], width  # everything that matters is on one screen

    # the result before all else, and a moment at which there is something to see, played in ten seconds
    assert panel.web.locator(".psb-result b").all_text_contents() == said_of(panel.lab.runs[0])
    assert "worker 3 never" in panel.web.text_content(".psb-result p")
    assert panel.web.text_content(".psb-result .psb-link") == "What if no worker waited (ASP)?"
    whole = recording(panel.lab.finished[0].log, [3])
    at_s = float(panel.web.get_attribute(".psb-stage", "data-now"))
    assert at_s == whole.next("wait", -1.0)
    all_parts_are_at_one_moment(panel, at_s)
    assert panel.web.evaluate("() => document.querySelector('.psb-lab').stage.rate") == whole.end_s / 10
    colour = "() => document.documentElement.style.getPropertyValue('--psb-wait')"
    assert panel.web.evaluate(colour) == WAIT

    student.press(".psb-first-wait")
    why = panel.web.text_content(".psb-why")
    assert " waiting for worker 3." in why
    assert "it is 4 steps ahead of the slowest, one more than its bound of 3 allows" in why
    whole = recording(panel.lab.finished[0].log, [3])
    at_s = float(panel.web.get_attribute(".psb-stage", "data-now"))
    assert why == told(whole, at_s, whole.end_s)
    under = panel.web.locator(".psb-node").first.locator("text").all_text_contents()
    assert under[0] == "0"
    assert under[1].endswith(" done")
    assert under[2] == "4 ahead"
    panel.shot(screenshots / "lab-wait-light.png")

    # the moment is drawn over charts of the run's time alone: the second curve is of another one
    now = "document.querySelector('.psb-lab').stage.now"
    first_wait = panel.web.evaluate(now)
    go = "(t) => { document.querySelector('.psb-lab').stage.go(t, true); }"
    panel.web.evaluate(go, np.mean([*took.values()]))
    marks = {key: f"[data-key={key}] .psb-mark-now" for key in ("val_accuracy", "trade")}
    assert [panel.web.locator(mark).count() for mark in marks.values()] == [1, 0]
    panel.web.evaluate(go, first_wait)
    panel.settle()

    waiting_is_high_and_hot_and_messages_are_half_as_high(panel)
    assert {*panel.web.evaluate(BETWEEN_WAITS)} == {0}  # the boxes around waits do not touch
    the_sentence_stays_in_its_box(panel)
    panel.web.evaluate(go, 0.0)  # all clocks are equal, so none is the last
    assert "0 s" in panel.web.evaluate(WRITTEN)
    assert {*panel.web.locator(".psb-node text:nth-of-type(3)").all_text_contents()} == {""}
    the_window_of_the_strip_moves_the_moment(panel)
    panel.web.evaluate(go, first_wait)
    student.press(".psb-fork-open")
    assert panel.audit() == []
    student.press(".psb-fork")
    panel.over("run 2 finished")
    panel.wait("() => document.querySelectorAll('.psb-film').length === 2")
    assert "asp at" in panel.web.text_content(".psb-first-curve svg")
    above = panel.web.locator(".psb-machine-place > :first-child").all_text_contents()
    assert above[0] == "one slow worker"
    assert above[1].startswith("one slow worker -> asp at ")
    of_two_runs_the_one_that_has_ended_does_nothing(panel)
    # the fork's result stands beside its run's
    numbers = panel.web.locator(".psb-result b").all_text_contents()
    assert numbers == [
        text for pair in zip(*map(said_of, panel.lab.runs[::-1]), strict=True) for text in pair
    ]
    spans = panel.web.locator(".psb-result p span").all_text_contents()
    assert spans[0] == "one slow worker"
    assert re.fullmatch(r"asp at [\d.]+ s: staler, and as accurate\.", spans[1])
    forked_s = panel.web.evaluate(now)
    for width, height in sorted(ONE_SCREEN, reverse=True):
        stands = panel.web.evaluate(now)
        panel.look(width, height, "light")
        # a page that was loaded anew stands where it stood, and has both runs on one screen
        panel.wait("() => document.querySelectorAll('.psb-film').length === 2")
        panel.settle()
        assert panel.web.evaluate(now) == stands
        assert panel.web.evaluate(SHOWN) == [], width
        the_sentence_stays_in_its_box(panel)  # both sentences, whole
        panel.web.evaluate(go, 2 * first_wait)
        panel.settle()
    assert not panel.web.is_visible(".psb-gaps")  # what was expected was expected of one run
    panel.web.evaluate(go, forked_s)
    panel.shot(screenshots / "lab-fork-light.png")
    assert panel.audit() == []
    student.press(".psb-tab-compare")
    panel.wait("() => document.querySelectorAll('.psb-comparison tbody tr').length === 2")
    panel.shot(screenshots / "lab-runs-light.png")
    if PICTURES:
        picture_of_the_readme(screenshots)
    assert student.count <= MOST_PRESSES
    assert panel.errors() == []
    assert panel.lab._error == ""


def said_of(run: dict[str, Any]) -> list[str]:
    """Return the four large numbers of a run."""
    accuracy, time_s, idle, staleness = (
        run[name] for name in ("val_accuracy", "time_s", "idle", "staleness")
    )
    return [
        f"{100 * accuracy:.1f}\u00a0%",
        f"{time_s:.3g} s",
        f"{100 * idle:.0f}\u00a0%",
        f"{staleness:.1f}",
    ]


def all_parts_are_at_one_moment(panel: Direct, at_s: float) -> None:
    """Sums, counts and the tree of a run that is over follow to where the film stands; headings say so."""
    note = "(key) => document.querySelector(`[data-key=${key}] .psb-chart-note`).textContent"
    says = f"([key, words]) => ({note})(key).startsWith(words)"
    for key in ("time_use", "idle", "share", "staleness", "bytes"):
        panel.wait(says, argument=[key, f"up to {at_s:.4g} s"])
    for key in ("trade", "val_accuracy"):  # a result of the whole run, and a curve with the moment in it
        assert panel.web.evaluate(note, key).startswith("whole run")
    applied_s = panel.lab.finished[0].log.of_kind(Kind.APPLY)["time_s"]
    applied = int((applied_s <= at_s).sum())
    assert 0 < applied < len(applied_s)
    tree = panel.web.locator(".psb-tree")
    assert tree.get_attribute("data-applied") == str(applied)
    assert tree.locator("summary").text_content() == "Computation tree at this moment"


#: how opaque it is between the rows where two workers, one above the other, wait at the same moment
BETWEEN_WAITS = """() => { const { stage } = document.querySelector('.psb-lab');
  const [{ timeline, recording }] = stage.films;
  const before = stage.now;
  stage.rescale(1 / 8);
  // just before the first wait ends
  stage.go(stage.films[0].state.workers.find(({ waits }) => waits).until - 1e-4, true);
  const waiting = stage.films[0].state.workers.filter(({ waits }) => waits);
  const pen = document.querySelector('.psb-timeline-canvas').getContext('2d');
  const found = waiting.slice(1).flatMap(({ place, span }, i) => {
    const begin = Math.max(...[span, waiting[i].span].map((each) => recording.tables.spans.start_s[each]));
    const { data } = pen.getImageData(timeline.x((begin + stage.now) / 2), place * timeline.row - 1, 1, 2);
    return waiting[i].place === place - 1 ? [data[3], data[7]] : []; });
  stage.rescale(8);
  stage.go(before, true);
  return found; }"""
#: words of the timeline, of which the marks of its axis have the unit at the first alone
WRITTEN = """() => { const pen = CanvasRenderingContext2D.prototype;
  const { fillText } = pen; const words = [];
  pen.fillText = function (text, ...at) { words.push(text); return fillText.call(this, text, ...at); };
  document.querySelector('.psb-lab').stage.draw();
  pen.fillText = fillText;
  return words; }"""
#: of each phase in the timeline, the colour at the upper edge of a row and in its middle; and how many pixels
#: of waiting the bar at the end of each row has
DRAWN = """() => { const { stage } = document.querySelector('.psb-lab');
  const { recording, timeline } = stage.films[0]; const { start_s, end_s, phase } = recording.tables.spans;
  stage.rescale(1 / 64); // a message is some pixels wide
  const send = recording.phases.indexOf('send');
  stage.go(end_s[phase.findIndex((each, k) => each === send && start_s[k] > stage.now)], true);
  const pen = document.querySelector('.psb-timeline-canvas').getContext('2d');
  const colours = (x, y, wide = 1) => {
    const { data } = pen.getImageData(Math.round(x), Math.round(y), wide, 1);
    return Array.from({ length: wide }, (_, i) => [...data.slice(4 * i, 4 * i + 4)]); };
  const found = {};
  timeline.shown.forEach(({ place }, i) => { const [first, stop] = recording.rows[place];
    for (let k = first; k < stop; k++) {
      const from = Math.max(timeline.gutter, timeline.x(start_s[k]));
      const until = Math.min(timeline.width - timeline.right, timeline.x(end_s[k]));
      const middle = (from + until) / 2;
      if (until - from > 3 && Math.abs(middle - timeline.x(stage.now)) > 2)
        found[recording.phases[phase[k]]] = [0.12, 0.5].map(
          (part) => colours(middle, (i + part) * timeline.row)[0]); } });
  const isHot = (colour) => colour.join() === found.wait?.[1].join();
  const totals = timeline.shown.map((_, i) => Math.max(...Array.from({ length: timeline.row }, (_, y) =>
    colours(timeline.width - timeline.right + 8, i * timeline.row + y, 76).filter(isHot).length)));
  stage.rescale(64);
  return { found, totals, shares: [...recording.waiting] }; }"""


def waiting_is_high_and_hot_and_messages_are_half_as_high(panel: Direct) -> None:
    drawn = panel.web.evaluate(DRAWN)
    edge, middle = drawn["found"]["wait"]
    assert edge == middle == [*bytes.fromhex(WAIT[1:]), 255]
    edge, middle = drawn["found"]["compute"]
    assert edge == middle
    edge, middle = drawn["found"]["send"]
    assert (edge[3], middle[3] > 0) == (0, True)
    # the totals at the ends of the rows are as long as the shares of waiting
    most = max(drawn["shares"])
    longest = max(drawn["totals"])
    assert longest > 10
    assert [pixels / longest for pixels in drawn["totals"]] == pytest.approx(
        [share / most for share in drawn["shares"]], abs=2 / longest
    )


def the_sentence_stays_in_its_box(panel: Direct) -> None:
    """Whatever it says, nothing below it moves, and none of it has to be scrolled to."""
    sizes = panel.web.evaluate(
        """() => { const { stage } = document.querySelector('.psb-lab');
          return Array.from({ length: 25 }, (_, i) => { stage.go((stage.end * i) / 25, true);
            const { offsetHeight, scrollHeight, clientHeight } = document.querySelector('.psb-why');
            return [offsetHeight, scrollHeight <= clientHeight]; }); }"""
    )
    assert {*map(tuple, sizes)} == {(sizes[0][0], True)}


def the_window_of_the_strip_moves_the_moment(panel: Direct) -> None:
    """It is as wide as what the timelines show, and the strip has the whole run's waiting in it."""
    box = panel.web.locator(".psb-slider").bounding_box()
    panel.web.mouse.click(box["x"] + box["width"] / 2, box["y"] + 10)
    shown = panel.web.evaluate(
        """() => { const { stage } = document.querySelector('.psb-lab');
          const { view } = stage.films[0].timeline;
          const [track, box] = ['.psb-slider', '.psb-strip-window'].map(
            (place) => document.querySelector(place).getBoundingClientRect());
          return { now: stage.now / stage.end, from: view.from / stage.end, to: view.to / stage.end,
            left: (box.left - track.left) / track.width, right: (box.right - track.left) / track.width,
            along: [...stage.films[0].recording.along] }; }"""
    )
    assert shown["now"] == pytest.approx(0.5, abs=0.01)
    assert (shown["left"], shown["right"]) == pytest.approx((shown["from"], shown["to"]), abs=0.012)
    log = shown_first(panel).log
    spans = timeline(log)
    waited = spans[spans["phase"] == "wait"]
    share = (waited["end_s"] - waited["start_s"]).sum() / (spans["end_s"] - spans["start_s"]).sum()
    assert np.mean(shown["along"]) == pytest.approx(share, rel=0.02)


def of_two_runs_the_one_that_has_ended_does_nothing(panel: Direct) -> None:
    """The fork without waits ends first: at a moment after it, it says so, and its machines stand still."""
    ends = "() => document.querySelector('.psb-lab').stage.films.map(({ recording }) => recording.whole)"
    first, second = panel.web.evaluate(ends)
    assert second < first
    before = panel.web.evaluate("document.querySelector('.psb-lab').stage.now")
    go = "(t) => { document.querySelector('.psb-lab').stage.go(t, true); }"
    panel.web.evaluate(go, (first + second) / 2)
    panel.settle(300)
    phases = """(i) => [...document.querySelectorAll('.psb-machine')[i].querySelectorAll('.psb-node')]
      .map((e) => e.dataset.phase)"""
    assert panel.web.evaluate(phases, 1) == ["ended"] * 4
    assert "ended" not in panel.web.evaluate(phases, 0)
    assert "This run has ended, at " in panel.web.locator(".psb-why p").nth(1).text_content()
    panel.web.evaluate(go, before)
    panel.settle(200)


def test_a_worker_of_the_machine_is_dragged_slower_and_lost(panel: Direct, screenshots: Path) -> None:
    web = panel.web
    last = max((each["number"] for each in panel.lab.runs), default=0) + 1
    key = "(n) => document.querySelector('.psb-lab').stage.films[0].recording.about.key === `run ${n}`"
    panel.lab.experiment = EXPERIMENT.but(stop={"epochs": 3})
    panel.settle(300)
    web.click(".psb-run")
    panel.over(f"run {last} finished")
    panel.wait(key, argument=last)
    web.click(".psb-first-wait")
    into_sight = "() => document.querySelector('.psb-machine').scrollIntoView({ block: 'center' })"
    web.evaluate(into_sight)
    panel.settle(300)
    node = web.locator(".psb-node").first
    ring = node.locator(".psb-node-ring").bounding_box()
    x, y = ring["x"] + ring["width"] / 2, ring["y"] + ring["height"] / 2
    web.mouse.move(x, y)
    web.mouse.down()
    web.mouse.move(x, y + 40, steps=4)  # as far as halves its speed
    assert web.text_content(".psb-factor") == "0.5 ×"  # where one drags
    factor = web.locator(".psb-factor").bounding_box()
    assert abs(factor["x"] - x) < 80
    assert abs(factor["y"] - y) < 40
    assert web.input_value(".psb-what-number") == "0.5"
    web.mouse.up()
    panel.over(f"run {last + 1} finished")
    (slower,) = panel.lab.finished[-1].experiment.cluster.profile().slowdowns
    assert (slower.worker, slower.factor) == (0, 2.0)  # times as long
    web.locator(".psb-node").nth(1).focus()
    web.keyboard.press("Delete")
    panel.over(f"run {last + 2} finished")
    (lost,) = panel.lab.finished[-1].experiment.cluster.profile().failures
    assert lost.worker == 1

    # of the run in which it is lost: it is pressed, and is back
    panel.lab._on_message(panel.lab, {"kind": "show", "number": last + 2}, [])
    panel.wait(key, argument=last + 2)
    web.evaluate("(t) => document.querySelector('.psb-lab').stage.go(t, true)", lost.at_s * 1.5)
    panel.settle(200)
    assert "Worker 1 has been gone since" in web.text_content(".psb-why")
    gone = web.locator(".psb-node.psb-gone")
    assert gone.count() == 1
    gone.locator(".psb-node-hold").click()
    panel.over(f"run {last + 3} finished")
    (back,) = panel.lab.finished[-1].experiment.cluster.profile().failures
    assert back.rejoin_s == pytest.approx(lost.at_s * 1.5, rel=1e-3)

    # with a server, every worker has a link of its own
    panel.lab._on_message(panel.lab, {"kind": "show", "number": last}, [])
    panel.wait(key, argument=last)
    web.evaluate(
        "() => { const { stage } = document.querySelector('.psb-lab'); stage.go(stage.end / 2, true); }"
    )
    web.evaluate(into_sight)
    panel.settle(300)
    box = web.locator('.psb-link-hold[data-worker="2"]').bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    web.mouse.move(x, y)
    web.mouse.down()
    web.mouse.move(x, y + 40, steps=4)
    assert web.input_value(".psb-what-number") == "0.5"
    web.mouse.up()
    panel.over(f"run {last + 4} finished")
    (slower_link,) = panel.lab.finished[-1].experiment.cluster.profile().throttles
    assert (slower_link.worker, slower_link.factor) == (2, 2.0)
    panel.shot(screenshots / "lab-pressed.png")
    assert panel.audit() == []
    assert panel.errors() == []


def the_start_of_a_live_run_is_a_table(panel: Direct, screenshots: Path, width: int) -> None:
    """Which process is at what, with times; the charts of the run before are put away."""
    panel.web.click(".psb-tab-watch")
    names = ["coordinator", *(f"worker {i}" for i in range(9)), "evaluator"]
    rows = [
        [name, [0.8, 1.4, 2.25, None] if i < 6 else [0.9, None, None, None]] for i, name in enumerate(names)
    ]
    stages = ["process up", "torch loaded", "data read", "met"]
    words = "starting 11 processes: 11 up, 6 with torch, 6 with data, 0 met, 2.5 s"
    before = panel.lab.status
    running = {"running": 7, "echo": "ssp", "words": words, "fraction": None, "beginning": True}
    panel.lab.status = before | running | {"starting": {"stages": stages, "rows": rows}}
    panel.wait("() => document.querySelectorAll('.psb-start tbody tr').length === 11")
    cells = panel.web.locator('.psb-start tr[data-process="worker 8"] td').all_text_contents()
    assert cells == ["0.9 s", "…", "", ""]
    assert not panel.web.is_visible(".psb-stage")
    assert panel.web.is_enabled(".psb-stop")
    panel.shot(screenshots / f"lab-start-{width}.png")
    assert panel.audit() == []
    panel.lab.status = before
    panel.settle()


def test_runs_are_renamed(panel: Direct) -> None:
    for number, name in enumerate(NAMES, 1):
        panel.lab._on_message(panel.lab, {"kind": "rename", "number": number, "name": name}, [])
    panel.lab.wait(60)
    panel.settle()
    shown = panel.web.locator(".psb-name").all_text_contents()
    assert [name for name in NAMES if name not in shown] == []


def test_the_runs_are_a_table_with_a_menu_in_each_row(panel: Direct) -> None:
    web = panel.web
    web.click(".psb-tab-compare")
    rows = web.locator(".psb-runs tr[data-number]")
    assert [row.bounding_box()["height"] for row in rows.all()] == pytest.approx([32] * rows.count(), abs=1.5)
    numbers = [str(each["number"]) for each in panel.lab.runs]
    assert rows.locator("td:nth-child(2)").all_text_contents() == numbers
    drawn = web.locator(".psb-sparkline polyline").evaluate_all(
        "(all) => all.map((e) => e.getAttribute('points').split(' ').length)"
    )
    assert drawn == [len(each["curve"]) for each in panel.lab.runs]
    menu = rows.last.locator(".psb-acts > summary")
    seen = "(e) => getComputedStyle(e).opacity"
    assert menu.evaluate(seen) == "0"
    rows.last.hover()
    assert menu.evaluate(seen) == "1"
    menu.click()
    assert panel.audit() == []
    number = int(numbers[-1])
    # what is asked for is said at once, before Python has answered
    rows.last.locator(".psb-do-show").click()
    assert web.text_content(".psb-why") == f"Loading run {number} …"
    panel.wait(
        f"() => document.querySelector('.psb-lab').stage.films[0].recording.about.key === 'run {number}'"
    )
    panel.settle(300)
    assert "Loading" not in web.text_content(".psb-why")


def test_the_line_under_the_pointer_stands_out(panel: Direct) -> None:
    panel.web.click(".psb-tab-compare")
    panel.settle()
    chart = panel.web.locator(".psb-compare .psb-chart").first
    chart.scroll_into_view_if_needed()
    lines = chart.locator('path[aria-roledescription="line mark"]')
    strength = """(all) => all.filter((e) => e.getAttribute('stroke-width') !== '14')
      .map((e) => Number(e.getAttribute('opacity') ?? 1))"""
    before = lines.evaluate_all(strength)
    assert len(before) > 2
    assert before == [1] * len(before)
    x, y = lines.last.evaluate(
        """(e) => { const at = e.getPointAtLength(e.getTotalLength() / 2).matrixTransform(e.getScreenCTM());
          return [at.x, at.y]; }"""
    )
    panel.web.mouse.move(x, y)
    panel.settle(300)
    assert sorted(lines.evaluate_all(strength)) == [0.2] * (len(before) - 1) + [1]
    panel.web.mouse.move(5, 5)
    panel.settle(300)
    assert lines.evaluate_all(strength) == before


# what overlaps depends on the width, and what is hard to read on the theme
@pytest.mark.by_day(3)
@pytest.mark.parametrize("tab", ["watch", "compare"])
@pytest.mark.parametrize(
    ("width", "theme"),
    [(705, "light"), pytest.param(1920, "light", marks=pytest.mark.nightly), (1366, "light"), (1366, "dark")],
)
def test_no_text_overlaps_is_cut_off_or_hard_to_read(
    panel: Direct, screenshots: Path, width: int, theme: str, tab: str
) -> None:
    panel.look(width, WIDTHS[width], theme)
    alone = () if panel.lab.finished else ("bsp", "asp")  # at night nothing has run before
    for number, strategy in enumerate(alone, 1):
        panel.lab.experiment = panel.lab.experiment.but(strategy=strategy)
        panel.settle(300)
        panel.web.click(".psb-run")
        panel.over(f"run {number} finished")
    panel.web.click(f".psb-tab-{tab}")
    panel.shot(screenshots / f"lab-{tab}-{width}-{theme}.png")
    assert panel.web.evaluate(AUDIT) == []
    assert violations(panel.web, ".psb-lab") == []
    assert panel.web.evaluate(CUT) == []  # no name either, however long
    if tab == "watch":
        assert panel.web.evaluate(IN_LINE) == []
    if (tab, width) == ("watch", 705):  # all settings open beside Run, not below everything
        the_sentence_stays_in_its_box(panel)
        tell = "text => document.querySelector('.psb-lab').stage.tell(text)"
        panel.web.evaluate(tell, "A long sentence. " * 40)
        assert violations(panel.web, ".psb-why") == []  # whatever does not fit is scrolled by keys
        panel.web.evaluate(tell, "")
        if panel.web.get_attribute(".psb-predict", "open") is None:
            panel.web.click(".psb-predict > summary")
        panel.settle(200)
        assert panel.web.evaluate(OUTSIDE) == []  # all answers to "Predict first" can be given
        assert panel.audit() == []
        panel.web.keyboard.press("Escape")
        panel.web.click(".psb-all-settings")
        bottoms = """() => ['.psb-run', '.psb-form'].map(
          (place) => document.querySelector(place).getBoundingClientRect().bottom)"""
        run_ends, form_ends = panel.web.evaluate(bottoms)
        assert run_ends < form_ends < run_ends + 500
        assert panel.audit() == []
        panel.web.click(".psb-all-settings")
    if tab == "compare":  # what has no room is in a fold, and nothing needs scrolling sideways
        assert panel.web.evaluate(WIDER) == []
        heads = set(panel.web.locator(".psb-comparison-place th[scope=col]").all_text_contents())
        rest = set(panel.web.locator(".psb-comparison-rest th[scope=col]").all_text_contents())
        assert heads >= {"strategy", "time (s)", "speed-up", "val. accuracy"}
        assert heads | rest == set(panel.lab.table["headings"])
        if (width, theme) in ((705, "light"), (1366, "light")):
            the_start_of_a_live_run_is_a_table(panel, screenshots, width)


def shown_first(panel: Direct) -> Run:
    """The run that the page shows; a fork of it is beside it."""
    found = panel.lab._runner.table[panel.lab._runner.view.shown_number].run
    assert found is not None
    return found


def test_the_page_finds_the_same_state_as_python(panel: Direct) -> None:
    """The stage's own search against `oracles.moment`, at many moments."""
    run = shown_first(panel)
    recorded = recording(run.log, [3])
    times = [float(t) for t in np.linspace(0, recorded.end_s * 0.999, 60)]
    found = panel.web.evaluate(
        """(times) => times.map((t) => {
          const found = document.querySelector('.psb-lab').stage.films[0].recording.at(t);
          const { version, buffer } = found;
          const workers = found.workers.map(({ worker, phase, clock, version, waitedFor, why }) =>
            ({ worker, phase, clock, version, waitedFor, why }));
          return { version, buffer, workers }; })""",
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
    versions = recording(shown_first(panel).log).versions["time_s"]
    assert after > before
    others = recording(panel.lab.finished[-1].log).versions["time_s"]
    assert min(np.abs(np.append(versions, others) - after)) < 1e-9
    assert panel.web.evaluate(CONTROLS, "nameless") == []
    # the tab key alone comes to every control that is shown
    assert panel.web.evaluate(CONTROLS, "unreachable") == []


def test_tables_of_charts_have_names_and_are_seen_on_touch_screens(panel: Direct) -> None:
    panel.web.click(".psb-tab-watch")
    toggles = panel.web.locator(".psb-watch .psb-chart-toggle")
    names = toggles.evaluate_all("(all) => all.map((e) => e.ariaLabel)")
    assert "table: Validation accuracy" in names
    assert len({*names}) == len(names) > 10
    styles = (ROOT / "widgets" / "psbench_widgets" / "js" / "style.css").read_text()
    button = '<figure class="psb-chart"><button class="psb-chart-toggle">table</button></figure>'
    for is_mobile, opacity in ((False, "0"), (True, "1")):
        with closing(panel.browser.new_context(has_touch=is_mobile, is_mobile=is_mobile)) as context:
            web = context.new_page()
            web.set_content(f"<style>{styles}</style>{button}")
            assert web.locator("button").evaluate("(e) => getComputedStyle(e).opacity") == opacity


def test_strategies_are_found_by_a_word_and_typed_values_come_back(panel: Direct) -> None:
    web = panel.web
    machines(web)
    web.fill('.psb-section-cluster [data-field="speed"]', "[1, 1, 1, 0.25]")
    web.select_option(".psb-section-cluster select >> nth=0", "homogeneous")
    panel.settle(200)
    web.select_option(".psb-section-cluster select >> nth=0", "custom")
    assert web.input_value('.psb-section-cluster [data-field="speed"]') == "[1, 1, 1, 0.25]"
    web.click(".psb-chooser-head")
    titles = web.locator(".psb-option-title").all_text_contents()
    assert titles[0] == "Consistency: when workers wait for each other"
    web.fill(".psb-search", "thesis straggl")
    shown = web.locator(".psb-option:visible .psb-option-name").all_text_contents()
    assert shown
    assert all(name != "ssp" for name in shown)
    field = {
        "bulk synchronous": "bsp",
        "stale synchronous": "ssp",
        "asynchronous": "asp",
        "straggler": "flex_rr",
    }
    field |= {
        "asynchronous": "asp",
        "parameter server": "ssp",
        "local sgd": "local_sgd",
        "compression": "double_squeeze",
    }
    for words, name in field.items():
        web.fill(".psb-search", words)
        found = web.locator(".psb-option:visible").evaluate_all("(all) => all.map((e) => e.dataset.name)")
        assert name in found, (words, found)
        assert len(found) < 60
    web.fill(".psb-search", "switch to")
    web.fill(".psb-search", "strategy_switch")
    web.press(".psb-search", "Enter")
    panel.settle(300)
    all_settings(web)
    first = web.locator(".psb-section-strategy .psb-nested > .psb-label").first
    assert first.text_content() == "rule"
    assert panel.errors() == []


def test_a_worker_and_a_span_of_time_are_selected_by_keys(panel: Direct) -> None:
    web = panel.web
    web.click(".psb-tab-watch")
    web.evaluate("() => { document.querySelector('.psb-lab').stage.go(0.5, true); }")
    web.focus(".psb-timeline-canvas >> nth=0")
    web.keyboard.press("ArrowDown")
    web.keyboard.press("[")
    state = "() => [document.querySelector('.psb-lab').stage].map(({ worker, brush }) => [worker, brush])[0]"
    worker, brush = web.evaluate(state)
    assert (worker, brush[0]) == (0, 0.5)
    panel.settle()
    assert web.locator(".psb-mark-span").count() >= 4  # in every curve
    assert web.locator(".psb-mark-worker").count() >= 2
    web.keyboard.press("Escape")
    assert web.evaluate(state) == [None, None]


def test_a_wait_under_the_pointer_is_joined_to_the_worker_that_ended_it(panel: Direct) -> None:
    """The whole height of its row answers, though a wait is drawn as a thin line."""
    web = panel.web
    web.click(".psb-first-wait")
    box = web.locator(".psb-timeline-canvas >> nth=0").bounding_box()
    waits = """() => { const film = document.querySelector('.psb-lab').stage.films[0];
      const { recording, timeline } = film; const spans = recording.tables.spans;
      const i = [...spans.phase].findIndex((p, k) => p === recording.wait && spans.waited_for[k] >= 0
        && spans.start_s[k] > timeline.view.now && spans.end_s[k] < timeline.view.to);
      const row = timeline.shown.findIndex(({ worker }) => worker === spans.worker[i]);
      return { x: timeline.x((spans.start_s[i] + spans.end_s[i]) / 2), row, height: timeline.row }; }"""
    at = web.evaluate(waits)
    picture = "() => document.querySelector('.psb-timeline-canvas').toDataURL()"
    for part in (0.1, 0.9):
        web.mouse.move(box["x"] + 2, box["y"] + box["height"] - 2)
        before = web.evaluate(picture)
        web.mouse.move(box["x"] + at["x"], box["y"] + (at["row"] + part) * at["height"])
        assert " waits " in web.text_content(".psb-why")
        assert web.evaluate(picture) != before


def test_ctrl_and_the_wheel_zoom_and_the_wheel_alone_scrolls(panel: Direct) -> None:
    web = panel.web
    web.click(".psb-first-wait")
    shown = """() => { const [{ timeline }] = document.querySelector('.psb-lab').stage.films;
      return [timeline.view.to - timeline.view.from, timeline.view.now]; }"""
    before, moment = web.evaluate(shown)
    web.locator(".psb-timeline-canvas >> nth=0").hover()
    web.mouse.wheel(0, -100)
    panel.settle(200)
    assert web.evaluate(shown) == [before, moment]
    web.evaluate("() => document.querySelector('.psb-timeline').scrollIntoView()")
    web.locator(".psb-timeline-canvas >> nth=0").hover()
    web.keyboard.down("Control")
    web.mouse.wheel(0, -100)
    panel.settle(200)
    web.keyboard.up("Control")
    assert web.evaluate(shown) == [before / 2, moment]
    web.click(".psb-wider")


def test_a_curve_is_drawn_and_the_gap_is_shown(panel: Direct) -> None:
    panel.look(1366, 768, "light")
    panel.lab.experiment = panel.lab.experiment.but(stop={"epochs": 6})
    panel.settle(300)
    web = panel.web
    if web.get_attribute(".psb-predict", "open") is None:
        web.click(".psb-predict > summary")
    area = web.locator(".psb-drawing-area").bounding_box()
    web.mouse.move(area["x"] + 40, area["y"] + 90)
    web.mouse.down()
    web.mouse.move(area["x"] + 280, area["y"] + 20, steps=6)
    web.mouse.up()
    web.focus(".psb-drawn-point >> nth=8")
    web.keyboard.press("PageDown")
    panel.settle()
    drawn = panel.lab._runner.questions.prediction.curve
    assert len(drawn) == 9
    assert drawn[0] < drawn[4] < drawn[7] > drawn[8]
    web.click(".psb-run")
    panel.over("finished")
    panel.wait("() => document.querySelector('.psb-gaps').textContent.includes('The curve that you drew is')")
    assert web.get_attribute(".psb-came", "d")
    assert panel.audit() == []
    assert panel.errors() == []
