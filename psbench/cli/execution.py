"""Executing runs for a command: with progress, until Ctrl-C, and the exit code that follows from them."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from psbench.cli.app import FAILED, TERMINATED, say
from psbench.cli.starting import starting
from psbench.cli.telemetry import telemetry
from psbench.errors import naming

#: seconds between two tries to save a run for which there is no place
RETRY_S = 30.0

if TYPE_CHECKING:
    from psbench.backends.control import Observer
    from psbench.core.log import EventLog
    from psbench.errors import NotSaved
    from psbench.experiment import Experiment
    from psbench.results.run import Run


def run_with_progress(
    experiment: Experiment,
    folder: Path | None,
    label: str = "",
    *,
    overwrite: bool = False,
    start: Path | None = None,
    targets: Sequence[str] = (),
) -> tuple[Run, int]:
    """Run with progress on standard error; return the run, and the exit code if it was interrupted, else 0.

    Parameters
    ----------
    targets : sequence of str
        Where the run is reported; see `psbench.cli.telemetry`.

    Raises
    ------
    SpecError, DataError
        Before anything is computed.
    Cancelled
        On Ctrl-C before the run begins, or a second one.
    """
    from psbench.errors import Cancelled, NotSaved, PsbenchError

    title = label or experiment.title
    try:
        with telemetry(targets, experiment.title) as reported:
            with starting(f"{title}: loading torch, the data and the model"):
                from psbench.backends.control import Control
                from psbench.cli.monitor import Monitor
                from psbench.results.identity import check_folder, new_run_id
                from psbench.runs.execution import run
                from psbench.training.build import Workload

                if folder is not None and start is None:  # `run` checks a resumed one's
                    check_folder(folder, new_run_id(), overwrite=overwrite)
                control = Control()
                workload = Workload.build(experiment)
            with Monitor(title, experiment, workload.facts(), control) as monitor:
                done = run(
                    experiment,
                    observer=both(monitor, reported),
                    control=control,
                    folder=folder,
                    overwrite=overwrite,
                    workload=workload,
                    start=start,
                )
    except NotSaved as error:
        where = save_elsewhere(error, folder or Path())
        raise PsbenchError(f"{error.why}; the run is saved in {where}") from None
    except KeyboardInterrupt:  # before the run began, or the second one
        raise Cancelled("interrupted; the run is discarded") from None
    return done, 0 if not control.stopping else 128 + (control.signal or signal.SIGINT)


def both(first: Observer, second: Observer | None) -> Observer:
    """Return an observer that calls two, or the first one if there is no second."""
    if second is None:
        return first

    def observe(log: EventLog) -> None:
        first(log)
        second(log)

    return observe


def save_elsewhere(failed: NotSaved, folder: Path, wait: Callable[[float], None] = time.sleep) -> Path:
    """Save a run to the home folder if its own folder is full, or wait until one of them has room.

    Raises
    ------
    Cancelled
        On Ctrl-C: the run is given up.
    """
    from psbench.errors import Cancelled, PsbenchError

    run, why = failed.run, failed.why
    home = Path.home() / "psbench-runs" / f"{folder.resolve().name}-{(run.run_id or '')[:8]}"
    try:
        while True:
            for place in (home, folder):
                try:
                    run.save(place)
                except (PsbenchError, OSError) as error:
                    why = f"{why}; {error}"
                else:
                    return place
            say(f"{why}; the run stays in memory until there is room (Ctrl-C discards it)")
            wait(RETRY_S)
            why = failed.why
    except KeyboardInterrupt:
        raise Cancelled(f"{failed.why}; interrupted; the run is discarded") from None


def run_all(
    planned: Sequence[tuple[str, Experiment]], out: Path | None = None, *, overwrite: bool = False
) -> tuple[list[Run], int]:
    """Run labelled experiments in turn, each saved in its own folder below `out`, until an interrupt.

    Returns
    -------
    (runs, code)
        What was computed, and the exit code if the last one was interrupted, else 0.
    """
    done: list[Run] = []
    interrupted = 0
    for number, (label, experiment) in enumerate(planned, 1):
        folder = None if out is None else folder_of(experiment, out)
        numbered = f"[{number}/{len(planned)}] {label}"
        with naming(label):
            finished, interrupted = run_with_progress(experiment, folder, numbered, overwrite=overwrite)
        done.append(finished)
        if interrupted:
            break
    return done, interrupted


def folder_of(experiment: Experiment, out: Path) -> Path:
    """Return the folder of one of several runs, by its name and seed."""
    return out / f"{experiment.title}-seed{experiment.seed}"


def verdict(done: list[Run], interrupted: int, folder: Path | None = None) -> int:
    """Print how runs ended unless all succeeded, and how to resume one; return the exit code."""
    if interrupted:
        by = "SIGTERM" if interrupted == TERMINATED else "Ctrl-C"
        go_on = "" if folder is None else f"; to continue: psbench resume {shlex.quote(str(folder))}"
        say(f"stopped by {by}; the completed part is kept{go_on}")
        return interrupted
    diverged = [run for run in done if run.meta["status"] == "diverged"]
    for run in diverged:
        say(f"error: {run.meta['name']}, seed {run.meta['seed']}, diverged: {run.meta['reason']}")
    return FAILED if diverged else 0
