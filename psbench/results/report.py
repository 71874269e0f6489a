"""One self-contained HTML file about a run or a comparison; it opens with no internet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from psbench.errors import ParameterError
from psbench.results.comparison import Comparison, comparison_of
from psbench.results.page import write_page
from psbench.results.run import Run


def write_report(path: str | Path, what: Comparison | Run | Sequence[Run]) -> Path:
    """Write a report and return its path.

    Parameters
    ----------
    path : path
        The HTML file; it is written whole or not at all.
    what : Comparison, Run, or sequence of Run

    Raises
    ------
    SpecError
        If the file cannot be written there.
    ParameterError
        If there is no run to report.
    """
    if isinstance(what, Comparison):
        return write_page(Path(path), what)
    runs = list(what) if isinstance(what, Sequence) else [what]
    if not runs:
        raise ParameterError("report: there is no run to report")
    return write_page(Path(path), comparison_of(runs))
