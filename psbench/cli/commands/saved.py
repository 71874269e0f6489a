"""`psbench report`, `replay`, `why` and `optimal`: runs that were saved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psbench.cli.app import app, check_there, put, say, show
from psbench.cli.options import AsJson, Processes
from psbench.system.files import check_new_file, check_writable


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
    check_there(*folders)
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


@app.command("why")
def why_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The saved run to explain.")],
    against: Annotated[
        Path, typer.Option(metavar="RUN2", help="The saved run to compare it with: same data, same model.")
    ],
    causes: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Causes: staleness, rate, momentum, samples, codec, amount; by default all that apply.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; missing runs are made.")] = 5,
    value: Annotated[
        str, typer.Option(metavar="NAME", help="Value of the last evaluation to explain.")
    ] = "val_loss",
    processes: Processes = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save all runs that the answer rests on, and a report."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain why one run ends worse than another.

    The first run is trained again on its recorded schedule, with the staleness, the rate, ... of the second.
    Explain the run with the finer schedule, such as ASP against BSP.

    \b
    Examples:
      psbench why runs/asp --against runs/bsp
      psbench why runs/asp --against runs/bsp --causes staleness,rate --seeds 10 --out runs/why
    """  # noqa: D301
    check_there(folder, against)
    if out is not None:
        check_writable(out)
    from psbench.causes import why

    names = None if causes is None else [name.strip() for name in causes.split(",")]
    answer = why(folder, against, names, seeds=seeds, value=value, processes=processes, folder=out)
    show(answer, as_json)
    if out is not None:
        answer.save(out / "recomputed")
        say(f"saved in {out}; open {answer.report(out / 'why.html')}")


@app.command("optimal")
def optimal_command(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Saved runs of one problem, or folders of saved runs."),
    ],
    like_data: Annotated[
        bool | None,
        typer.Option(
            "--like-data/--unlike-data",
            help="Whether all workers draw from one distribution; by default as measured.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report that begins with this answer.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare saved runs with the worst-case optimal time of their cluster.

    Runs with metrics: [gradient_norm_sq] are compared by their gradient norms, others by their losses.

    \b
    Examples:
      psbench optimal runs/asp runs/bsp
      psbench optimal runs/asp runs/bsp --unlike-data --out optimal.html
    """  # noqa: D301
    check_there(*folders)
    if out is not None:
        check_new_file(out)
    from psbench.optimal import optimal_time
    from psbench.results.run import load_runs

    answer = optimal_time([run for each in folders for run in load_runs(each)], like_data=like_data)
    show(answer, as_json)
    if out is not None:
        put(answer.report(out))
