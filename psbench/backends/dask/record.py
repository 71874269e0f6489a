"""The client's record of a live run: its log, its checkpoints and its incidents."""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np

from psbench.backends.control import Observer
from psbench.backends.dask.coordinator.beginning import Start
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.outcome import Outcome
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.folder import CheckpointFolder
from psbench.core.log import ROW, EventLog, Kind
from psbench.experiment import Experiment

logger = logging.getLogger(__name__)


class _Last(NamedTuple):
    """A checkpoint to resume from, and the length of its log."""

    checkpoint: Checkpoint
    rows: int
    texts: int
    name: str


class Record:
    """The record of one run, through all of its starts.

    The last checkpoint is kept in memory too, so that a run without an output folder can go on from it.

    Parameters
    ----------
    experiment : Experiment
    log : EventLog
    observer : callable or None
        Called with the log whenever it has grown.
    folder : CheckpointFolder or None
        Where checkpoints go.
    start : Checkpoint or None
        Where the run resumes; the log up to there is in `log` already.

    Attributes
    ----------
    incidents : list of str
        What has gone wrong, in words.
    has_gone_back : bool
        Whether the run was started again.
    """

    def __init__(
        self,
        experiment: Experiment,
        log: EventLog,
        observer: Observer | None,
        folder: CheckpointFolder | None,
        start: Checkpoint | None,
    ) -> None:
        self.log, self.incidents = log, list[str]()
        self._experiment, self._observer, self._folder = experiment, observer, folder
        texts = len(log.texts)
        self.has_gone_back = False
        began = "the checkpoint that it began from"
        self._last = None if start is None else _Last(start, len(log), texts, began)

    def extend(self, new: msg.LogRows) -> None:
        """Add new rows to the log."""
        self.log.extend(np.frombuffer(new.rows, dtype=ROW), new.texts)
        if self._observer is not None:
            self._observer(self.log)

    def store(self, new: msg.StoreCheckpoint) -> None:
        """Keep a checkpoint, and write it to its file."""
        state = new.state.data | {"spec": self._experiment.spec()}
        rows, texts = state["logged"]
        if state["engine"] is not None:  # else it holds the model alone
            name = f"checkpoint {new.label!r}"
            self._last = _Last(Checkpoint(new.tensors, dict(state)), rows, texts, name)
        if self._folder is not None:
            self._folder.write(new.label, Checkpoint(dict(new.tensors), state))

    def take_back(self, new: msg.StoreCheckpoint) -> None:
        """Store the replica's state to resume from, unless there is a later checkpoint."""
        rows, texts = new.state["logged"]
        if self._last is None or rows >= self._last.rows:
            state = new.state.data | {"spec": self._experiment.spec()}
            self._last = _Last(Checkpoint(new.tensors, state), rows, texts, "the replica's last state")

    def note(self, incident: str) -> None:
        """Report an incident, now and in the run's warnings."""
        self.incidents.append(incident)
        logger.warning("%s", incident)

    @property
    def paths(self) -> list[str]:
        """The checkpoints' files, in order."""
        return [] if self._folder is None else self._folder.paths

    @property
    def has_folder(self) -> bool:
        return self._folder is not None

    @property
    def start(self) -> Start | None:
        """The checkpoint from which the next start of the run resumes; None for its beginning."""
        last = self._last
        if last is None:
            return None
        # as they came they are views of one message, and each would be sent with all of it
        tensors = {name: tensor.clone() for name, tensor in last.checkpoint.tensors.items()}
        checkpoint = Checkpoint(tensors, last.checkpoint.state)
        return Start(checkpoint, last.rows, list(self.log.texts[: last.texts]))

    @property
    def last_checkpoint(self) -> str:
        """Description of the last checkpoint."""
        if self.paths:
            return f"the last checkpoint is {self.paths[-1]}"
        if self._last is not None:
            return f"the last state is {self._last.name}"
        return "no checkpoint was written (set checkpoint_every)"

    @property
    def can_go_back(self) -> bool:
        """Return True if a restart loses nothing: there is a checkpoint, or no update has been applied."""
        return self._last is not None or not len(self.log.of_kind(Kind.APPLY)["row"])

    def go_back(self) -> str:
        """Truncate the log to the last checkpoint, and return a description of the lost part."""
        self.has_gone_back = True
        if self._last is None:
            self.log.truncate(0, 1)
            return "nothing had been computed"
        rows, state = self.log.rows(), self._last.checkpoint.state
        versions = rows["version"][rows["kind"] == Kind.APPLY]
        updates = int(max(versions, default=0)) - state["engine"]["view"]["version"]
        seconds = float(max(rows["time_s"], default=0.0)) - state["time_s"]
        self.log.truncate(self._last.rows, self._last.texts)
        if updates <= 0:  # a server that is retired leaves a checkpoint of that moment
            return f"no update since {self._last.name} is lost"
        return f"{updates} updates and {max(0.0, seconds):.1f} s since {self._last.name} are lost"

    def stopped(self) -> Outcome | None:
        """Return the outcome of a run that is stopped before it resumes from its last checkpoint.

        The model is the checkpoint's, where the log ends too; None if the run has not begun yet.
        """
        if self._last is None or not self.has_gone_back:
            return None
        tensors, state = self._last.checkpoint.tensors, self._last.checkpoint.state
        facts = {"time_s": state["time_s"], "checkpoints": self.paths, "incidents": self.incidents}
        facts["unanswered"] = True  # a checkpoint falls between an update and its releases
        reason = f"stopped by hand before it resumed from {self._last.name}"
        return Outcome("stopped", reason, tensors["parameters"], tensors["buffers"], facts)
