"""`psbench sweep`: one experiment with every combination of some values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from psbench.cli.app import (
    FAILED,
    INTERRUPTED,
    TERMINATED,
    app,
    check_scheduler,
    put,
    read_settings,
    say,
    show,
)
from psbench.cli.execution import verdict
from psbench.cli.options import AsJson, Processes, Settings
from psbench.cli.starting import starting
from psbench.cli.stopping import terminable

if TYPE_CHECKING:
    from psbench.runs.sweeps.sweep import Sweep


@app.command("sweep")
def sweep_command(
    spec: Annotated[
        Path | None,
        typer.Argument(
            metavar="SPEC.yaml",
            help="A specification that may have two more fields: sweep, a mapping of paths to lists of "
            "values, and seeds.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="PATH=VALUES",
            help="A list of values to try, written as YAML; may be repeated. For example "
            "strategy=[bsp, asp], optimizer.lr=[0.05, 0.1].",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Seeds of each setting; by default those of the specification, or 1."),
    ] = None,
    settings: Settings = None,
    processes: Processes = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A running Dask scheduler, whose workers execute the runs."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Save every run here, and the table as sweep.csv; the same command resumes.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Parameter whose best settings are compared; by default the strategy."
        ),
    ] = None,
    value: Annotated[
        str, typer.Option(metavar="RESULT", help="Result that determines the best setting.")
    ] = "val_accuracy",
    as_json: AsJson = False,
) -> int:
    """Run an experiment with every combination of some values, on all cores, and print one table.

    Ctrl-C and SIGTERM stop and keep the runs that are done. A failed run does not stop the others.

    \b
    Examples:
      psbench sweep --grid 'strategy=[bsp, asp]' --grid 'optimizer.lr=[0.05, 0.1]' --seeds 3
      psbench sweep sweep.yaml --out runs/sweep --by strategy --value time_to_target_s
      psbench sweep sweep.yaml --scheduler tcp://10.0.0.1:8786 --json
    """  # noqa: D301
    check_scheduler(scheduler)
    with starting("psbench: reading the specification"):
        from psbench.cli.sweeping import check_choice, read_sweep, swept

        experiment, grids, chosen = read_sweep(spec, read_settings(settings), grid, seeds)
        best_by = check_choice(experiment, grids, by, value)
    options: dict[str, Any] = {"seeds": chosen, "folder": out}
    with terminable() as came:
        found = swept(experiment, grids, processes=processes, scheduler=scheduler, **options)
    show(found, as_json)
    if not as_json:
        _print_best(found, best_by, value)
    if out is not None:
        from psbench.results.export import write_table

        say(f"saved in {out}; the table is {write_table(found.frame(), out / 'sweep.csv')}")
    if found.interrupted:
        return verdict([], TERMINATED if came else INTERRUPTED)
    if bad := sum(outcome.status in ("failed", "diverged") for outcome in found.outcomes):
        say(f"error: {bad} of {len(found.outcomes)} runs failed or diverged")
    return FAILED if bad else 0


def _print_best(found: Sweep, by: str | None, value: str) -> None:
    """Print the comparison of the best settings, if the sweep has a choice of settings."""
    if by is None or len(found.parameters) < 2 or found.interrupted or not found.runs:
        return
    put(f"\nthe best setting of each {by} by {value}:")
    put(found.best(by, value).to_string(index=False, na_rep="–"))
    put("")
    show(found.comparison(by, value), as_json=False)
