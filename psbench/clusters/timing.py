"""The seconds that steps take, in virtual time."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from psbench.arrays import Array
from psbench.clusters.profile import Profile
from psbench.seeds import Streams

logger = logging.getLogger(__name__)

#: a worker's first block, doubled up to `StepTimes`' block: most of ten thousand workers may take few steps
_FIRST_BLOCK = 8


class StepTimes:
    """Draws the seconds of each step, one stream per worker.

    Numbers are drawn in blocks, since a single draw costs more than the rest of a step; what comes out does
    not depend on the size of the blocks, on the other workers, or on the order in which they ask.

    Parameters
    ----------
    profile : Profile
    streams : Streams
        Worker i draws from the stream ("step_time", i).
    block : int, >= 1
        Largest block.

    Attributes
    ----------
    reads : bool
        Whether a step reads its batch. Not where the placement charges a scan instead.

    Examples
    --------
    >>> from psbench.clusters import Custom
    >>> profile = Custom(workers=2, speed=[1, 0.5], step_time="constant").profile()
    >>> StepTimes(profile, Streams(0)).next(worker=1, samples=31, start_s=0.0)
    0.064
    """

    def __init__(self, profile: Profile, streams: Streams, block: int = 128) -> None:
        self._step_time, self._streams, self._block = profile.step_time, streams, block
        self._step_time.begin(profile.num_workers)
        self._in_seconds, self._measured = profile.step_time.in_seconds, profile.step_time.measured_samples
        self._per_step, self._per_sample = profile.seconds_per_step, profile.seconds_per_sample
        self._per_read = profile.read_seconds_per_sample
        self.reads = True
        self._slowness = [1.0 / speed for speed in profile.speed]
        self._spells = _spells(profile)
        self._reset()

    def _reset(self) -> None:
        self._left = [array("d") for _ in self._slowness]  # a list of floats is four times as large
        self._drawn = [0] * len(self._slowness)
        self._series: dict[int, Callable[[int], Array]] = {}
        self._before = [0] * len(self._slowness)  # steps of an earlier part of the run
        self._seconds = [0.0] * len(self._slowness)
        self._reading = [0.0] * len(self._slowness)

    def next(self, worker: int, samples: int, start_s: float) -> float:
        """Return the seconds of the worker's next step.

        Parameters
        ----------
        worker : int
        samples : int
            Size of its batch.
        start_s : float, seconds
            When the step begins; decides whether a slowdown is in force.
        """
        left = self._left[worker]
        factor = left.pop() if left else self._refill(worker)
        work = self._per_step + samples * self._per_sample
        read = samples * self._per_read if self.reads else 0.0
        if self._in_seconds:
            seconds = factor if self._measured is None else factor * samples / self._measured
        else:
            seconds = (work + read) * self._slowness[worker] * factor
        if worker in self._spells:
            for from_s, to_s, times in self._spells[worker]:
                if from_s <= start_s < to_s:
                    seconds *= times
        self._seconds[worker] += seconds
        if read:
            self._reading[worker] += seconds * read / (work + read)
        return seconds

    def scanned(self, worker: int, seconds: float) -> None:
        self._seconds[worker] += seconds
        self._reading[worker] += seconds

    def usage(self) -> list[dict[str, float]]:
        """Return each worker's steps, and the seconds that these take to read and to compute, as plain data.

        Steps count that have begun, whole, also those that were cancelled later. That a trace was repeated is
        said in the program's log.
        """
        for worker, used in enumerate(self._used()):
            length = self._step_time.length(worker)
            if length is not None and used > length:
                steps = f"worker {worker} took {used} steps, but its trace has {length}"
                logger.warning("step_time 'trace': %s, so the trace was repeated", steps)
        return [
            {"worker": worker, "steps": used - before, "read_s": reading, "compute_s": seconds - reading}
            for worker, (used, before, reading, seconds) in enumerate(
                zip(self._used(), self._before, self._reading, self._seconds, strict=True)
            )
        ]

    def used(self, worker: int) -> int:
        return self._drawn[worker] - len(self._left[worker])

    def _used(self) -> list[int]:
        return [drawn - len(left) for drawn, left in zip(self._drawn, self._left, strict=True)]

    def _refill(self, worker: int) -> float:
        """Draw the next block, keep it last first, and return its first."""
        done = self._drawn[worker]
        drawn = self._draw(worker, min(max(done, _FIRST_BLOCK), self._block))
        left = self._left[worker] = array("d", np.asarray(drawn, np.float64)[::-1].tobytes())
        return left.pop()

    def _draw(self, worker: int, size: int) -> Array:
        if worker not in self._series:
            rng = self._streams.generator("step_time", worker)
            self._series[worker] = self._step_time.series(worker, rng)
        self._drawn[worker] += size
        return self._series[worker](size)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of factors each worker has used, as plain data."""
        return {"used": self._used()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`: the streams are advanced to their positions."""
        self._reset()
        for worker, used in enumerate(state["used"]):
            if used:
                self._draw(worker, used)
        self._before = list(state["used"])


def _spells(profile: Profile) -> dict[int, list[tuple[float, float, float]]]:
    """Return the slowdowns of each worker that has any: from, to, factor."""
    spells: dict[int, list[tuple[float, float, float]]] = {}
    for slow in profile.slowdowns:
        spells.setdefault(slow.worker, []).append((slow.from_s, slow.to_s, slow.factor))
    return spells
