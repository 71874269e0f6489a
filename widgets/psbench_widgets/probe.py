"""What takes time to find out about an experiment: whether its data is there, how labels are spread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from psbench.core.part import REGISTRY
from psbench.errors import PsbenchError, SpecError
from psbench.experiment import Experiment
from psbench.problem import Problem
from psbench_widgets.check import place_of

#: why 2 s: a scheduler in the same network answers in milliseconds, and a person is waiting
ANSWER_WITHIN_S = 2.0


def probe(experiment: Experiment) -> dict[str, Any]:
    """Return what the page shows beside the controls: `errors`, `disabled` models, labels per worker."""
    found: dict[str, Any] = {"errors": {}, "disabled": {}}
    if experiment.scheduler is not None:
        silent = unanswered(experiment.scheduler)
        if silent:
            found["errors"]["rest"] = silent
    try:
        problem = Problem.build(experiment)
    except PsbenchError as error:
        found["errors"][_place(error)] = str(error)
        return found
    found["disabled"]["model"] = _models(problem.data.input_shape)
    facts = problem.facts()
    return found | {name: facts[name] for name in ("classes", "label_counts", "dataset_size", "num_parameters")}


def unanswered(address: str) -> str:
    """Return why a scheduler cannot be reached, in words; empty if somebody answers there."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        return f"scheduler: expected an address as tcp://host:8786, got {address!r}"
    try:
        socket.create_connection((host, port), timeout=ANSWER_WITHIN_S).close()
    except OSError as error:
        return f"scheduler: nobody answers at {address} ({error.strerror or error}); is it running?"
    return ""


def _place(error: PsbenchError) -> str:
    place = place_of(str(error))
    return "data" if place == "rest" and not isinstance(error, SpecError) else place


def _models(shape: tuple[int, ...]) -> dict[str, str]:
    """Return the models that cannot take samples of that shape, and why."""
    found = {}
    for name, model in REGISTRY["model"].items():
        try:
            model().check_input(shape)  # type: ignore[attr-defined]
        except SpecError as error:
            found[name] = str(error)
    return found


class Prober:
    """Probes the newest experiment in a thread of its own; those overtaken meanwhile are never looked at.

    Parameters
    ----------
    tell : callable
        Gets (number, what was found), from that thread.
    """

    def __init__(self, tell: Callable[[int, dict[str, Any]], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._next: tuple[int, Experiment] | None = None
        self._thread: threading.Thread | None = None

    def ask(self, number: int, experiment: Experiment) -> None:
        """Probe an experiment soon."""
        with self._lock:
            self._next = number, experiment
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="psbench-probe", daemon=True)
                self._thread.start()

    def close(self, timeout_s: float = 30.0) -> None:
        """Forget what is asked and wait for the thread to end."""
        with self._lock:
            self._next, thread = None, self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                asked, self._next = self._next, None
                if asked is None:
                    self._thread = None
                    return
            number, experiment = asked
            try:
                found = probe(experiment)
            except Exception as error:  # a broken plug-in must not silence the panel
                found = {"errors": {"rest": f"{type(error).__name__}: {error}"}, "disabled": {}}
            self._tell(number, found)
