"""Use of a training worker's time, from its first release to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from psbench.system.cpu_samples import CpuSamples


class Usage:
    """Seconds of reading and of computing, and of CPU besides the clock's.

    CPU seconds are those of the whole process (`time.process_time`): torch's threads, the sender's and Dask's
    own included, as a monitor of the machine shows them. A worker that shares its Dask process with
    another role is charged for that too. They are sampled at the ends of steps (`CpuSamples`), at
    times of `clock`, or since the beginning. Waiting that emulates a slower machine is neither reading nor
    computing.
    """

    def __init__(self, worker: int, clock: Callable[[], float] | None = None) -> None:
        self.worker, self.steps = worker, 0
        self.read_s = self.compute_s = 0.0
        self._began_s: float | None = None
        self._samples = CpuSamples(clock or self._since_s)

    def _since_s(self) -> float:
        return 0.0 if self._began_s is None else time.perf_counter() - self._began_s

    def begin(self) -> None:
        """Start the clocks, unless they run."""
        if self._began_s is None:
            self._began_s = time.perf_counter()
            self._samples.begin()

    def add(self, read_s: float, compute_s: float) -> None:
        """Count a step, including a cancelled one."""
        self.steps += 1
        self.read_s += read_s
        self.compute_s += compute_s
        self._samples.note()

    def facts(self) -> dict[str, Any]:
        """Return the totals as plain data."""
        self._samples.end()
        return {
            "worker": self.worker,
            "steps": self.steps,
            "read_s": self.read_s,
            "compute_s": self.compute_s,
            "cpu_s": self._samples.cpu_s,
            "wall_s": self._since_s(),
            "samples": self._samples.taken,
        }
