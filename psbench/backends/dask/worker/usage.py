"""Use of a training worker's time, from its first release to its end."""

from __future__ import annotations

import time
from typing import Any


class Usage:
    """Seconds of reading and of computing, and of CPU besides the clock's.

    CPU seconds are those of the whole process (`time.process_time`): torch's threads, the sender's and Dask's
    own included, as a monitor of the machine shows them. A worker that shares its Dask process with
    another role is charged for that too. Waiting that emulates a slower machine is neither reading nor
    computing.
    """

    def __init__(self, worker: int) -> None:
        self.worker, self.steps = worker, 0
        self.read_s = self.compute_s = 0.0
        self._began: tuple[float, float] | None = None

    def begin(self) -> None:
        """Start the clocks, unless they run."""
        if self._began is None:
            self._began = time.perf_counter(), time.process_time()

    def add(self, read_s: float, compute_s: float) -> None:
        """Count a step, including a cancelled one."""
        self.steps += 1
        self.read_s += read_s
        self.compute_s += compute_s

    def facts(self) -> dict[str, Any]:
        """Return the totals as plain data."""
        wall_s = cpu_s = 0.0
        if self._began is not None:
            wall_s, cpu_s = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        return {
            "worker": self.worker,
            "steps": self.steps,
            "read_s": self.read_s,
            "compute_s": self.compute_s,
            "cpu_s": cpu_s,
            "wall_s": wall_s,
        }
