"""The work of a director: it runs the experiment, or continues the run of its predecessors."""

from __future__ import annotations

import pickle
from pathlib import Path

from psbench.backends.dask import Director, Kept, Listed, packed_log
from psbench.errors import BackendError, NotSaved, ServerLost, SpecError
from psbench.experiment import Experiment
from psbench.results.identity import check_folder, new_run_id
from psbench.results.run import Run
from psbench.runs.execution import run
from psbench.runs.folder import await_folder, ended_run, has_checkpoint
from psbench.system.claims import take_over
from psbench.training.build import Workload


def direct_run(director: Director, packed: bytes, folder: str, *, overwrite: bool, resume: bool) -> Kept:
    """Run a pickled experiment to its end, or go on with it, and return the result.

    A run that has ended is not trained again: its result is read from its folder.

    Raises
    ------
    ServerLost
        If an earlier director is lost, and has left no checkpoint.
    SpecError, DataError, BackendError
        As `psbench.run`.
    """
    # from the client that submitted this task, which Dask unpickles from it as well; never from a file
    experiment: Experiment = pickle.loads(packed)
    path = Path(folder) if folder else None
    if path is not None:
        _await_predecessor(director, path, experiment.connection.restart_within_s)
    before = director.begin()
    if path is not None and (before.has_rows or resume):
        ended = Run.load(path) if before.status else ended_run(path, experiment)
        if ended is not None:
            return _kept(ended)
    start = _start_of(before, path, resume)
    workload = Workload.build(experiment, whole_run=False)
    if path is not None and start is None:
        check_folder(path, new_run_id(), overwrite=overwrite)
    director.accept(experiment, workload.facts())
    try:
        done = run(
            experiment,
            log=director.log,
            control=director.control,
            folder=path,
            overwrite=overwrite,
            workload=workload,
            start=start,
            client=director.client,
            writer=director,
        )
    except NotSaved as error:  # it is fetched from the cluster
        done = error.run
        _note(done, error.why)
    if path is not None and start is not None and director.start > 1:
        _note(done, f"the Dask worker of the director is gone; director {director.start} resumed the run")
        director.check()
        done.save(path)
    return _kept(done)


def _await_predecessor(director: Director, path: Path, within_s: float) -> None:
    """Wait until no process writes to the folder; take it over from a director that is frozen or cut off.

    One whose Dask worker is being retired writes a last checkpoint meanwhile.

    Raises
    ------
    SpecError
        If another run is being written to the folder.
    """
    try:
        await_folder(path, within_s)
    except SpecError:
        if not take_over(path, director.owner):
            raise


def _start_of(before: Listed, path: Path | None, resume: bool) -> Path | None:
    """Return the folder to resume from; None for the beginning.

    Raises
    ------
    ServerLost
        If work would be lost.
    """
    if before.status:
        raise BackendError(
            f"run {before.name!r} has ended ({before.words}), and its result is lost with the Dask worker "
            "that had it: the run had no folder"
        )
    if path is not None and (before.has_rows or resume) and has_checkpoint(path):
        return path
    if before.has_rows:
        why = "it had no folder" if path is None else f"no checkpoint was written to {path}"
        raise ServerLost(
            f"run {before.name!r}: the Dask worker of its director is gone, and {why} (give a folder, and "
            "set checkpoint_every)"
        )
    return None


def _note(done: Run, incident: str) -> None:
    done.meta["incidents"] = [*done.meta.get("incidents", ()), incident]


def _kept(done: Run) -> Kept:
    rows, texts = packed_log(done.log)
    return Kept(done.experiment.spec(), done.meta, done.parameters, done.buffers, rows, texts)
