"""The static picture of a panel in a saved notebook."""

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
    sent = lab.saved_output["data"]
    lab.close()
    panel, empty, saved = shown.outputs
    assert "application/vnd.jupyter.widget-view+json" in panel["data"]
    assert "Run this cell again" in empty["data"]["text/plain"]
    assert (saved["update"], saved["transient"]) == (True, empty["transient"])
    assert saved["data"]["text/plain"].splitlines()[:2] == [
        "Run 1: ssp",
        "Run this cell again for the panel.",
    ]
    assert sent["text/plain"] == saved["data"]["text/plain"]  # to a page that was loaded anew
    assert b64decode(sent["image/png"]) == saved["data"]["image/png"]
    picture = Image.open(BytesIO(saved["data"]["image/png"]))
    assert picture.width > 600
    assert len(picture.getcolors() or ()) > 5


def test_a_run_that_only_takes_time_has_a_picture_too(shown: CapturingDisplayPublisher) -> None:
    lab = Lab(Experiment(strategy="ssp", timing_only=True, stop={"updates": 40}), pace="fast")
    lab._ipython_display_()
    lab.run()
    assert lab.wait(60)
    saved = lab.saved_output["data"]
    lab.close()
    assert saved["text/plain"].startswith("Run 1: ssp")
    assert "- Timeline: spans of computing" in saved["text/plain"]
