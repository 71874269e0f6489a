"""Computation of simulated workers' steps, in this process or in several.

A step is begun when its worker is released and its result is taken when it ends in virtual time. Between the
two the model that it starts from does not change, so it may be computed at any moment in between, and the
result is the same wherever that is.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from typing import Literal, Protocol

from torch import Tensor

from psbench.backends.simulated.pool import CannotShare, Pool
from psbench.errors import ParameterError
from psbench.system import fork_server
from psbench.system.cores import cores
from psbench.training.build import Workload
from psbench.training.evaluator import Evaluator
from psbench.training.trainer import StepResult, StepTask, Trainer

logger = logging.getLogger(__name__)

#: a run whose steps took that many seconds of CPU is worth the fork server, and then its processes: they take
#: about as long to start, so that a run that ends right then has cost at most twice as much
_WORTH_SERVER_S, _WORTH_PROCESSES_S = 4.0, 10.0
#: a step below this many seconds is not worth to be sent to another process
_WORTH_STEP_S = 0.002
#: one step in so many is measured, as to ask for the CPU's time takes some percent of a short one
_MEASURED = 8


class Steps(Protocol):
    """Computes started steps, and evaluates."""

    def begin(self, job: StepTask, parameters: Tensor, buffers: Tensor, ends_s: float) -> None:
        """Start a step from a model, which must not change before the result is taken or cancelled.

        `ends_s` is its end in virtual time, which is when it is needed.
        """

    def result(self, job: StepTask, parameters: Tensor, buffers: Tensor) -> StepResult:
        """Return the result of a step, from the model that it started with."""

    def cancel(self, job: StepTask) -> None:
        """Cancel a started step."""

    def evaluate(self, parameters: Tensor, buffers: Tensor) -> dict[str, float]:
        """Evaluate a model; see `Evaluator`."""

    def close(self) -> None:
        """End the processes."""


class SerialSteps:
    """Computes each step in this process when its result is needed; see `Steps`."""

    def __init__(self, trainer: Trainer, evaluator: Evaluator) -> None:
        self.result, self._evaluator = trainer.result, evaluator

    def begin(self, job: StepTask, parameters: Tensor, buffers: Tensor, ends_s: float) -> None:
        """See `Steps`."""

    def cancel(self, job: StepTask) -> None:
        """See `Steps`."""

    def evaluate(self, parameters: Tensor, buffers: Tensor) -> dict[str, float]:
        """See `Steps`."""
        return self._evaluator.evaluate(parameters, buffers)

    def close(self) -> None:
        """See `Steps`."""


class GrowingSteps:
    """Computes in this process until the run is long enough to benefit from several; see `Steps`."""

    def __init__(self, workload: Workload, trainer: Trainer, evaluator: Evaluator, processes: int) -> None:
        self._workload, self._processes = workload, processes
        self._own = SerialSteps(trainer, evaluator)
        self._trainer, self._evaluator = trainer, evaluator
        self._pool: Pool | None = None
        self._steps, self._spent_s = 0, 0.0
        self._decided = False

    def begin(self, job: StepTask, parameters: Tensor, buffers: Tensor, ends_s: float) -> None:
        """See `Steps`."""
        if self._pool is not None:
            self._pool.begin(job, parameters, buffers, ends_s)

    def result(self, job: StepTask, parameters: Tensor, buffers: Tensor) -> StepResult:
        """See `Steps`."""
        if self._pool is not None:
            return self._pool.result(job, parameters, buffers)
        self._steps += 1
        if self._decided or self._steps % _MEASURED:
            return self._own.result(job, parameters, buffers)
        began = time.thread_time()
        result = self._own.result(job, parameters, buffers)
        self._spent_s += _MEASURED * (time.thread_time() - began)
        self._decide()
        return result

    def _decide(self) -> None:
        if self._spent_s < _WORTH_SERVER_S:
            return
        if self._spent_s < _WORTH_STEP_S * self._steps:
            self._decided = True
            return
        fork_server.ensure_running()
        if self._spent_s >= _WORTH_PROCESSES_S:
            self._decided = True
            try:
                self._pool = Pool(self._workload, self._trainer, self._evaluator, self._processes)
            except CannotShare as error:
                logger.info("the run stays in one process: %s", error)

    def cancel(self, job: StepTask) -> None:
        """See `Steps`."""
        if self._pool is not None:
            self._pool.cancel(job)

    def evaluate(self, parameters: Tensor, buffers: Tensor) -> dict[str, float]:
        """See `Steps`."""
        return (self._pool or self._own).evaluate(parameters, buffers)

    def close(self) -> None:
        """See `Steps`."""
        if self._pool is not None:
            self._pool.close()


def steps_of(workload: Workload, trainer: Trainer, evaluator: Evaluator) -> Steps:
    """Return the `Steps` of a run, on the experiment's number of processes.

    Raises
    ------
    ParameterError
        If it asks for several and something of its own cannot be sent to another process.
    """
    processes = _number(workload, workload.experiment.processes)
    if processes == 1 or trainer.model.device.type != "cpu":
        return SerialSteps(trainer, evaluator)
    if workload.experiment.processes == "auto":
        return GrowingSteps(workload, trainer, evaluator, processes)
    fork_server.ensure_running()
    try:
        return Pool(workload, trainer, evaluator, processes)
    except CannotShare as error:
        raise ParameterError(f"processes: {error}; use processes: 1") from error


def _number(workload: Workload, asked: int | Literal["auto"]) -> int:
    """Return the number of processes: 1 inside a process pool, which shares the cores."""
    if multiprocessing.parent_process() is not None or not fork_server.is_available():
        return 1
    if asked != "auto":
        return asked
    return max(1, min(cores() // workload.experiment.threads, workload.profile.num_workers))
