"""Steps of workers that share a machine's cores: contention makes them longer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psbench.clusters.shared_link import SharedLink


@dataclass(frozen=True, slots=True, eq=False)
class StepBegins:
    """A worker is about to begin a step of `seconds` without contention; `what` is its end event."""

    worker: int
    seconds: float
    what: Any


class SharedCores:
    """Processor sharing: each running step has a core, or an equal share of all cores.

    A step that begins makes those under way longer, so an end is looked at again when it has come
    (`contention_delay`). One that is cancelled goes on to its end, as a live worker's does, and its worker's
    next begins after it.

    Parameters
    ----------
    cores : float, > 0

    Source
    ------
    Kleinrock (1967), processor sharing.

    Examples
    --------
    Three steps of a second on two cores, begun at once, take a second and a half.

    >>> cores = SharedCores(2.0)
    >>> [round(cores.begin(worker, 1.0, now=0.0), 6) for worker in range(3)]
    [1.0, 1.0, 1.5]
    >>> round(cores.contention_delay(0), 6), cores.contention_delay(0)
    (0.5, 0.0)
    """

    def __init__(self, cores: float) -> None:
        self._link = SharedLink(cores)
        self._said: dict[int, float] = {}

    def free_s(self, worker: int) -> float:
        """Return the currently expected end of a worker's last step; 0 without one."""
        return self._link.ends(worker) if worker in self._said else 0.0

    def begin(self, worker: int, seconds: float, now: float) -> float:
        """Begin a step of `seconds` on one core; return its end if no other step begins.

        Call in the order of `now`, and not before `free_s`.
        """
        ends = self._said[worker] = self._link.begin(worker, seconds, 1.0, now)
        return ends

    def contention_delay(self, worker: int) -> float:
        """Return the delay in seconds that steps started since then add to the worker's step."""
        ends, said = self._link.ends(worker), self._said[worker]
        self._said[worker] = ends
        return max(0.0, ends - said)
