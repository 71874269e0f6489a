"""Allowances: the samples that a worker may take until its push, where workers decide when to push."""

from __future__ import annotations

import math

from psbench.core.view import ClusterView, Status, WorkerView


class Allowances:
    """Shares of the rest of a run's epochs, for its workers.

    Idle workers get equal shares. A worker that computes is expected to push as much as it did last, and at
    first all that it may take. The sum of what is expected is kept, so that an allowance costs the same
    however many workers there are.

    Parameters
    ----------
    view : ClusterView

    Attributes
    ----------
    expected : dict of worker to int
        Samples that each computing worker with an allowance is expected to push.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.expected: dict[int, int] = {}
        self._sum = 0

    def give(self, worker: WorkerView) -> int:
        """Set and return the samples that a worker may take until its push; -1 without a limit."""
        view = self._view
        self.end(worker.id)
        worker.allowance = -1
        if view.epochs is not None:
            left = view.epochs * view.dataset_size - view.samples - view.pending_samples - self._sum
            idle = view.num_active - len(self.expected)
            worker.allowance = max(0, math.ceil(left / idle - 1e-6))
            self._expect(worker)
        return worker.allowance

    def end(self, worker: int) -> None:
        """Expect nothing of a worker any more: it has pushed or voted, or its step is void."""
        self._sum -= self.expected.pop(worker, 0)

    def count_again(self) -> None:
        """Count the expected samples from the view, after it was loaded."""
        self.expected, self._sum = {}, 0
        for worker in self._view.workers.values():
            if worker.status is Status.COMPUTING and worker.allowance >= 0:
                self._expect(worker)

    def _expect(self, worker: WorkerView) -> None:
        expected = min(worker.allowance, worker.pushed_samples or worker.allowance)
        self.expected[worker.id] = expected
        self._sum += expected
