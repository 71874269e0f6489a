"""`psbench report` and `psbench replay`: runs that were saved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psbench.cli.app import app, put


@app.command("report")
def report_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Saved runs, or folders of saved runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The HTML file; by default report.html in the first folder."),
    ] = None,
) -> None:
    """Write one HTML file about saved runs; it opens without internet.

    \b
    Examples:
      psbench report runs/first
      psbench report runs/bsp runs/asp --out bsp-asp.html
    """  # noqa: D301
    from psbench.results.report import write_report
    from psbench.results.run import load_runs

    runs = [run for folder in folders for run in load_runs(folder)]
    put(write_report(out or folders[0] / "report.html", runs))


@app.command("replay")
def replay_command(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A saved run.")]) -> None:
    """Repeat every decision of a saved run, and report the first difference.

    \b
    Example:
      psbench replay runs/first
    """  # noqa: D301
    from psbench.runs.replaying import replay

    rows = replay(folder)
    put(f"{rows} rows compared: every decision is the same")
