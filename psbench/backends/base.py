"""What the backends share: requests from outside, the end of a run, and what a run leaves."""

from __future__ import annotations

import math
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

from psbench.core.events import Push, SwitchRequested
from psbench.core.log import EventLog
from psbench.core.view import ClusterView
from psbench.experiment import Stop

#: called often, from the thread that runs; must be quick
Observer: TypeAlias = Callable[[EventLog], None]


def with_stats(push: Push, reads: Sequence[str]) -> Push:
    """Put the statistics that parts read where they find them; the log keeps every digit of these.

    A worker that decides by itself has sent them, but for the time its push took.
    """
    told = push.stats or {}
    push.stats = {name: told[name] if name in told else getattr(push, name) for name in reads}
    return push


def why_diverged(push: Push, now: float) -> str:
    """Say why a run ends whose push is not made of numbers."""
    where = f"push {push.id} of worker {push.worker}, computed on version {push.base_version} at {now:.3f} s,"
    if math.isfinite(push.loss):
        return f"{where} has entries that are no numbers, or too large for the codec: lower the learning rate"
    return f"{where} has loss {push.loss}: lower the learning rate"


class Control:
    """Requests to a run under way, from any thread: stop, or switch now.

    Examples
    --------
    >>> control = Control()
    >>> control.stop()
    >>> control.pending, control.stopping
    (True, True)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: deque[SwitchRequested] = deque()
        self.stopping = False
        #: whether there is anything to attend to; read without a lock, in every step of a run
        self.pending = False

    def stop(self) -> None:
        """End the run as soon as possible, keeping what it has."""
        with self._lock:
            self.stopping = self.pending = True

    def switch(self, to: int | None = None) -> None:
        """Change to composition `to`, or to the other one."""
        with self._lock:
            self._asked.append(SwitchRequested(to))
            self.pending = True

    def take(self) -> list[SwitchRequested]:
        """Return the requests to switch, each once."""
        with self._lock:
            asked = list(self._asked)
            self._asked.clear()
            self.pending = self.stopping
            return asked


@contextmanager
def stop_on_interrupt(control: Control) -> Iterator[None]:
    """Let the first Ctrl-C stop a run, and the second interrupt it as usual.

    Only in the main thread, and only where nobody else has laid hands on the signal.
    """
    usual = signal.default_int_handler
    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is usual

    def first(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, usual)
        control.stop()

    if mine:
        signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGINT, usual)


@dataclass
class Outcome:
    """What a run leaves beside its log.

    `status` is "finished", "stopped" (by a person) or "diverged"; `reason` says which rule or push.
    """

    status: str
    reason: str
    parameters: Tensor | None = None
    buffers: Tensor | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class StopRules:
    """Watches the stop rules of an experiment.

    Parameters
    ----------
    stop : Stop
    evaluate_every : float, epochs
    """

    def __init__(self, stop: Stop, evaluate_every: float) -> None:
        self._stop = stop
        self._every = evaluate_every
        self._evaluations = 0
        self._best = float("inf")
        self._since_best = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that goes on from a checkpoint needs to know, as plain data."""
        done = {"evaluations": self._evaluations, "every": self._every}
        return done | {"best": self._best, "since_best": self._since_best}

    def load_state_dict(self, state: dict[str, Any], epoch: float) -> None:
        """Take over a state of `state_dict`, written at that epoch."""
        self._best, self._since_best = state["best"], state["since_best"]
        same = state["every"] == self._every
        self._evaluations = state["evaluations"] if same else int(epoch / self._every + 1e-9)

    @property
    def next_epoch(self) -> float:
        """The epoch before which neither `due` nor `after_update` has anything to say about epochs."""
        epochs = self._stop.epochs
        following = (self._evaluations + 1) * self._every
        return (following if epochs is None else min(following, epochs)) * (1 - 1e-9)

    def due(self, view: ClusterView) -> int | None:
        """Return the number of the evaluation that is due at this version, if one is."""
        number = int(view.epoch / self._every + 1e-9)
        if number <= self._evaluations:
            return None
        self._evaluations = number
        return number

    @property
    def next_version(self) -> float:
        """The version before which `after_update` has nothing to say but about epochs."""
        return 1 if self.sees_movement else self._stop.updates or math.inf

    @property
    def sees_movement(self) -> bool:
        """Whether a rule asks how far the last update moved the model; see `Server.movement`."""
        return self._stop.tolerance is not None

    def after_update(self, view: ClusterView, movement: float) -> str:
        """Return why the run ends at this version; empty if it goes on."""
        stop = self._stop
        if stop.epochs is not None and view.epoch >= stop.epochs - 1e-9:
            return f"{stop.epochs:g} epochs are done"
        if stop.updates is not None and view.version >= stop.updates:
            return f"{stop.updates} updates are done"
        if stop.tolerance is not None and movement < stop.tolerance:
            return f"an update moved the model by less than {stop.tolerance:g}"
        return ""

    def at(self, now: float) -> str:
        """Return why the run ends at this time; empty if it goes on."""
        if self._stop.seconds is not None and now >= self._stop.seconds:
            return f"{self._stop.seconds:g} seconds have passed"
        return ""

    def after_evaluation(self, values: dict[str, float]) -> str:
        """Return why the run ends with this evaluation; empty if it goes on."""
        stop = self._stop
        if stop.target_accuracy is not None and values["val_accuracy"] >= stop.target_accuracy:
            return f"validation accuracy reached {stop.target_accuracy:g}"
        if stop.patience is not None:
            better = values["val_loss"] < self._best
            self._best = min(self._best, values["val_loss"])
            self._since_best = 0 if better else self._since_best + 1
            if self._since_best >= stop.patience:
                return f"validation loss has not improved for {stop.patience} evaluations"
        return ""
