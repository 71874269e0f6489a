"""`psbench attach`, `psbench runs`, and the commands that control a detached run by its name."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from psbench.cli.app import app, as_json_text, put, say
from psbench.cli.detaching import attach_command, cluster_client, follow
from psbench.cli.options import AsJson, Overwrite, Telemetry
from psbench.errors import ParameterError

Cluster = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="ADDRESS", help="The cluster's scheduler, as tcp://host:8786."),
]
Connection = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="A setting of the connection, such as connection.tls_ca_file=ca.pem; may be repeated.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a detached run; see psbench runs.")]


class Fault(StrEnum):
    """A fault that is injected into a live run."""

    LOST = "lost"
    BACK = "back"
    SPEED = "speed"


@app.command("attach")
def attach_run(
    name: Name,
    scheduler: Cluster = None,
    settings: Connection = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save a copy of the run here, on this machine.")
    ] = None,
    overwrite: Overwrite = False,
    telemetry: Telemetry = None,
    as_json: AsJson = False,
) -> int:
    """Follow a detached run to its end, and print its summary. Ctrl-C detaches, and the run goes on.

    Only the scheduler's port need be reachable.

    \b
    Examples:
      psbench run experiment.yaml --scheduler tcp://10.0.0.1:8786 --detach
      psbench attach ssp --scheduler tcp://10.0.0.1:8786 --out runs/first
    """  # noqa: D301
    with cluster_client(scheduler, settings) as client:
        from psbench.cli.execution import verdict
        from psbench.cli.summary_text import summary_text
        from psbench.detached import attach
        from psbench.results.identity import check_folder, new_run_id

        if out is not None:
            check_folder(out, new_run_id(), overwrite=overwrite)
        run = attach(name, client=client)
        try:
            done = follow(run, telemetry or ())
        except KeyboardInterrupt:
            say(f"detached; the run goes on; to follow it again: {attach_command(name, client)}")
            return 0
    summary = done.summary()
    put(as_json_text(summary) if as_json else summary_text(summary))
    if out is not None:
        done.save(out, overwrite=overwrite)
        say(f"saved in {out}")
    return verdict([done], 0)


@app.command("runs")
def runs_command(scheduler: Cluster = None, settings: Connection = None, as_json: AsJson = False) -> None:
    """List the detached runs of a Dask cluster: name, state, progress, folder.

    \b
    Examples:
      psbench runs --scheduler tcp://10.0.0.1:8786
    """  # noqa: D301
    with cluster_client(scheduler, settings) as client:
        from psbench.detached import listed

        found = listed(client)
    if as_json:
        fields = ("name", "state", "words", "folder", "submitted_s", "starts")
        put(as_json_text([{field: getattr(each, field) for field in fields} for each in found]))
        return
    for each in found:
        put("  ".join(filter(None, (each.name, each.state, each.words, each.folder))))
    if not found:
        say("the cluster has no detached run")


@app.command("stop")
def stop_command(name: Name, scheduler: Cluster = None, settings: Connection = None) -> None:
    """Stop a detached run; completed work is kept, with a checkpoint if the run has a folder.

    \b
    Examples:
      psbench stop ssp --scheduler tcp://10.0.0.1:8786
    """  # noqa: D301
    with cluster_client(scheduler, settings) as client:
        from psbench.detached import attach

        attach(name, client=client).stop()
    say(f"{name} stops")


@app.command("switch")
def switch_command(
    name: Name,
    scheduler: Cluster = None,
    settings: Connection = None,
    to: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Number of the composition; by default the next.")
    ] = None,
) -> None:
    """Switch the strategy of a detached run now.

    \b
    Examples:
      psbench switch strategy-switch --scheduler tcp://10.0.0.1:8786
    """  # noqa: D301
    with cluster_client(scheduler, settings) as client:
        from psbench.detached import attach

        attach(name, client=client).switch(to)
    say(f"asked {name} to switch")


@app.command("fault")
def fault_command(
    name: Name,
    worker: Annotated[int, typer.Argument(min=0, metavar="WORKER", help="Number of the worker.")],
    fault: Annotated[Fault, typer.Argument(metavar="FAULT", help="lost, back or speed.")],
    scheduler: Cluster = None,
    settings: Connection = None,
    factor: Annotated[
        float | None,
        typer.Option(metavar="X", help="With speed: how many times as fast as now the worker becomes."),
    ] = None,
) -> None:
    """Inject a fault into a detached run: a worker is lost, is back, or changes its speed.

    \b
    Examples:
      psbench fault ssp 2 lost --scheduler tcp://10.0.0.1:8786
      psbench fault ssp 0 speed --factor 0.25 --scheduler tcp://10.0.0.1:8786
    """  # noqa: D301
    if (factor is None) == (fault is Fault.SPEED):
        raise ParameterError("fault: give --factor X with the fault speed, and with no other")
    with cluster_client(scheduler, settings) as client:
        from psbench.detached import attach

        attach(name, client=client).press(worker, fault.value, 1.0 if factor is None else factor)
    say(f"asked {name}: worker {worker} {fault.value}")


@app.command("forget")
def forget_command(name: Name, scheduler: Cluster = None, settings: Connection = None) -> None:
    """Remove an ended run from the cluster's memory; its folder stays.

    \b
    Examples:
      psbench forget ssp --scheduler tcp://10.0.0.1:8786
    """  # noqa: D301
    with cluster_client(scheduler, settings) as client:
        from psbench.detached import attach

        attach(name, client=client).forget()
    say(f"the cluster has forgotten {name}")
