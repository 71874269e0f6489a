"""The commands. Each imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from psbench.experiment import Experiment
    from psbench.results.run import Run

app = typer.Typer(
    help="Run, compare and look at data-parallel training under different synchronisation strategies.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change one value of the specification, written as YAML; may be given often. "
        "For example strategy=asp, strategy.staleness_bound=5, stop={updates: 100}.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _version(wanted: bool) -> None:
    if wanted:
        import psbench

        print(psbench.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command("run")
def run_command(
    spec: Annotated[
        Path | None,
        typer.Argument(metavar="SPEC.yaml", help="The specification; without one, the defaults."),
    ] = None,
    settings: Settings = None,
    backend: Annotated[str | None, typer.Option(help="Where the run takes place: simulated or dask.")] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="A running Dask scheduler, as tcp://host:8786; needs --backend dask."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Root of every random stream.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save the run here: specification, log, summary, model."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Run one experiment and print its summary.

    Ctrl-C stops the run and keeps what it has; a second Ctrl-C aborts.

    \b
    Examples:
      psbench run experiment.yaml --out runs/first
      psbench run experiment.yaml --set strategy.staleness_bound=5 --seed 1
      psbench run --set strategy=ssp --set cluster=hermes --set stop.epochs=5 --json
      psbench run experiment.yaml --backend dask --scheduler tcp://10.0.0.1:8786
    """  # noqa: D301
    from psbench.cli.summary_text import summary_text

    values = _settings(settings) | _given(backend=backend, scheduler=scheduler, seed=seed)
    done, interrupted = _run(_experiment(spec, values), out)
    summary = done.summary()
    print(_as_json(summary) if as_json else summary_text(summary))
    if out is not None:
        _say(f"saved in {out}")
    return _verdict([done], interrupted)


@app.command("resume")
def resume_command(
    source: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a run, or one of its checkpoints.")
    ],
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save the run here, rather than where it comes from.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Go on with a run from its last checkpoint: one that was stopped or killed, or is to be longer.

    Checkpoints are written at switches and, with checkpoint_every, every so many epochs. What may be set to
    another value is stop, backend, scheduler, evaluate_every, checkpoint_every, threads and name.

    \b
    Examples:
      psbench run experiment.yaml --set checkpoint_every=1 --out runs/first
      psbench resume runs/first
      psbench resume runs/first --set stop.epochs=40
      psbench resume runs/first/checkpoints/epoch-5.npz --out runs/second
    """  # noqa: D301
    from psbench.checkpoints.chain import find, home_of, resume_spec
    from psbench.cli.summary_text import summary_text
    from psbench.experiment import Experiment

    path = find(source)
    folder = home_of(path) if out is None else out
    experiment = Experiment.from_spec(resume_spec(path), _settings(settings), where=str(path))
    _say(f"going on from {path}")
    done, interrupted = _run(experiment, folder, start=path)
    summary = done.summary()
    print(_as_json(summary) if as_json else summary_text(summary))
    _say(f"saved in {folder}")
    return _verdict([done], interrupted)


@app.command("compare")
def compare_command(
    specs: Annotated[
        list[Path], typer.Argument(metavar="SPEC.yaml...", help="The specifications to compare.")
    ],
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds of each, from its own on; intervals need at least two.")
    ] = 3,
    settings: Settings = None,
    target: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Validation accuracy for the time to target; else the best all reach."
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="STRATEGY", help="What speed-ups refer to; else All-Reduce or BSP.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save every run here, and report.html.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Run experiments over several seeds and print one table.

    \b
    Examples:
      psbench compare bsp.yaml asp.yaml ssp.yaml --seeds 5 --out runs/comparison
      psbench compare bsp.yaml asp.yaml --set cluster=c1 --target 0.95 --json
    """  # noqa: D301
    from psbench.cli.batch import check_all, named
    from psbench.results.comparison import compare

    values = _settings(settings)
    experiments = named(specs, [_experiment(spec, values) for spec in specs])
    check_all(experiments, out)
    done: list[Run] = []
    interrupted = False
    planned = [one.but(seed=one.seed + extra) for one in experiments for extra in range(seeds)]
    for number, experiment in enumerate(planned, 1):
        folder = None if out is None else out / f"{experiment.title}-seed{experiment.seed}"
        label = f"[{number}/{len(planned)}] {experiment.title} seed {experiment.seed}"
        finished, interrupted = _run(experiment, folder, label)
        done.append(finished)
        if interrupted:
            break
    comparison = compare(done, target=target, baseline=baseline)
    print(
        _as_json(comparison.to_dict()) if as_json else comparison.text(_width()), end="\n" if as_json else ""
    )
    if out is not None:
        _say(f"saved in {out}; open {comparison.report(out / 'report.html')}")
    return _verdict(done, interrupted)


@app.command("search")
def search_command(
    spec: Annotated[
        Path | None,
        typer.Argument(metavar="SPEC.yaml", help="A strategy that switches; without one, sync_switch."),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, metavar="R", help="Runs of each share, a seed each.")] = 5,
    halvings: Annotated[int, typer.Option(min=0, metavar="M", help="Shares to try, each halving.")] = 4,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1, metavar="B", help="Validation accuracy that may be lost.")
    ] = 0.01,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Save every run here.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Find the smallest share of the epochs under the first strategy that costs no accuracy.

    Bisection over runs, as in Sync-Switch: R runs without a switch, then M shares R times.

    \b
    Examples:
      psbench search --runs 3 --halvings 4 --set stop.epochs=10
      psbench search switch.yaml --tolerance 0.005 --out runs/search --json
    """  # noqa: D301
    from psbench.cli.batch import searched

    values = _settings(settings)
    values = values if spec is not None or "strategy" in values else {"strategy": "sync_switch"} | values
    found, done, interrupted = searched(
        _experiment(spec, values), _run, runs=runs, halvings=halvings, tolerance=tolerance, folder=out
    )
    if found is not None:
        print(_as_json(found.to_dict()) if as_json else found.text(_width()), end="\n" if as_json else "")
    if out is not None:
        _say(f"saved in {out}")
    return _verdict(done, interrupted)


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML report.")] = Path("demo.html"),
    with_live: Annotated[
        bool, typer.Option("--live/--no-live", help="Also run on a local Dask cluster.")
    ] = True,
    debug: Debug = False,
) -> int:
    """Compare three strategies in virtual time, run one live on Dask, and write a report."""
    from psbench.cli.demo import introduction, planned
    from psbench.results.comparison import compare
    from psbench.system.files import check_writable

    check_writable(out.parent)
    _say(introduction(out))
    done: list[Run] = []
    for label, experiment in planned(with_live):
        finished, interrupted = _run(experiment, None, label)
        done.append(finished)
        if interrupted:
            break
    comparison = compare(done)
    print(comparison.text(_width()), end="")
    _say(f"open {comparison.report(out)} in a browser; it needs no internet")
    return _verdict(done, interrupted)


@app.command("generate")
def generate_command(
    layout: Annotated[
        str, typer.Argument(metavar="LAYOUT", help="Whose columns: higgs or year_prediction_msd.")
    ],
    rows: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many rows; 1_000_000 may be written so.")
    ],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The CSV file; else LAYOUT.csv.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Root of every random stream.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    debug: Debug = False,
) -> None:
    """Write a table of any size with the columns of HIGGS or YearPredictionMSD and made-up numbers.

    A row takes about 300 bytes (higgs) or 1 kB, whatever the length of the file. There is something to be
    learned from the numbers, but no physics and no music.

    \b
    Examples:
      psbench generate higgs --rows 1_000_000 --out higgs.csv
      psbench run --set 'data={name: csv, path: higgs.csv, layout: higgs}' --set model=logistic
    """  # noqa: D301
    from psbench.data import generate

    path = generate(layout, out or Path(f"{layout}.csv"), rows, seed=seed, overwrite=force)
    _say(f"wrote {rows:,} rows, {path.stat().st_size / 1e6:.4g} MB")
    print(path)


@app.command("list")
def list_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="strategies, parts, sharding, rules, datasets, models, clusters or optimizers.",
        ),
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List what there is, with parameters, defaults, units, ranges and sources.

    \b
    Examples:
      psbench list strategies
      psbench list clusters --json
    """  # noqa: D301
    from psbench.cli.catalogue import entries, print_entries

    found = entries(kind)
    if as_json:
        print(_as_json(found))
    else:
        print_entries(found, with_domain=kind == "parts")


@app.command("report")
def report_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Saved runs, or folders of saved runs.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The HTML file; else report.html in the first folder.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write one HTML file about saved runs; it opens with no internet.

    \b
    Examples:
      psbench report runs/first
      psbench report runs/bsp runs/asp --out bsp-asp.html
    """  # noqa: D301
    from psbench.cli.batch import load_all
    from psbench.results.report import write_report

    print(write_report(out or folders[0] / "report.html", load_all(folders)))


@app.command("replay")
def replay_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A saved run.")], debug: Debug = False
) -> None:
    """Take every decision of a saved run again, and tell the first that differs.

    \b
    Example:
      psbench replay runs/first
    """  # noqa: D301
    from psbench.backends.replay import replay
    from psbench.results.run import Run

    rows = replay(Run.load(folder))
    print(f"{rows} rows compared: every decision is the same")


@app.command("lab")
def lab_command(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Folder to open; else the notebooks.")
    ] = None,
    debug: Debug = False,
) -> int:
    """Start JupyterLab on the notebooks."""
    from psbench.cli.lab import start_lab

    return start_lab(folder)


def _run(
    experiment: Experiment, folder: Path | None, label: str = "", start: Path | None = None
) -> tuple[Run, bool]:
    """Run with progress on standard error; return the run and whether it was interrupted."""
    from psbench.backends.control import Control
    from psbench.cli.monitor import Monitor
    from psbench.errors import Cancelled
    from psbench.runs import run
    from psbench.system.files import check_writable
    from psbench.training.workload import Workload

    if folder is not None:
        check_writable(folder)
    control = Control()
    try:
        workload = Workload.build(experiment)
        with Monitor(label or experiment.title, experiment, workload.facts(), control) as monitor:
            done = run(
                experiment, observer=monitor, control=control, folder=folder, workload=workload, start=start
            )
    except KeyboardInterrupt:  # before the run began, or the second one
        raise Cancelled("interrupted; the run is not kept") from None
    return done, control.stopping


def _width() -> int | None:
    """Leave the width to the terminal, or where there is none take one that cuts no table."""
    return None if sys.stdout.isatty() else 200


def _verdict(done: list[Run], interrupted: bool) -> int:
    from psbench.cli import FAILED, INTERRUPTED

    if interrupted:
        _say("stopped by Ctrl-C; what was computed is kept")
        return INTERRUPTED
    diverged = [run for run in done if run.meta["status"] == "diverged"]
    for run in diverged:
        _say(f"error: {run.meta['name']}, seed {run.meta['seed']}, diverged: {run.meta['reason']}")
    return FAILED if diverged else 0


def _experiment(spec: Path | None, values: dict[str, Any]) -> Experiment:
    from psbench.experiment import Experiment

    return Experiment.from_spec({}, values) if spec is None else Experiment.from_yaml(spec, values)


def _settings(texts: list[str] | None) -> dict[str, Any]:
    from psbench.specfile import parse_setting

    return dict(parse_setting(text) for text in texts or ())


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _as_json(content: Any) -> str:
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
