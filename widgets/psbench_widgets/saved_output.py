"""The picture of the last run that a notebook saves below a panel, for readers without a kernel.

A saved notebook stores only the identifier of a panel's model, which ends with its kernel. So the cell has a
second output, a picture, which is updated after every run. The page hides it while the panel is displayed
(style.css). JupyterLab updates outputs only until its page is reloaded; afterwards the panel's page updates
the picture (js/saved_output.js).
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import altair as alt

from psbench import charts
from psbench.results.run import Run

logger = logging.getLogger(__name__)

_AGAIN = "Run this cell again for the panel."


class SavedOutput:
    """The second output of a cell that shows a panel; created when a notebook displays the panel.

    Parameters
    ----------
    send : callable
        Called with the data and metadata of each new picture, for the page.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._output: Any = None
        self._shown: Run | None = None

    def show(self) -> None:
        """Create the output, below the panel."""
        from IPython import display as ipython

        display: Any = ipython.display

        words = f"psbench's panel, without a run. {_AGAIN}"
        self._output = display({"text/plain": words}, raw=True, display_id=True)

    def update(self, run: Run, label: str) -> None:
        """Replace the picture by the run's curve and timeline; log an error if they cannot be drawn."""
        if self._output is None or run is self._shown:
            return
        self._shown = run
        # a timing-only run has no curve
        curves = [] if run.experiment.timing_only else [_curve_of(run)]
        try:
            title = alt.TitleParams(label, subtitle=[_AGAIN], anchor="start")
            bundle, options = charts.run_chart(run, *curves, "timeline").properties(title=title).still()
        except Exception:
            logger.exception("cannot draw the picture of %s for the saved notebook", label)
            return
        self._output.update(bundle, raw=True, metadata=options)
        picture = b64encode(bundle["image/png"]).decode()
        self._send({"data": bundle | {"image/png": picture}, "metadata": options})


def _curve_of(run: Run) -> str:
    return "val_accuracy" if "val_accuracy" in run.metrics else "val_loss"
