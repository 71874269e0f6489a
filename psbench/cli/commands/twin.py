"""`psbench calibrate`, `predict`, `twin`, `diagnose`: measure machines, predict strategies, find culprits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psbench.cli.app import FAILED, app, as_json_text, check_there, put, read_live, read_settings, say
from psbench.cli.options import AsJson, Scheduler, Settings, Spec
from psbench.cli.starting import starting
from psbench.errors import ParameterError, SpecError
from psbench.specfile import parse_setting, parse_yaml


@app.command("calibrate")
def calibrate_command(
    spec: Spec = None,
    settings: Settings = None,
    scheduler: Scheduler = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="RUN", help="Fit to saved runs instead; may be repeated."),
    ] = None,
    batches: Annotated[int, typer.Option(min=20, help="Global batches of each run.")] = 60,
    links: Annotated[bool, typer.Option(help="Time messages of several sizes between workers.")] = True,
    peers: Annotated[
        bool, typer.Option(help="Run an All-Reduce too, for strategies whose workers talk to each other.")
    ] = True,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The profile file to write.")] = Path(
        "profile.yaml"
    ),
) -> int:
    """Measure machines by short live runs (BSP, ASP with half the batch, and All-Reduce, three times each).

    A cluster is fitted to them.

    Exit code 1 if the fitted cluster does not reproduce these runs within 25 %, beyond what repeats differ
    by: psbench predict refuses that profile.

    \b
    Examples:
      psbench calibrate --set cluster.workers=4 --set cluster.name=custom
      psbench calibrate experiment.yaml --scheduler tcp://10.0.0.1:8786 --out ours.yaml
      psbench calibrate --from runs/bsp --from runs/asp
    """  # noqa: D301
    if runs and (spec is not None or settings or scheduler):
        raise ParameterError("calibrate: --from uses saved runs as they are; remove SPEC, --set, --scheduler")
    check_there(*runs or ())
    experiment = None if runs else read_live(spec, settings, scheduler)
    with starting("psbench: loading torch and Dask"):
        from psbench.results.run import Run
        from psbench.system.files import check_new_file
        from psbench.twin import Calibration, calibrate

    check_new_file(out)
    if experiment is None:
        found = Calibration.of([Run.load(folder) for folder in runs or ()])
    else:
        found = calibrate(experiment, batches, with_links=links, with_peers=peers, on_step=say)
    try:
        found.to_yaml(out)
    except SpecError:
        put(found.to_yaml())  # minutes of measuring are not lost with the file
        raise
    for name, each in found.fitted.items():
        put(f"{name}: {each.value:.4g}, 90 % {each.low:.4g} to {each.high:.4g}, of {each.source}")
    for remark in found.remarks:
        put(remark)
    for unknown in found.unknown:
        put(f"not identified: {unknown}")
    if found.not_reproduced:
        say(f"wrote {out}, but psbench predict refuses it: {found.not_reproduced}")
        return FAILED
    say(f"wrote {out}; to use it: psbench predict {out} --strategy ssp --strategy local_sgd")
    return 0


@app.command("predict")
def predict_command(
    profile: Annotated[
        Path, typer.Argument(metavar="PROFILE", help="A profile written by `psbench calibrate`.")
    ],
    strategies: Annotated[
        list[str] | None,
        typer.Option("--strategy", metavar="NAME", help="A strategy by name, or as YAML; may be repeated."),
    ] = None,
    over: Annotated[
        str | None,
        typer.Option(
            metavar="PATH=V,V,...", help="Values for a curve, such as strategy.staleness_bound=0,1,2,4."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=2, help="Simulated runs per strategy.")] = 5,
    target: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Validation accuracy; rank by the time to reach it (simulates gradients)."
        ),
    ] = None,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a page (.html), or the chart with its bands (.svg, .png, .pdf)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Predict the time of strategies on measured machines, with 90 % bands over seeds.

    \b
    Examples:
      psbench predict profile.yaml --strategy bsp --strategy ssp --strategy local_sgd
      psbench predict profile.yaml --strategy ssp --over strategy.staleness_bound=0,1,2,4,8 --target 0.95
      psbench predict profile.yaml --strategy local_sgd --over strategy.local_steps=1,2,4,8,16 --out H.html
    """  # noqa: D301
    check_there(profile)
    curve = None
    if over is not None:
        path, _, texts = over.partition("=")
        if not texts:
            raise ParameterError(f"--over: expected PATH=V,V,..., got {over!r}")
        try:
            curve = path, [parse_setting(f"{path}={text}")[1] for text in texts.split(",")]
        except SpecError as error:
            raise SpecError(str(error).replace("--set", "--over", 1)) from None
    asked = [
        parse_yaml(text, f"--strategy {text}") for text in strategies or ("bsp", "asp", "ssp", "all_reduce")
    ]
    with starting("psbench: loading torch and the data"):
        from psbench.twin import check_format, predict
    if out is not None:
        check_format(out)
    values = read_settings(settings)
    found = predict(profile, asked, seeds=seeds, target=target, over=curve, settings=values)
    put(as_json_text({"rows": found.plain(), "ties": found.ties()}) if as_json else found)
    if out is not None:
        say(f"wrote {found.write(out)}")
    return 0


@app.command("twin")
def twin_command(
    spec: Annotated[
        Path | None,
        typer.Argument(
            metavar="SPEC.yaml", help="A specification with the machines; by default emulated ones."
        ),
    ] = None,
    settings: Settings = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A running Dask scheduler; by default this machine.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two live repeats of each run instead of five.")
    ] = False,
    batches: Annotated[int, typer.Option(min=20, help="Global batches of each live run.")] = 150,
    recorded: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="Fit and evaluate again the runs that --out stored."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Store the live runs, and write a report with charts."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Compare predictions with live runs: replayed, with other seeds, other strategies, more workers.

    A cluster is fitted to runs of BSP, ASP and All-Reduce.

    Exit code 1 if a replay with measured times is off by 1 % or more: then the simulator is wrong.

    \b
    Examples:
      psbench twin --quick
      psbench twin experiment.yaml --scheduler tcp://10.0.0.1:8786 --out twin
      psbench twin --from twin --json
    """  # noqa: D301
    if recorded is not None and (spec or settings or scheduler or quick):
        raise ParameterError("twin: --from evaluates stored runs; remove SPEC, --set, --scheduler, --quick")
    check_there(recorded)
    experiment = read_live(spec, settings, scheduler) if spec or settings or scheduler else None
    with starting("psbench: loading torch and Dask"):
        from psbench.system.files import check_writable, write_text
        from psbench.twin import Recorded, Sizes, record, validate, write_report
    if out is not None:
        check_writable(out)
    sizes = Sizes(batches) if quick else Sizes(batches, repeats=5, seeds=20)
    runs = record(experiment, sizes, say, out) if recorded is None else Recorded.read(recorded)
    found = validate(runs, sizes.seeds)
    put(as_json_text(found.plain()) if as_json else found)
    if out is not None:
        write_text(out / "results.json", as_json_text(found.plain()))
        say(f"wrote {write_report(found, out / 'report.html')}, and {out / 'results.json'}")
    return FAILED if any(abs(error) >= 0.01 for error in found.replays.values()) else 0


@app.command("diagnose")
def diagnose_command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="A CSV, a run's folder, or torch's JSON: one for each rank."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the trace's workers as a cluster, for psbench run."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show the waiting times between workers in a trace, and the straggler of each collective operation.

    A CSV has the columns worker, step, begin, end (seconds; end: ready for the collective). From torch:
    traces of the profiler with a `schedule` and `profiler.step()`, or dumps of the Flight Recorder as JSON,
    whose process groups are shown one by one.

    \b
    Examples:
      psbench diagnose runs/bsp
      psbench diagnose trace_rank_*.json --out cluster.yaml
    """  # noqa: D301
    check_there(*files)
    from psbench.twin import blame, cluster_of, read_trace

    traced = read_trace(files)
    found = {name: blame(meetings) for name, meetings in traced.groups.items()}
    alone = not traced.left_out and len(found) == 1
    if as_json:
        plain = {name: each.plain() for name, each in found.items()}
        both = {"process_groups": plain, "left_out": traced.left_out}
        put(as_json_text(next(iter(plain.values())) if alone else both))
    else:
        for name, each in found.items():
            put(each if alone else f"process group {name}:\n{each}")
    for name, why in traced.left_out.items():
        say(f"process group {name} is left out: {why}")
    if out is not None:
        largest, meetings = next(iter(traced.groups.items()))
        cluster_of(meetings, out)
        if len(found) > 1:
            say(f"process group {largest} has the most steps; its workers are the cluster")
        say(f"wrote {out}, without links: add known values of links beside step_time")
        say(f"play another strategy on it: psbench run {out} --set strategy=ssp --set timing_only=true")
    return 0
