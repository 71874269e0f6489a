"""A worker's clocks: the coordinator's, and the pace of the machine that it emulates."""

from __future__ import annotations

import time

from psbench.backends.dask.protocol.messages import AskClock, Clock
from psbench.backends.dask.worker.mailbox import LOOK_S, Mailbox
from psbench.clusters import Profile

#: exchanges of which the quickest gives the clocks' difference
_ROUNDS = 5


class CoordinatorClock:
    """The coordinator's monotonic clock, as a worker knows it.

    Attributes
    ----------
    begin_s : float
        When training began, on that clock.
    """

    def __init__(self) -> None:
        self._offset_s = self.begin_s = 0.0

    def __call__(self) -> float:
        """Return the coordinator's time, in seconds."""
        return time.monotonic() + self._offset_s

    def synchronise(self, mailbox: Mailbox) -> None:
        """Find the difference of the clocks (Cristian's algorithm)."""
        quickest = float("inf")
        for _ in range(_ROUNDS):
            asked = time.monotonic()
            mailbox.send(AskClock())
            answer = _await_clock(mailbox)
            took = time.monotonic() - asked
            if took < quickest:
                quickest, self._offset_s = took, answer - (asked + took / 2)


def _await_clock(mailbox: Mailbox) -> float:
    while True:
        message = mailbox.next_new(LOOK_S)
        if isinstance(message, Clock):
            return message.time_s
        if message is not None:
            mailbox.defer(message)


class EmulatedMachine:
    """How many times slower than this machine the profile's machine is, from time to time.

    Parameters
    ----------
    profile : Profile
    worker : int
    """

    def __init__(self, profile: Profile, worker: int) -> None:
        self._factor = max(profile.speed) / profile.speed[worker]
        self._slowdowns = [slow for slow in profile.slowdowns if slow.worker == worker]

    def slow_factor(self, clock: CoordinatorClock, began: float) -> float:
        """Return how many times as long as here a step takes that began at that `time.perf_counter`."""
        factor = self._factor
        if self._slowdowns:
            at = began - time.perf_counter() + clock() - clock.begin_s
            for slow in self._slowdowns:
                factor *= slow.factor if slow.from_s <= at < slow.to_s else 1.0
        return max(1.0, factor)
