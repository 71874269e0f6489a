"""Detached runs from the shell: the cluster's client, submission, and following."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psbench.cli.app import as_json_text, put, read_live, say
from psbench.cli.starting import starting

if TYPE_CHECKING:
    from psbench.detached import DetachedRun
    from psbench.experiment import Experiment
    from psbench.results.run import Run


@contextmanager
def cluster_client(scheduler: str | None, settings: list[str] | None) -> Iterator[Any]:
    """Yield a client of the scheduler that the options of a command name.

    Raises
    ------
    ParameterError
        If they name none, or it does not answer.
    """
    with _client(read_live(None, settings, scheduler)) as client:
        yield client


@contextmanager
def _client(experiment: Experiment) -> Iterator[Any]:
    with ExitStack() as stack:
        with starting("psbench: loading Dask"):
            from psbench.detached import cluster_client

            client = stack.enter_context(cluster_client(experiment))
        yield client


def submit_detached(
    experiment: Experiment, out: Path | None, *, overwrite: bool, resume: bool, as_json: bool
) -> int:
    """Submit a run, and print its name and how to follow it."""
    with _client(experiment) as client:
        from psbench.detached import submit

        run = submit(experiment, client=client, folder=out, overwrite=overwrite, resume=resume)
        address, attach = client.scheduler.address, attach_command(run.name, client)
        facts = {"name": run.name, "scheduler": address, "folder": run.listed.folder or None}
    put(as_json_text(facts) if as_json else f"submitted {run.name}")
    say(f"to follow it: {attach}")
    if out is None:
        say("without --out the cluster keeps the result in memory, and no checkpoint")
    return 0


def attach_command(name: str, client: Any) -> str:
    """Return the shell command that follows a run."""
    return f"psbench attach {name} --scheduler {client.scheduler.address}"


def follow(run: DetachedRun, targets: Sequence[str] = ()) -> Run:
    """Follow a run to its end with progress on standard error, and report it to targets of telemetry."""
    from psbench.backends.control import Control
    from psbench.cli.execution import both
    from psbench.cli.monitor import Monitor
    from psbench.cli.telemetry import telemetry

    while not run.facts and run.read():
        pass
    if run.experiment is None or not run.facts:
        if targets:
            say(f"{run.name} has ended: nothing is reported to {', '.join(targets)}")
        return run.wait()
    with (
        telemetry(targets, run.name) as reported,
        Monitor(run.name, run.experiment, run.facts, Control()) as monitor,
    ):
        return run.wait(both(monitor, reported))
