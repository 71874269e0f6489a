"""Recorded runs as one HTML file, with the scrubber and the charts: opens with no internet and no kernel."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psbench import charts
from psbench.errors import ParameterError
from psbench.percents import spaced
from psbench.results.run import Run
from psbench.system.files import write_text
from psbench_widgets.assets import STATIC, themes
from psbench_widgets.own_objects import titles_of
from psbench_widgets.playback import film
from psbench_widgets.static_picture import as_columns, static, titles

#: what the page may load: nothing; Vega makes functions of its expressions, hence 'unsafe-eval'
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'"
#: charts of whole runs that the page's own timeline stands for
_LEFT_OUT = ("timeline", "switch", "servers", "server_load")


def write_handout(runs: Run | Sequence[Run], path: str | Path, labels: Sequence[str] | None = None) -> Path:
    """Write runs to one HTML file, less than 5 MB for one run, and return its path.

    The page has the timeline with its scrubber, the state of workers and server at any moment, the reason of
    every wait, and the run's charts; of several runs it shows the one that is chosen. Of a run that is too
    long the beginning is in the file, and the page says so; the charts are always of the whole run.

    Parameters
    ----------
    runs : Run or sequence of Run
    path : path
    labels : sequence of str, optional
        What the runs are called; the titles of their experiments if not given.

    Raises
    ------
    ParameterError
        If there is no run.
    """
    path, runs = Path(path), [runs] if isinstance(runs, Run) else list(runs)
    if not runs:
        raise ParameterError("export: no runs given")
    labels = labels or [run.experiment.title for run in runs]
    pages = {"themes": themes(), "runs": [_facts(*each) for each in zip(runs, labels, strict=True)]}
    facts = json.dumps(pages, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    title = html.escape("psbench: " + ", ".join(labels))
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        '<div id="psbench-place"></div>\n'
        f'<script type="application/json" id="psbench-handout">{facts}</script>\n'
        f'<script type="module">{_script()}</script>\n</body>\n</html>\n'
    )
    return write_text(path, page)


#: the variables that JupyterLab gives where there is JupyterLab
_STYLE = """
body { margin: 0; background: #fff; }
@media (prefers-color-scheme: dark) {
  :root {
    --jp-ui-font-color1: #fff; --jp-ui-font-color2: rgba(255, 255, 255, 0.7); --jp-layout-color0: #111;
    --jp-layout-color1: #212121; --jp-layout-color2: #424242; --jp-border-color2: #616161;
    --jp-brand-color1: #42a5f5; --jp-warn-color0: #ffb74d;
  }
  body { background: #111; }
}
"""


def _script() -> str:
    """Return the script escaped so that no text in it ends the script element."""
    code = (STATIC / "engine.js").read_text(encoding="utf-8")
    return re.sub(r"<(?=/script|!--)", r"\\x3c", code, flags=re.IGNORECASE)


def _facts(run: Run, label: str) -> dict[str, Any]:
    experiment = run.experiment
    picture = film(experiment, run.log, label, "run", at_s=0.0)
    shown, whole = picture["end_s"], picture["whole_s"]
    names = ", ".join(titles_of(experiment, "data", "model", "cluster", "sharding"))
    ended = spaced(run.meta.get("reason", ""))
    notes = [f"This file shows the first {shown:.4g} s of {whole:.4g} s; the charts cover the whole run."]
    return {
        "label": label,
        "title": label.replace("_", " "),
        "facts": f"{names}; seed {experiment.seed}; {experiment.backend}; {ended}",
        "notes": notes if shown < whole else [],
        # beyond its end nothing can be asked for
        "film": picture | {"whole_s": shown},
        "charts": _charts(run, label),
    }


def _charts(run: Run, label: str) -> list[dict[str, Any]]:
    figures = charts.curves([run], [label])
    figures += [each for each in charts.worker_figures(run) if each.name not in _LEFT_OUT]
    return [_chart(figure) for figure in (*figures, *charts.label_figures(run))]


def _chart(figure: charts.Figure) -> dict[str, Any]:
    spec, rows = static(figure)
    title, note = titles(figure)
    return {"key": figure.name, "title": title, "note": note, "spec": spec, "columns": as_columns(rows)}
