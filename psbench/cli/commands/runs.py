"""`psbench run` and `psbench resume`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from psbench.cli.app import app, as_json_text, check_there, put, read_experiment, read_settings, say
from psbench.cli.execution import run_with_progress, verdict
from psbench.cli.options import AsJson, Overwrite, Scheduler, Settings, Spec, Telemetry
from psbench.errors import SpecError

if TYPE_CHECKING:
    from psbench.results.run import Run


@app.command("run")
def run_command(
    spec: Spec = None,
    settings: Settings = None,
    backend: Annotated[str | None, typer.Option(help="The backend: simulated or dask.")] = None,
    scheduler: Scheduler = None,
    scheduler_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The file written by dask scheduler --scheduler-file, instead of an address."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Root of every random stream.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save the run here: specification, log, summary, model."),
    ] = None,
    go_on: Annotated[
        bool,
        typer.Option(
            "--resume",
            help=(
                "Continue the run in the output folder if there is one, or print its summary if it has "
                "ended. For batch jobs that are requeued."
            ),
        ),
    ] = False,
    overwrite: Overwrite = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help=(
                "Submit the run to the Dask cluster and return; psbench attach follows it. --out names a "
                "folder on the cluster's shared file system."
            ),
        ),
    ] = False,
    telemetry: Telemetry = None,
    as_json: AsJson = False,
) -> int:
    """Run one experiment and print its summary.

    A specification with import, or a name such as my.package:Net in it, runs code: use only
    specifications that you trust.

    Ctrl-C and SIGTERM stop the run and keep the completed part, with a checkpoint in the output folder; a
    second one aborts.

    \b
    Examples:
      psbench run experiment.yaml --out runs/first
      psbench run experiment.yaml --set strategy.staleness_bound=5 --seed 1
      psbench run --set strategy=ssp --set cluster=hermes --set stop.epochs=5 --json
      psbench run experiment.yaml --scheduler tcp://10.0.0.1:8786
      psbench run experiment.yaml --set checkpoint_every=1 --out runs/first --resume
      psbench run experiment.yaml --scheduler tcp://10.0.0.1:8786 --detach
      psbench run experiment.yaml --telemetry prometheus:9464
    """  # noqa: D301
    given = {
        **{"backend": backend, "scheduler": scheduler, "seed": seed},
        "connection.scheduler_file": None if scheduler_file is None else str(scheduler_file),
    }
    values = read_settings(settings) | {name: value for name, value in given.items() if value is not None}
    if detach or scheduler is not None or scheduler_file is not None:  # only this backend has a scheduler
        values = {"backend": "dask"} | values
    if detach:
        if telemetry:
            raise SpecError(
                "--telemetry: not with --detach; give it to psbench attach, which follows the run"
            )
        from psbench.cli.detaching import submit_detached

        experiment = read_experiment(spec, values)
        return submit_detached(experiment, out, overwrite=overwrite, resume=go_on, as_json=as_json)
    experiment, start = read_experiment(spec, values), None
    if go_on:
        if out is None or overwrite:
            raise SpecError("--resume: continues the run in --out DIR; give --out, and remove --overwrite")
        from psbench.runs.folder import await_folder, ended_run, has_checkpoint

        await_folder(out, experiment.connection.restart_within_s)  # the job before may write its checkpoint
        if ended := ended_run(out, experiment):
            say(f"the run in {out} has ended")
            return _end(ended, 0, out, as_json)
        start = out if has_checkpoint(out) else None
        say(f"continuing the run in {out}" if start else f"no checkpoint in {out}: starting the run")
    done, interrupted = run_with_progress(
        experiment, out, overwrite=overwrite, start=start, targets=telemetry or ()
    )
    return _end(done, interrupted, out, as_json)


@app.command("resume")
def resume_command(
    source: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a run, or one of its checkpoints.")
    ],
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save the run here instead of in its own folder.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> int:
    """Resume a run from its last checkpoint, after a stop or a crash, or to make it longer.

    Checkpoints are written at switches and, with checkpoint_every, at that interval of epochs. --set may
    change stop, backend, scheduler, evaluate_every, checkpoint_every, recovery, threads and name.

    \b
    Examples:
      psbench run experiment.yaml --set checkpoint_every=1 --out runs/first
      psbench resume runs/first
      psbench resume runs/first --set stop.epochs=40
      psbench resume runs/first/checkpoints/epoch-5.npz --out runs/second
    """  # noqa: D301
    check_there(source)
    from psbench.checkpoints.chain import find, home_of, resume_spec
    from psbench.experiment import Experiment

    path = find(source)
    folder = home_of(path) if out is None else out
    experiment = Experiment.from_spec(resume_spec(path), read_settings(settings), where=str(path))
    say(f"resuming from {path}")
    done, interrupted = run_with_progress(experiment, folder, overwrite=overwrite, start=source)
    return _end(done, interrupted, folder, as_json)


def _end(done: Run, interrupted: int, folder: Path | None, as_json: bool) -> int:
    """Print the summary of a run and where it is saved, and return the exit code."""
    from psbench.cli.summary_text import summary_text

    summary = done.summary()
    put(as_json_text(summary) if as_json else summary_text(summary))
    if folder is not None:
        say(f"saved in {folder}")
    return verdict([done], interrupted, folder)
