"""The checkpoint from which a run resumes, checked before any computation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from psbench.checkpoints.chain import find, home_of, log_of, passed_over
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.validation import check, check_stop, done_in
from psbench.core.checked_log import check_log
from psbench.core.log import EventLog
from psbench.errors import DataError
from psbench.experiment import Experiment
from psbench.results.identity import resumed_run_id
from psbench.results.record_file import read_summary

#: how a summary calls what stop rules count
_DONE = {"epochs": "epochs", "updates": "updates", "seconds": "time_s"}


@dataclass(frozen=True)
class Start:
    """A checkpoint of an experiment.

    Attributes
    ----------
    path : Path
    checkpoint : Checkpoint
    log : EventLog
        Of the run, up to the checkpoint.
    run_id : str or None
        Identity of the run that goes on.
    redone : tuple of Path
        Later or damaged checkpoints in the folder that the run goes on in: they are made again.
    chosen : bool
        Whether psbench chose the checkpoint, the last one of a folder that can be read.
    """

    path: Path
    checkpoint: Checkpoint
    log: EventLog
    run_id: str | None
    redone: tuple[Path, ...]
    chosen: bool

    @classmethod
    def read(cls, source: str | Path, experiment: Experiment, folder: Path | None) -> Start:
        """Read a checkpoint, or the last one of a run's folder.

        Parameters
        ----------
        source : path
        experiment : Experiment
        folder : Path or None
            Where the run is to be saved.

        Raises
        ------
        SpecError, DataError
            If there is none, it is of another experiment, or the experiment's stop rules end before it.
        """
        path = find(source)
        checkpoint = Checkpoint.load(path)
        check(path, checkpoint, experiment)
        check_stop(path, done_in(checkpoint.state), checkpoint.state["spec"].get("stop", {}), experiment.stop)
        log = log_of(path, checkpoint)
        check_log(path, log, experiment.num_workers)
        home, chosen = home_of(path), Path(source) != path
        at_home = folder is not None and folder.resolve() == home.resolve()
        if folder is not None and at_home and chosen:  # who names a checkpoint goes back to it
            _check_record(folder / "run.json", checkpoint, experiment)
        redone = tuple(passed_over(path)) if at_home else ()
        return cls(path, checkpoint, log, resumed_run_id(path, home, folder), redone, chosen)


def _check_record(record: Path, begin: Checkpoint, experiment: Experiment) -> None:
    """Refuse to replace the record of a run that is already beyond the new end."""
    try:
        summary = read_summary(record)
    except DataError:
        return  # the run was killed, or its record says nothing
    done = {name: float(summary[each]) for name, each in _DONE.items()}
    check_stop(record, done, begin.state["spec"].get("stop", {}), experiment.stop)
