"""Tables and pages of predictions."""

import re
from dataclasses import replace

import numpy as np
import pytest
from widgets.direct import violations
from widgets.jupyter import FLAGS, browser_path

import psbench as ps
from psbench.twin.measures import Band, Measures
from psbench.twin.prediction_page import write_prediction
from psbench.twin.predictions import Predicted, Predictions


def test_a_band_that_begins_at_0_is_no_prediction(measured):
    """Two seeds far apart: the interval of a normal would contain negative times."""
    wide, narrow = Band.of([1.0, 2.0]), Band.of([1.0, 1.01])
    assert (wide.low, wide.is_prediction, narrow.is_prediction) == (0.0, False, True)
    found = ps.predict(measured, ["bsp", "all_reduce"], seeds=2)
    rows = [replace(found.rows[0], epoch_s=wide), replace(found.rows[1], epoch_s=narrow)]
    vague = replace(found, rows=rows)
    assert f"no prediction for {rows[0].title}: its band begins at 0" in str(vague)
    assert vague.best() == (rows[1].title, [])
    assert re.search(r"median width \d+.% of the mean", str(found))


def predicted(name, epoch, target):
    runs = [Measures(0.1, 0.01, 0.1, np.array([0]), 1, 1)]
    return Predicted(
        name, "", runs, Band(0.1, 0.1, 0.1), Band(*epoch), None if target is None else Band(*target)
    )


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_of_a_prediction_has_no_fault_that_axe_finds(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    path = browser_path()
    if path is None:
        pytest.skip("no browser found")
    rows = [predicted("bsp", (5.0, 4.9, 5.1), (20.0, 19.0, 21.0)), predicted("asp", (3.0, 2.0, 35.0), None)]
    written = write_prediction(Predictions(rows, 0.9, 5, over=""), tmp_path / "predicted.html")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        web = browser.new_context(offline=True).new_page()
        web.goto(written.as_uri())
        web.wait_for_selector("body[data-state=drawn]")
        found = violations(web, "body")
        browser.close()
    assert found == []


def test_what_misses_the_target_is_neither_the_quickest_nor_tied():
    reached = predicted("bsp", (5.0, 4.9, 5.1), (20.0, 19.0, 21.0))
    for epoch in ((3.0, 2.0, 35.0), (19.0, 18.0, 22.0)):
        missed = predicted("asp", epoch, None)
        found = Predictions([reached, missed], 0.9, 5, over="x")
        assert (found.best(), found.ties()) == (("bsp", []), [])
        assert "fastest: bsp\nnot distinguishable: none" in str(found)
        assert Predictions([missed], 0.9, 5).best() == ("asp", [])
