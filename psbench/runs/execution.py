"""Run an experiment on its backend, or resume one from a checkpoint."""

from __future__ import annotations

import hashlib
import platform
import signal
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from psbench.backend import backend_of
from psbench.backends.control import Control, Observer, stop_on_signals
from psbench.backends.outcome import Outcome
from psbench.checkpoints.chain import (
    find,
    home_of,
    log_of,
    passed_over,
    remove_later,
    resume_spec,
)
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.folder import CheckpointFolder
from psbench.checkpoints.validation import check, check_against, check_stop, done_in
from psbench.core.checked_log import check_log
from psbench.core.log import EventLog
from psbench.core.part import Part
from psbench.core.strategy import Strategy
from psbench.core.switching_strategy import AnyStrategy
from psbench.core.user_object import reunited
from psbench.errors import Cancelled, DataError, Interrupted, NotSaved, ParameterError, SpecError, naming
from psbench.experiment import Experiment
from psbench.results.identity import check_folder, new_run_id, remove_files_of_others, resumed_run_id
from psbench.results.record_file import read_summary
from psbench.results.run import Run
from psbench.runs.forked import BeginningCheck, ForkedExperiment
from psbench.system.files import claimed
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
    backend = backend_of(experiment.backend)
    if client is not None and not backend.takes_client:
        raise ParameterError("client: only the dask backend has one; set backend: dask")
    exits, control = control is None, control or Control()
    log = EventLog() if log is None else log
    target = None if folder is None else Path(folder)
    path = None if start is None else find(start)
    begin = None if path is None else _beginning(experiment, path, log)
    at_home = path is not None and target is not None and target.resolve() == home_of(path).resolve()
    beyond: list[Path] = []
    if path is not None and begin is not None and target is not None and at_home:
        beyond = passed_over(path)
        if Path(str(start)) != path:  # who names a checkpoint goes back to it
            _check_record(target, begin, experiment)
    run_id = new_run_id() if path is None else resumed_run_id(path, home_of(path), target)
    with nullcontext() if target is None else claimed(target):
        if target is not None:
            Run.prepare_to_save()
            check_folder(target, run_id, overwrite=overwrite, own=beyond)
        workload = Workload.build(experiment, whole_run=client is None) if workload is None else workload
        if path is not None and begin is not None:
            check_against(path, begin, workload)
        keep = experiment.recovery.keep
        checkpoints = None if target is None else CheckpointFolder(target, run_id, log, keep)
        if checkpoints is not None and target is not None:
            remove_files_of_others(target, run_id, beyond)
            if path is not None:
                remove_later(path, target / "checkpoints")
            if path is not None and beyond and Path(str(start)) != path:
                names = ", ".join(each.name for each in beyond)
                checkpoints.note(f"{names}: cannot be read; the run resumes from {path.name}")
        check = None
        if isinstance(experiment, ForkedExperiment):
            recorded = experiment.beginning.recorded(lambda origin: run(origin, control=control).log)
            observer = check = BeginningCheck(experiment.beginning, recorded, observer)
        began = time.perf_counter()
        with stop_on_signals(control):  # those that come while it is saved, too
            try:
                outcome = backend.run(workload, log, control, observer, checkpoints, begin, client=client)
            except Cancelled:
                if exits and control.signal == signal.SIGTERM:  # before there was anything to keep
                    raise SystemExit(128 + signal.SIGTERM) from None
                raise
            if check is not None:
                check.compare(log)
            if checkpoints is not None:
                outcome.facts["incidents"] = [*outcome.facts.get("incidents", ()), *checkpoints.incidents]
            meta = {"run_id": run_id} | _meta(experiment, workload, outcome, time.perf_counter() - began)
            done = Run(experiment, log, meta, outcome.parameters, outcome.buffers)
            if target is not None:
                _save(done, target)
    if exits and control.signal == signal.SIGTERM:
        raise SystemExit(128 + signal.SIGTERM)
    if exits and control.signal == signal.SIGINT:
        raise Interrupted(done, "" if target is None else str(target))
    return done


def _save(done: Run, target: Path) -> None:
    try:
        done.save(target)
    except SpecError as error:
        raise NotSaved(done, str(error)) from error


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


def _beginning(experiment: Experiment, path: Path, log: EventLog) -> Checkpoint:
    """Read a checkpoint and the log up to it."""
    checkpoint = Checkpoint.load(path)
    check(path, checkpoint, experiment)
    check_stop(path, done_in(checkpoint.state), checkpoint.state["spec"].get("stop", {}), experiment.stop)
    before = log_of(path, checkpoint)
    check_log(path, before, experiment.num_workers)
    log.extend(before.rows(), before.texts)
    return checkpoint


def _check_record(folder: Path, begin: Checkpoint, experiment: Experiment) -> None:
    """Raise if the record of a run is further than the resumed run would come."""
    record = folder / "run.json"
    try:
        summary = read_summary(record)
    except DataError:
        return  # it was killed, or has a record that says nothing
    done = {name: float(summary[each]) for name, each in _DONE.items()}
    check_stop(record, done, begin.state["spec"].get("stop", {}), experiment.stop)


#: how a summary calls what stop rules count
_DONE = {"epochs": "epochs", "updates": "updates", "seconds": "time_s"}


def params_digest(parameters: Tensor | None, buffers: Tensor | None) -> str | None:
    """Return the SHA-256 of the model's bytes; None without a model."""
    if parameters is None or buffers is None:
        return None
    content = hashlib.sha256(np.ascontiguousarray(parameters.numpy()).data)
    content.update(np.ascontiguousarray(buffers.numpy()).data)
    return content.hexdigest()


def lr_convention(strategy: AnyStrategy, lr: float, num_workers: int) -> str:
    """Return a description of the learning rate of an update."""
    words = [f"{c.name}: {_rate_of(c, lr, num_workers)}" for c in strategy.compositions]
    return "; ".join(words)


def _rate_of(composition: Strategy, lr: float, num_workers: int) -> str:
    if composition.has_local_steps:
        return f"lr = {lr:g} for each worker's own steps{composition.aggregation.outer_rate_in_words}"
    if composition.lr_scaling == "by_share":
        return f"lr k/n = {lr:g} k/{num_workers} for an update of k pushes"
    return f"lr = {lr:g} an update"


def _meta(experiment: Experiment, workload: Workload, outcome: Outcome, wall_s: float) -> dict[str, Any]:
    return {
        "name": experiment.title,
        "strategy": experiment.strategy.name,
        "compositions": [composition.name for composition in experiment.strategy.compositions],
        "backend": experiment.backend,
        "seed": experiment.seed,
        "status": outcome.status,
        "reason": outcome.reason,
        "target_accuracy": experiment.stop.target_accuracy,
        **_declared(experiment),
        "params_digest": params_digest(outcome.parameters, outcome.buffers),
        "lr_convention": lr_convention(
            experiment.strategy, experiment.worker_optimizer.lr, workload.profile.num_workers
        ),
        "versions": versions(),
        "wall_s": wall_s,
        **workload.facts(),
        **outcome.facts,
    }


def _declared(experiment: Experiment) -> dict[str, Any]:
    """Return the target and the user's metrics, if any: each metric with its direction."""
    target, metrics = experiment.stop.target, experiment.metrics
    found: dict[str, Any] = {} if target is None else {"target": target.model_dump(exclude_none=True)}
    if metrics:
        found["metrics"] = {f"val_{name}": each.lower_is_better for name, each in metrics.items()}
    return found


def versions() -> dict[str, str]:
    """Return the versions that results may depend on."""
    names = ("psbench", "torch", "numpy", "scikit-learn", "distributed")
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


@cache  # five files to read: a fifth of the time of a short run
def _version(name: str) -> str:
    return metadata.version(name)
