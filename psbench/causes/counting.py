"""The progress of an answer: how many of its runs are done, over all seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from psbench.runs.sweeps.execution import Progress


class Watch:
    """Reports the progress of several seeds as one.

    Parameters
    ----------
    seeds : sequence of str
        Their labels.
    show : callable or None
        Called with the progress whenever a run begins or ends.
    """

    def __init__(self, seeds: Sequence[str], show: Callable[[Progress], None] | None) -> None:
        self._labels, self._show = seeds, show
        self._counts = dict.fromkeys(range(len(seeds)), (0, 0))
        self._under_way: set[int] = set()
        self._began = time.monotonic()

    def moved(self, place: int, done: int, total: int) -> None:
        """Record the runs of a seed that are done, and all of them."""
        self._counts[place] = done, total
        self._under_way.add(place)
        self._report()

    def ended(self, place: int) -> None:
        """Record that a seed is answered."""
        _, total = self._counts[place]
        self._counts[place] = total, total
        self._under_way.discard(place)
        self._report()

    def _report(self) -> None:
        if self._show is None:
            return
        # a seed that has not begun takes as many runs as the others
        usual = max(total for _, total in self._counts.values())
        done = sum(done for done, _ in self._counts.values())
        total = sum(total or usual for _, total in self._counts.values())
        running = tuple(self._labels[place] for place in sorted(self._under_way))
        share = done / total if total else 0.0
        self._show(Progress(done, total, 0, share, running, time.monotonic() - self._began))
