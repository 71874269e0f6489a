"""Execution of a cell in a process or task: returns the run as bytes, or its error.

Cells travel in memory, by value, so that models and data of a notebook or a script arrive without a file and
without their module being imported again.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeAlias

import cloudpickle
import numpy as np
import torch

from psbench.backends.control import Control
from psbench.core.log import ROW, EventLog
from psbench.errors import PsbenchError, SpecError
from psbench.experiment import Experiment
from psbench.progress import RunProgress
from psbench.results.run import Run
from psbench.runs.execution import run
from psbench.runs.sweeps.cells import Cell, CellOutcome
from psbench.system.by_value import dumps_by_value
from psbench.system.parent import end_with_parent
from psbench.system.signals import ignore_ending
from psbench.training.build import Workload

#: seconds between two reports of how far a run has come
REPORT_S = 0.5

#: what is heard of a cell: how far it has come, or what came of it
CellMessage: TypeAlias = tuple[Literal["progress"], float] | tuple[Literal["done"], dict[str, Any]]


def packed(cell: Cell, folder: Path | None, *, by_value: bool = False) -> bytes:
    """Return a cell as bytes, for another process; by value if the user's modules may be missing there.

    Raises
    ------
    SpecError
        If its model or data cannot be sent to another process.
    """
    own = None if folder is None else folder.absolute() / cell.folder_name
    try:
        content: bytes = (dumps_by_value if by_value else cloudpickle.dumps)((cell.experiment, own))
    except Exception as error:  # a user's object may refuse in any way
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise SpecError(
            f"sweep: {cell.label}: cannot be sent to another process ({reason}); use processes=1"
        ) from None
    return content


def run_packed(content: bytes, tell: Callable[[float], None] | None = None) -> dict[str, Any]:
    """Run a packed cell, and return plain data for `outcome_of`."""
    try:
        experiment, folder = cloudpickle.loads(content)
    except Exception as error:  # a module that is not here, an object that cannot be made again
        line = _line(error, f"the run cannot be unpacked here: {type(error).__name__}: {error}")
        return {"error": line, "traceback": traceback.format_exc()}
    return run_plain(experiment, folder, tell=tell)


def run_plain(
    experiment: Experiment,
    folder: Path | None,
    *,
    control: Control | None = None,
    tell: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Run an experiment, save it in its folder if it has one, and return the outcome as plain data."""
    try:
        workload = Workload.build(experiment)
        observer = None if tell is None else _Reporter(experiment, workload.facts(), tell)
        done = run(
            experiment, folder=folder, overwrite=True, control=control, observer=observer, workload=workload
        )
    except PsbenchError as error:
        return {"error": _line(error, str(error))}
    except Exception as error:  # a user's model or data may raise anything
        line = _line(error, f"{type(error).__name__}: {error}")
        return {"error": line, "traceback": traceback.format_exc()}
    return {"folder": folder} if folder is not None else {"run": _plain(done)}


def _line(error: BaseException, text: str) -> str:
    return " ".join((text or type(error).__name__).split())


def _plain(done: Run) -> dict[str, Any]:
    tensors = {"parameters": done.parameters, "buffers": done.buffers}
    arrays = {name: None if tensor is None else tensor.numpy() for name, tensor in tensors.items()}
    return {"meta": done.meta, "rows": done.log.rows().tobytes(), "texts": done.log.texts, **arrays}


def outcome_of(cell: Cell, found: dict[str, Any]) -> CellOutcome:
    """Return the outcome of a cell from the plain data of `run_plain`."""
    if "error" in found:
        return CellOutcome(cell, found["error"], found.get("traceback", ""))
    if "folder" in found:
        return CellOutcome(cell, _folder=found["folder"])
    plain = found["run"]
    log = EventLog()
    log.extend(np.frombuffer(plain["rows"], dtype=ROW), plain["texts"])
    tensors = (plain["parameters"], plain["buffers"])
    model = (None if array is None else torch.from_numpy(array) for array in tensors)
    return CellOutcome(cell, _run=Run(cell.experiment, log, plain["meta"], *model))


class _Reporter:
    """An observer of a run that reports the completed share from time to time."""

    def __init__(self, experiment: Experiment, facts: dict[str, Any], tell: Callable[[float], None]) -> None:
        self._progress, self._tell = RunProgress(experiment.stop, facts), tell
        self._read, self._next = 0, time.monotonic() + REPORT_S

    def __call__(self, log: EventLog) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + REPORT_S
        end = len(log)
        self._progress.read(log, self._read, end)
        self._read = end
        if (done := self._progress.fraction()) is not None:
            self._tell(done)


def serve(connection: Connection) -> None:
    """Run the cells received through a connection, one after another, until it is closed.

    Ctrl-C reaches every process of a terminal's group, and SIGTERM often all of a job; here both are ignored,
    as the process that asked decides.
    """
    ignore_ending()
    end_with_parent()
    while True:
        try:
            content = connection.recv_bytes()
            found = run_packed(content, lambda done: _send(connection, ("progress", done)))
            _send(connection, ("done", found))
        except (EOFError, OSError):  # the sweep's process is gone
            return


def _send(connection: Connection, answer: CellMessage) -> None:
    connection.send_bytes(cloudpickle.dumps(answer))
