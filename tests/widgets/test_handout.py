"""A run as one file to hand out: small, whole, and it needs nothing from anywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from psbench import Experiment
from psbench.cli import main
from psbench.results.run import Run
from psbench.runs.execution import run
from psbench_widgets import playback as films
from psbench_widgets.handout import write_handout

from .jupyter import seldom_asking

MOST_BYTES = 5_000_000


@pytest.fixture(scope="module")
def done() -> Run:
    return run(
        Experiment(strategy="ssp", cluster={"workers": 4, "speed": [1, 1, 1, 0.3]}, stop={"epochs": 10})
    )


def facts(path: Path) -> Any:
    found = re.search(r'id="psbench-handout">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_it_is_small_and_says_what_it_is(done: Run, tmp_path: Path) -> None:
    path = write_handout(done, tmp_path / "run.html")
    assert path.stat().st_size < MOST_BYTES
    (inside,) = facts(path)["runs"]
    assert "custom" in inside["facts"]  # the cluster
    assert inside["title"] == "ssp"
    assert inside["notes"] == []
    assert {"val_accuracy", "train_loss", "idle", "staleness"} <= {chart["key"] for chart in inside["charts"]}


def test_the_command_writes_it(done: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = done.save(tmp_path / "run")
    assert main(["export", str(folder), "--html", str(tmp_path / "run.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "run.html")
    assert facts(tmp_path / "run.html")["runs"][0]["film"]["about"]["label"] == "ssp"


def test_of_a_long_run_it_has_the_beginning_and_says_so(
    done: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(films, "MOST_SPANS", 300)
    (inside,) = facts(write_handout(done, tmp_path / "run.html"))["runs"]
    assert len(inside["notes"]) == 1
    assert inside["film"]["end_s"] == inside["film"]["whole_s"] < done.log.rows()["time_s"][-1]


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_it_opens_alone_and_rewinds(
    done: Run, tmp_path: Path, chromium: Any, screenshots: Path, scheme: str
) -> None:
    path = write_handout([done, done], tmp_path / "run.html", ["the first", "the second"])
    context = chromium.new_context(viewport={"width": 1366, "height": 768}, color_scheme=scheme)
    web, wrong, asked = seldom_asking(context.new_page()), [], []
    web.on("pageerror", lambda error: wrong.append(str(error)))
    web.on("request", lambda request: asked.append(request.url))
    web.goto(path.as_uri())
    web.wait_for_selector("#psbench-place[data-state=shown]")
    web.wait_for_function("() => document.querySelectorAll('svg.marks').length > 6")
    web.click(".psb-first-wait")
    assert "it is 4 steps ahead of the slowest, one more than its bound of 3 allows" in web.text_content(
        ".psb-why"
    )
    web.wait_for_timeout(300)
    web.screenshot(path=screenshots / f"handout-{scheme}.png")
    before = float(web.get_attribute(".psb-stage", "data-now"))
    web.click(".psb-play")
    web.wait_for_function("(t) => Number(document.querySelector('.psb-stage').dataset.now) > t", arg=before)
    web.select_option(".psb-which", label="the second")
    web.wait_for_function("() => document.querySelectorAll('svg.marks').length > 6")
    assert web.locator("h1").text_content() == "the second"
    assert web.locator(".psb-stage").count() == 1
    assert wrong == []
    assert asked == [path.as_uri()]
    context.close()
