"""`psbench export`: conversion of a saved run for other programs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from psbench.cli.app import app, put
from psbench.errors import ParameterError, SpecError, UnknownName


@app.command("export")
def export_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A saved run.")],
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="A table of the run as CSV.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="A table of the run as Parquet.")
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", metavar="DIR", help="Curves for TensorBoard; virtual or real time."),
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option("--perfetto", metavar="FILE", help="A trace for Perfetto or Chrome: .json or .json.gz."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="One page with the timeline and charts; needs psbench[lab]."
        ),
    ] = None,
    table: Annotated[
        str,
        typer.Option(
            "--table",
            metavar="TABLE",
            help="Which table: curves, training, events, contributions, trained, utilisation, energy.",
        ),
    ] = "curves",
) -> None:
    """Export a saved run: tables as CSV or Parquet, scalars for TensorBoard, a trace, or a page.

    \b
    Examples:
      psbench export runs/first --csv first.csv
      psbench export runs/first --table events --parquet events.parquet
      psbench export runs/first --tensorboard tensorboard/first
      psbench export runs/first --perfetto first.json
      psbench export runs/first --html first.html
    """  # noqa: D301
    from psbench.results.frames import TABLES
    from psbench.results.run import Run

    if not any((csv, parquet, tensorboard, perfetto, html)):
        raise ParameterError(
            "export: nothing to write; give --csv FILE, --parquet FILE, --tensorboard DIR, --perfetto FILE "
            "or --html FILE"
        )
    if table not in TABLES:
        raise UnknownName("table of a run", table, TABLES)
    for path, suffix in ((csv, ".csv"), (parquet, ".parquet"), (html, ".html")):
        if path is not None and path.suffix != suffix:
            raise ParameterError(f"export: {path}: the name must end in {suffix}")
    if html is not None and find_spec("anywidget") is None:
        raise SpecError("export: a page needs anywidget; install with: pip install 'psbench[lab]'")
    run = Run.load(folder)
    for path in filter(None, (csv, parquet)):
        put(run.export(path, table))
    if tensorboard is not None:
        put(run.tensorboard(tensorboard))
    if perfetto is not None:
        put(run.perfetto(perfetto))
    if html is not None:
        from psbench_widgets.handout import write_handout

        put(write_handout(run, html))
