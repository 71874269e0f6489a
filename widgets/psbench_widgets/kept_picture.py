"""The picture of the last run that a notebook keeps below a panel, for readers who have no kernel.

A saved notebook has of a panel only the number of a model that ended with its kernel. So the cell has a
second output, a picture, which is replaced when a run is over. A page hides it where the panel itself is
there (style.css). JupyterLab knows outputs that are replaced until its page is loaded anew; the panel's page
then puts the picture there itself (js/kept.js).
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


class KeptPicture:
    """The second output of a cell that shows a panel; there is none until it is shown in a notebook.

    Parameters
    ----------
    tell : callable
        Called with data and metadata of each new picture, for the page.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._output: Any = None
        self._shown: Run | None = None

    def show(self) -> None:
        """Put the output below what the cell shows."""
        from IPython import display as ipython

        display: Any = ipython.display

        words = f"psbench's panel, without a run. {_AGAIN}"
        self._output = display({"text/plain": words}, raw=True, display_id=True)

    def update(self, run: Run, label: str) -> None:
        """Show the curve and the timeline of a run in it; a picture that cannot be drawn is none."""
        if self._output is None or run is self._shown:
            return
        self._shown = run
        # a run that only takes time has no curve
        curves = [] if run.experiment.timing_only else [_curve_of(run)]
        try:
            title = alt.TitleParams(label, subtitle=[_AGAIN], anchor="start")
            bundle, options = charts.run_chart(run, *curves, "timeline").properties(title=title).still()
        except Exception:
            logger.exception("the picture of %s that the notebook is to keep could not be drawn", label)
            return
        self._output.update(bundle, raw=True, metadata=options)
        picture = b64encode(bundle["image/png"]).decode()
        self._tell({"data": bundle | {"image/png": picture}, "metadata": options})


def _curve_of(run: Run) -> str:
    return "val_accuracy" if "val_accuracy" in run.metrics else "val_loss"
