"""Run an experiment on its backend, or resume one from a checkpoint."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from psbench.backend import backend_of
from psbench.backends.control import Control, Observer, stop_on_signals
from psbench.checkpoints.chain import find, home_of, resume_spec
from psbench.checkpoints.validation import check_against
from psbench.core.log import EventLog
from psbench.core.part import Part
from psbench.core.user_object import reunited
from psbench.errors import Cancelled, Interrupted, ParameterError, in_short, naming
from psbench.experiment import Experiment
from psbench.results.identity import new_run_id
from psbench.results.run import Run
from psbench.runs.folder import RunFolder
from psbench.runs.forked import BeginningCheck, ForkedExperiment
from psbench.runs.meta import meta_of
from psbench.runs.start import Start
from psbench.system.claims import Writer
from psbench.training.build import Workload


def run(
    experiment: Experiment,
    *,
    log: EventLog | None = None,
    observer: Observer | None = None,
    control: Control | None = None,
    folder: str | Path | None = None,
    overwrite: bool = False,
    workload: Workload | None = None,
    start: str | Path | None = None,
    client: Any = None,
    writer: Writer | None = None,
) -> Run:
    """Run an experiment on its backend.

    Parameters
    ----------
    experiment : Experiment
    log : EventLog or None
        Filled while the run goes on; another thread may read it.
    observer : callable or None
        Called often with the log, from the thread that runs; must be quick.
    control : Control or None
        Lets another thread stop the run or switch now. Ctrl-C and SIGTERM stop too, keeping what was computed
        and writing a checkpoint if there is a folder; the second one aborts. Without a control of the
        caller's, the process exits with 143 when a run that SIGTERM stopped is saved, and after Ctrl-C
        `Interrupted` is raised, so that a loop over runs ends.
    folder : path or None
        Where checkpoints are written, and where the run is saved when it has ended.
    overwrite : bool
        Whether another run in that folder is removed, rather than refused.
    workload : Workload or None
        The experiment's own, if it is built already (to show its shards before the run begins).
    start : path or None
        A checkpoint to go on from, or the folder of a run, whose last one is meant; see `resume`.
    client : dask.distributed.Client or None
        Of the cluster that the dask backend is to use; it stays open.
    writer : Writer or None
        Who writes to the folder, if another process may go on with the run.

    Raises
    ------
    SpecError, DataError
        Before anything is computed.
    NotSaved
        If the run has ended and its folder cannot be written, as on a full disk; its `run` can be saved.
    ForkDiffers
        If the experiment is a fork whose run does not begin as it must; see `psbench.runs.fork`.
    Interrupted
        After Ctrl-C, if there is no control; its `run` has what was computed.
    """
    if not isinstance(experiment, Experiment):
        raise ParameterError(
            f"run: expected an Experiment, such as ps.Experiment(strategy='ssp'), got {in_short(experiment)}"
        )
    backend = backend_of(experiment.backend)
    if client is not None and not backend.takes_client:
        raise ParameterError("client: only the dask backend has one; set backend: dask")
    exits, control = control is None, control or Control()
    log = EventLog() if log is None else log
    path = None if folder is None else Path(folder)
    begin = None if start is None else Start.read(start, experiment, path)
    run_id = new_run_id() if begin is None else begin.run_id
    with RunFolder.claim(path, run_id, begin, overwrite=overwrite, writer=writer or Writer()) as target:
        if workload is None:
            # the specification of a run that goes on is the checkpoint's
            with nullcontext() if begin is None else naming(str(begin.path)):
                workload = Workload.build(experiment, whole_run=client is None)
        if begin is not None:
            check_against(begin.path, begin.checkpoint, workload)
            log.extend(begin.log.rows(), begin.log.texts)
        checkpoints = None if target is None else target.checkpoints(log, experiment.recovery.keep)
        watched = _watched(experiment, observer, control)
        began = time.perf_counter()
        with stop_on_signals(control):  # those that come while it is saved, too
            try:
                checkpoint = None if begin is None else begin.checkpoint
                outcome = backend.run(workload, log, control, watched, checkpoints, checkpoint, client=client)
            except Cancelled:
                if exits and control.signal == signal.SIGTERM:  # before there was anything to keep
                    raise SystemExit(128 + signal.SIGTERM) from None
                raise
            if isinstance(watched, BeginningCheck):
                watched.compare(log)
            if checkpoints is not None:
                outcome.facts["incidents"] = [*outcome.facts.get("incidents", ()), *checkpoints.incidents]
            wall_s = time.perf_counter() - began
            meta = {"run_id": run_id} | meta_of(experiment, workload, outcome, wall_s)
            done = Run(experiment, log, meta, outcome.parameters, outcome.buffers)
            if target is not None:
                target.save(done)
    if exits and control.signal == signal.SIGTERM:
        raise SystemExit(128 + signal.SIGTERM)
    if exits and control.signal == signal.SIGINT:
        raise Interrupted(done, "" if path is None else str(path))
    return done


def _watched(experiment: Experiment, observer: Observer | None, control: Control) -> Observer | None:
    """Return the observer; in a fork it also compares the first rows with those of the origin."""
    if not isinstance(experiment, ForkedExperiment):
        return observer
    recorded = experiment.beginning.recorded(lambda origin: run(origin, control=control).log)
    return BeginningCheck(experiment.beginning, recorded, observer)


def resume(
    source: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    model: Any = None,
    data: Any = None,
    sharding: Any = None,
    loss: Any = None,
    metrics: Any = None,
    optimizer: Any = None,
    folder: str | Path | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
    control: Control | None = None,
    client: Any = None,
) -> Run:
    """Resume a run that was stopped or killed, or make it longer.

    It goes on from its last checkpoint that can be read, with the time, the log and the model of that moment;
    what came after it is done again, and its checkpoints are removed from that folder. Workers that were in
    the middle of steps repeat them from what they held at their last message. Under a barrier none was, and
    a simulated run goes on bit by bit as it would have done; elsewhere the summary's warnings say who did.

    Parameters
    ----------
    source : path
        The folder of a run, or one of its checkpoints.
    settings : mapping of dotted path to value
        What is to be different from now on, as `{"stop.epochs": 40}`: `stop`, `backend`, `scheduler`,
        `evaluate_every`, `checkpoint_every`, `threads`, `device` and `name` may be.
    model, data, sharding, loss, metrics, optimizer : object or None
        Those of the run, where they were objects of Python: files of runs do not hold them.
    folder : path or None
        Where the run is saved; the folder that it comes from, unless given. Elsewhere it is a new run.
    overwrite : bool
        Whether another run in that folder is removed, rather than refused.
    observer, control, client
        See `run`.

    Returns
    -------
    Run
        Whose log begins where the run began.

    Raises
    ------
    SpecError, DataError
        If there is no checkpoint, or it is of another experiment, or a stop rule is below what is done.

    Source
    ------
    Thesis 3.2.6: "reload, v back, workers re-pull".
    """
    path = find(source)
    with naming(str(path)):
        experiment = Experiment.from_spec(resume_spec(path), settings, where="the specification")
    experiment = _with_objects(
        experiment, model=model, data=data, sharding=sharding, loss=loss, metrics=metrics, optimizer=optimizer
    )
    folder = home_of(path) if folder is None else folder
    options: dict[str, Any] = {"observer": observer, "control": control, "client": client}
    return run(experiment, folder=folder, overwrite=overwrite, start=source, **options)


def _with_objects(experiment: Experiment, **given: Any) -> Experiment:
    """Return the experiment with objects that its file does not hold, which must be the same."""
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return experiment
    passed = experiment.but(**given)
    for name in given:
        before, now = getattr(experiment, name), getattr(passed, name)
        if isinstance(before, Part) and isinstance(now, Part):
            reunited(before, now)
    return passed
