"""Steps of one simulated cluster on several processes, bit for bit equal to steps on one.

A step is sent to a process as soon as one is free, the first that will be needed first, with a copy of the
model that it starts from in memory that both share; its gradient comes back there. Each process has its
next step before it is done with the one before. When the result is taken in virtual time it is there, and
where it is not, this process, which is one of them, computes a step itself instead of waiting. Order, batches
and sums are this process's alone, so nothing depends on which process is faster.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import selectors
from dataclasses import dataclass
from itertools import count
from typing import Any

import cloudpickle
import torch
import torch.multiprocessing  # registers how tensors are shared between processes
from torch import Tensor

from psbench.backends.simulated.pool_process import Served, serve
from psbench.data import Dataset
from psbench.data.several import each_array
from psbench.system.child import Child
from psbench.system.limits import available_memory, size
from psbench.training.build import Workload
from psbench.training.evaluator import EvaluationPart, Evaluator, Scores
from psbench.training.trainer import StepResult, StepTask, Trainer

logger = logging.getLogger(__name__)

#: what a process has at once: what it computes, and the next
_AHEAD = 2
#: how much of the memory that is available a copy of the data may take
_SHARE_OF_MEMORY = 0.25


class CannotShare(Exception):
    """An object of the run cannot be sent to another process."""


@dataclass(eq=False)
class _Task:
    """A computation from a model: a step, or part of an evaluation."""

    request: StepTask | EvaluationPart
    parameters: Tensor
    buffers: Tensor
    is_void: bool = False
    is_done: bool = False
    result: Any = None
    error: BaseException | None = None


class _Process(Child):
    """A process, and the task in each of its slots in shared memory."""

    def __init__(self, places: list[int], *arguments: Any) -> None:
        super().__init__(serve, *arguments)
        self.places = places
        self.tasks: dict[int, _Task] = {}


class Pool:
    """See `Steps`.

    Parameters
    ----------
    workload : Workload
    trainer, evaluator
        Of this process.
    processes : int
        With this one.

    Raises
    ------
    CannotShare
    """

    def __init__(self, workload: Workload, trainer: Trainer, evaluator: Evaluator, processes: int) -> None:
        self._trainer, self._evaluator = trainer, evaluator
        self._size = trainer.model.num_parameters
        width = self._size + trainer.model.num_buffers
        #: of each place: the model that a task starts from, and its gradient with the buffers after it
        self._memory = _in_shared_memory(torch.zeros((processes - 1) * _AHEAD, 2, width))
        self._order, self._todo = count(), list[tuple[float, int, _Task]]()
        self._begun: dict[tuple[int, int], _Task] = {}
        self._processes: list[_Process] = []
        self._answers = selectors.DefaultSelector()
        packed = _packed(Served.of(workload, trainer, evaluator))
        tensors = _shared(workload.data)
        try:
            for first in range(0, len(self._memory), _AHEAD):
                places = list(range(first, first + _AHEAD))
                process = _Process(places, packed, tensors, self._memory, self._size)
                self._processes.append(process)
                self._answers.register(process.pipe, selectors.EVENT_READ, process)
        except BaseException:
            self.close()
            raise

    # ---------------------------------------------------------------- steps

    def begin(self, job: StepTask, parameters: Tensor, buffers: Tensor, ends_s: float) -> None:
        """See `Steps`."""
        task = self._begun[job.worker, job.number] = _Task(job, parameters, buffers)
        self._add(task, ends_s)

    def result(self, job: StepTask, parameters: Tensor, buffers: Tensor) -> StepResult:
        """See `Steps`."""
        task = self._begun.pop((job.worker, job.number), None)
        if task is None:  # begun before the processes were there
            return self._trainer.result(job, parameters, buffers)
        found: StepResult = self._awaited(task)
        return found

    def cancel(self, job: StepTask) -> None:
        """See `Steps`."""
        task = self._begun.pop((job.worker, job.number), None)
        if task is not None:
            task.is_void = True

    def evaluate(self, parameters: Tensor, buffers: Tensor) -> dict[str, float]:
        """Evaluate on all processes, before the pending steps."""
        tasks = [_Task(part, parameters, buffers) for part in self._evaluator.parts]
        for task in tasks:
            self._add(task, float("-inf"))
        return self._evaluator.joined([self._awaited(task) for task in tasks])

    # ---------------------------------------------------------------- processes

    def _add(self, task: _Task, ends_s: float) -> None:
        heapq.heappush(self._todo, (ends_s, next(self._order), task))
        self._feed()

    def _feed(self) -> None:
        """Send tasks to processes with a free slot, in order of need.

        The last one is not handed out ahead of time: this process may come to it sooner.
        """
        while self._todo:
            freest = min(self._processes, key=lambda each: len(each.tasks), default=None)
            if freest is None or not freest.places or (freest.tasks and len(self._todo) == 1):
                return
            _, _, task = heapq.heappop(self._todo)
            if not task.is_void:
                self._send(freest, task)

    def _send(self, process: _Process, task: _Task) -> None:
        place = process.places.pop()
        process.tasks[place] = task
        model = self._memory[place, 0]
        model[: self._size].copy_(task.parameters)
        model[self._size :].copy_(task.buffers)
        with contextlib.suppress(OSError):  # it is found to be gone when its answer is awaited
            process.pipe.send((place, task.request))

    def _awaited(self, task: _Task) -> Any:
        """Return the result of a task; compute other tasks here until it arrives."""
        while not task.is_done:
            for ready, _ in self._answers.select(0 if self._todo else None):
                self._collect(ready.data)
            if not task.is_done and self._todo:
                self._compute(heapq.heappop(self._todo)[-1])
        if task.error is not None:
            raise task.error
        return task.result

    def _compute(self, task: _Task) -> None:
        """Compute a task in this process."""
        if task.is_void:
            return
        try:
            if isinstance(task.request, EvaluationPart):
                task.result = self._evaluator.evaluate_part(task.request, task.parameters, task.buffers)
            else:
                task.result = self._trainer.result(task.request, task.parameters, task.buffers)
        except Exception as error:  # it may be of a step that is cancelled before it is needed
            task.error = error
        task.is_done = True

    def _collect(self, process: _Process) -> None:
        try:
            place, answer = process.pipe.recv()
        except (EOFError, OSError):
            self._lose(process)
            return
        task = process.tasks.pop(place)
        process.places.append(place)
        task.is_done = True
        if isinstance(answer, bytes):
            task.error = cloudpickle.loads(answer)
        elif isinstance(answer, Scores):
            task.result = answer
        elif not task.is_void:
            vectors = self._memory[place, 1].clone()
            task.result = StepResult(vectors[: self._size], vectors[self._size :], *answer)
        self._feed()

    def _lose(self, process: _Process) -> None:
        """Remove a dead process; the others compute its tasks."""
        logger.warning("process %s of a simulated run is gone; the others continue", process.process.pid)
        self._processes.remove(process)
        self._answers.unregister(process.pipe)
        process.end()
        for task in process.tasks.values():
            heapq.heappush(self._todo, (float("-inf"), next(self._order), task))
        self._feed()

    def close(self) -> None:
        """End all processes."""
        for each in self._processes:
            each.pipe.close()  # which is how it learns of it
        for each in self._processes:
            each.end()
            each.process.close()
        self._processes = []
        self._answers.close()


def _shared(data: Dataset) -> tuple[Any, ...]:
    """Return copies of a data set's tensors in shared memory, one for all processes.

    The tensors themselves stay where they are, as others may look at their memory.
    """
    tensors = data.train_x, data.train_y, data.val_x, data.val_y
    needed = sum(tensor.nbytes for tensor in tensors)
    if needed > _SHARE_OF_MEMORY * available_memory():
        raise CannotShare(
            f"there is not enough memory for a copy of data {data.name!r}, which takes {size(needed)}"
        )
    return tuple(each_array(tensor, lambda part: _in_shared_memory(part.clone())) for tensor in tensors)


def _in_shared_memory(tensor: Tensor) -> Tensor:
    shared: Any = tensor  # torch's method has no types
    moved: Tensor = shared.share_memory_()
    return moved


def _packed(served: Served) -> bytes:
    try:
        packed: bytes = cloudpickle.dumps(served)
    except Exception as error:
        raise CannotShare(
            f"an object of the run cannot be sent to another process ({type(error).__name__}: {error})"
        ) from error
    return packed
