"""`psbench compare`, `psbench search` and `psbench demo`: several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from psbench.cli.app import (
    INTERRUPTED,
    TERMINATED,
    app,
    check_there,
    read_experiment,
    read_settings,
    say,
    show,
)
from psbench.cli.execution import folder_of, run_all, verdict
from psbench.cli.options import AsJson, Overwrite, Processes, Settings
from psbench.cli.starting import starting
from psbench.cli.stopping import terminable
from psbench.errors import ParameterError, UnknownName


@app.command("compare")
def compare_command(
    specs: Annotated[
        list[Path], typer.Argument(metavar="SPEC.yaml...", help="The specifications to compare.")
    ],
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of seeds per experiment, starting from its own seed; intervals need at least two.",
        ),
    ] = 3,
    settings: Settings = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Target for time to target: an accuracy such as 0.95, or 'f1 "
            ">= 0.9'; by default the best value that all runs reach."
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="STRATEGY", help="Baseline of speed-ups; by default All-Reduce or BSP."),
    ] = None,
    test: Annotated[
        bool,
        typer.Option(
            "--test", help="Test which differences are significant: paired over seeds, Holm-corrected."
        ),
    ] = False,
    equal: Annotated[
        str | None,
        typer.Option(
            metavar="bytes|time|samples|updates", help="Cut all runs at an equal amount of this quantity."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save every run here, and report.html.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> int:
    """Run experiments over several seeds and print one table.

    \b
    Examples:
      psbench compare bsp.yaml asp.yaml ssp.yaml --seeds 5 --out runs/comparison
      psbench compare bsp.yaml asp.yaml --set cluster=c1 --target 0.95 --json
    """  # noqa: D301
    check_there(*specs)
    from psbench.cli.batch import check_all, named
    from psbench.core.target import target_of
    from psbench.results.equal import check_equal
    from psbench.runs.comparing import compare

    if test and seeds < 2:
        raise ParameterError("compare: --test pairs runs by their seed; give --seeds 2 or more")
    values = read_settings(settings)
    experiments = named(specs, [read_experiment(spec, values) for spec in specs])
    if equal is not None:
        check_equal(experiments, equal)
    if baseline is not None and baseline not in (titles := [one.title for one in experiments]):
        raise UnknownName("baseline", baseline, titles)
    if (aim := target_of(target)) is not None:
        for one in experiments:
            one.check_target(aim, "--target")
    planned = [one.but(seed=one.seed + extra) for one in experiments for extra in range(seeds)]
    check_all(experiments, [folder_of(one, out) for one in planned if out is not None], overwrite=overwrite)
    named_runs = [(f"{one.title} seed {one.seed}", one) for one in planned]
    done, interrupted = run_all(named_runs, out, overwrite=overwrite)
    # an interrupted comparison may have no two seeds of each, nor a run of the baseline
    if interrupted and baseline not in [run.experiment.title for run in done]:
        baseline = None
    comparison = compare(done, target=target, baseline=baseline, test=test and not interrupted, equal=equal)
    show(comparison, as_json)
    if out is not None:
        say(f"saved in {out}; open {comparison.report(out / 'report.html')}")
    return verdict(done, interrupted)


@app.command("search")
def search_command(
    spec: Annotated[
        Path | None,
        typer.Argument(metavar="SPEC.yaml", help="A strategy that switches; without one, sync_switch."),
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, metavar="R", help="Number of runs per share, each with its own seed.")
    ] = 5,
    halvings: Annotated[
        int, typer.Option(min=0, metavar="M", help="Number of times that the interval of shares is halved.")
    ] = 4,
    tolerance: Annotated[
        float, typer.Option(min=0, metavar="B", help="Acceptable loss of accuracy, or of the metric.")
    ] = 0.01,
    metric: Annotated[
        str, typer.Option(metavar="NAME", help="Metric that must not get worse: accuracy, loss, or your own.")
    ] = "accuracy",
    settings: Settings = None,
    processes: Processes = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save every run here; the same command resumes."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Find the smallest share of the epochs under the first strategy that costs no accuracy.

    Bisection over runs, as in Sync-Switch: R runs without a switch, then R of each of M shares.
    Ctrl-C and SIGTERM stop and keep the shares that are complete.

    \b
    Examples:
      psbench search --runs 3 --halvings 4 --set stop.epochs=10
      psbench search switch.yaml --tolerance 0.005 --out runs/search --json
      psbench search switch.yaml --metric loss --tolerance 0.02
    """  # noqa: D301
    values = read_settings(settings)
    values = values if spec is not None or "strategy" in values else {"strategy": "sync_switch"} | values
    experiment = read_experiment(spec, values)
    with starting("psbench: loading torch and the data"):
        from psbench.runs.sweeps.search import find_fraction
        from psbench.system.files import check_writable

        if out is not None:
            check_writable(out)
    sizes: dict[str, Any] = {"runs": runs, "halvings": halvings, "tolerance": tolerance, "metric": metric}
    with terminable() as came:
        found = find_fraction(experiment, **sizes, folder=out, processes=processes, progress=True)
    show(found, as_json)
    if out is not None:
        say(f"saved in {out}")
    done = [run for each in found.runs.values() for run in each]
    return verdict(done, (TERMINATED if came else INTERRUPTED) if found.interrupted else 0)


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML report.")] = Path("demo.html"),
    with_live: Annotated[
        bool, typer.Option("--live/--no-live", help="Also run on a local Dask cluster.")
    ] = True,
) -> int:
    """Compare three strategies in virtual time, run one live on Dask, and write a report."""
    from psbench.cli.demo import introduction, planned
    from psbench.runs.comparing import compare
    from psbench.system.files import check_new_file

    check_new_file(out)
    say(introduction(out))
    done, interrupted = run_all(planned(with_live))
    comparison = compare(done)
    show(comparison, as_json=False)
    say(f"open {comparison.report(out)} in a browser; it needs no internet")
    return verdict(done, interrupted)
