"""What a notebook keeps of a panel for readers without a kernel."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from io import BytesIO

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image

from psbench.experiment import Experiment
from psbench_widgets import Lab


@pytest.fixture
def shown() -> Iterator[CapturingDisplayPublisher]:
    shell = InteractiveShell.instance()
    before, shell.display_pub = shell.display_pub, CapturingDisplayPublisher()
    yield shell.display_pub
    shell.display_pub = before
    InteractiveShell.clear_instance()


def test_a_notebook_keeps_a_picture_of_the_last_run(shown: CapturingDisplayPublisher) -> None:
    lab = Lab(
        Experiment(strategy="ssp", model={"name": "mlp", "hidden": [2]}, stop={"epochs": 1}), pace="fast"
    )
    lab._ipython_display_()
    lab.run()
    assert lab.wait(60)
    told = lab.kept["data"]
    lab.close()
    panel, empty, kept = shown.outputs
    assert "application/vnd.jupyter.widget-view+json" in panel["data"]
    assert "Run this cell again" in empty["data"]["text/plain"]
    assert (kept["update"], kept["transient"]) == (True, empty["transient"])
    assert kept["data"]["text/plain"].splitlines()[:2] == ["Run 1: ssp", "Run this cell again for the panel."]
    assert told["text/plain"] == kept["data"]["text/plain"]  # to a page that was loaded anew
    assert b64decode(told["image/png"]) == kept["data"]["image/png"]
    picture = Image.open(BytesIO(kept["data"]["image/png"]))
    assert picture.width > 600
    assert len(picture.getcolors() or ()) > 5


def test_a_run_that_only_takes_time_has_a_picture_too(shown: CapturingDisplayPublisher) -> None:
    lab = Lab(Experiment(strategy="ssp", timing_only=True, stop={"updates": 40}), pace="fast")
    lab._ipython_display_()
    lab.run()
    assert lab.wait(60)
    kept = lab.kept["data"]
    lab.close()
    assert kept["text/plain"].startswith("Run 1: ssp")
    assert "- Timeline: spans of computing" in kept["text/plain"]
