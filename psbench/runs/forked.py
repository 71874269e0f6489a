"""The experiment of a fork, which must reproduce the beginning of its original run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import PrivateAttr

from psbench.backends.control import Observer
from psbench.backends.replay import describe
from psbench.core.log import ROW, EventLog
from psbench.errors import ForkDiffers
from psbench.experiment import Experiment


@dataclass(frozen=True)
class Beginning:
    """The log prefix that the run of a fork must reproduce.

    Parameters
    ----------
    until_s : float, seconds
        Rows before that time must be equal.
    origin : Experiment
        What was forked.
    log : EventLog or None
        Of its run, if there was one.
    """

    until_s: float
    origin: Experiment
    log: EventLog | None = None

    def recorded(self, run: Callable[[Experiment], EventLog]) -> EventLog:
        """Return the log to compare with; the beginning is run if that was not done."""
        if self.log is not None or not self.until_s:
            return self.log or EventLog()
        stop = self.origin.stop
        seconds = min(self.until_s, stop.seconds or self.until_s)
        return run(self.origin.but(stop=stop.model_copy(update={"seconds": seconds}), checkpoint_every=None))


class ForkedExperiment(Experiment):
    """An experiment with a required log prefix; its specification equals that of a plain experiment."""

    _beginning: Beginning = PrivateAttr()

    @classmethod
    def of(cls, experiment: Experiment, beginning: Beginning) -> ForkedExperiment:
        """Return the experiment with the log prefix that its run must reproduce."""
        made = cls(**{name: getattr(experiment, name) for name in Experiment.model_fields})
        made._beginning = beginning
        return made

    @property
    def beginning(self) -> Beginning:
        """The log prefix that the run must reproduce."""
        return self._beginning

    def __eq__(self, other: object) -> bool:
        """Return True if the experiments are equal, regardless of their origin."""
        names = Experiment.model_fields
        return isinstance(other, Experiment) and all(getattr(self, n) == getattr(other, n) for n in names)

    __hash__ = Experiment.__hash__


class BeginningCheck:
    """An observer of a run that compares its beginning, once, as soon as it is over.

    Parameters
    ----------
    beginning : Beginning
    recorded : EventLog
        Of the run that was forked.
    observer : callable or None
        Called as well.
    """

    def __init__(self, beginning: Beginning, recorded: EventLog, observer: Observer | None) -> None:
        self._until_s, self._recorded, self._observer = beginning.until_s, recorded, observer
        self._compared = False

    def __call__(self, log: EventLog) -> None:
        """Observe a log that grows.

        Raises
        ------
        ForkDiffers
        """
        if self._observer is not None:
            self._observer(log)
        if not self._compared and log.rows(len(log) - 1)["time_s"][-1:] >= self._until_s:
            self.compare(log)

    def compare(self, log: EventLog) -> None:
        """Compare the rows before the fork, or before the end of a shorter run.

        Raises
        ------
        ForkDiffers
        """
        self._compared = True
        until_s = min([self._until_s, *log.rows(len(log) - 1)["time_s"].tolist()])
        mine, theirs = (int((each.rows()["time_s"] < until_s).sum()) for each in (self._recorded, log))
        same = common_prefix(self._recorded, log)
        if same < max(mine, theirs):
            there, here = _row(self._recorded, same), _row(log, same)
            raise ForkDiffers(
                f"fork: its beginning differs from that of the original run: row {same} was {there} and is "
                f"{here}"
            )


def common_prefix(log: EventLog, other: EventLog) -> int:
    """Return the number of equal rows at the beginning of two logs, texts included."""
    mine, theirs = log.rows(), other.rows()
    length = min(len(mine), len(theirs))
    mine, theirs = mine[:length].copy(), theirs[:length].copy()
    texts, others = np.array(log.texts, dtype=object), np.array(other.texts, dtype=object)
    same = texts[mine["text"]] == others[theirs["text"]]
    mine["text"] = theirs["text"] = 0
    equal = _bytes(mine) == _bytes(theirs)  # as bytes: a loss that is NaN is equal to itself
    differs = np.flatnonzero(~(equal.all(axis=1) & same))
    return int(differs[0]) if len(differs) else length


def _bytes(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return rows.view(np.uint8).reshape(len(rows), ROW.itemsize)


def _row(log: EventLog, at: int) -> str:
    return describe(log, at) if at < len(log) else "nothing more"
