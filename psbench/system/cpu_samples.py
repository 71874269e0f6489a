"""CPU seconds of this process along time, in few samples however long it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

#: samples that are kept at most; beyond, every second one is
_MOST = 256


class CpuSamples:
    """CPU seconds since a start, sampled at an interval that doubles as samples accumulate.

    Parameters
    ----------
    clock : callable
        Returns the time that samples are of, in seconds.
    cpu : callable
        Returns the CPU seconds of the process.

    Attributes
    ----------
    taken : list of (seconds, CPU seconds)
        Empty before `begin`.

    Examples
    --------
    >>> times = iter([10.0, 10.5, 12.0, 13.0])
    >>> seconds = iter([1.0, 1.5, 2.5])
    >>> samples = CpuSamples(lambda: next(times), lambda: next(seconds), apart_s=1.0)
    >>> samples.begin(), samples.note(), samples.note(), samples.end(), samples.taken
    (None, None, None, None, [(10.0, 0.0), (12.0, 0.5), (13.0, 1.5)])
    """

    def __init__(
        self,
        clock: Callable[[], float],
        cpu: Callable[[], float] = time.process_time,
        apart_s: float = 0.02,
    ) -> None:
        self._clock, self._cpu, self._apart_s = clock, cpu, apart_s
        self._began_s = 0.0
        self.taken: list[tuple[float, float]] = []

    def begin(self) -> None:
        """Start counting, unless started already."""
        if not self.taken:
            self._began_s = self._cpu()
            self.taken = [(self._clock(), 0.0)]

    def note(self) -> None:
        """Take a sample if the last one is old enough."""
        if self.taken and (now := self._clock()) - self.taken[-1][0] >= self._apart_s:
            self.taken.append((now, self._cpu() - self._began_s))
            if len(self.taken) > _MOST:
                self.taken, self._apart_s = self.taken[::2], 2 * self._apart_s

    def end(self) -> None:
        """Take the last sample."""
        if self.taken:
            self.taken.append((max(self._clock(), self.taken[-1][0]), self._cpu() - self._began_s))

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the last sample."""
        return self.taken[-1][1] if self.taken else 0.0
