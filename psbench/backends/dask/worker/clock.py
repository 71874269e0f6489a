"""A worker's clocks: the coordinator's, and the pace of the machine that it emulates."""

from __future__ import annotations

import time

from psbench.backends.dask.protocol.messages import AskClock, Clock
from psbench.backends.dask.worker.mailbox import LOOK_S, Mailbox
from psbench.clusters import Profile, StepTimes
from psbench.seeds import Streams

#: exchanges of which the quickest gives the clocks' difference
_ROUNDS = 5


class CoordinatorClock:
    """A worker's estimate of the coordinator's monotonic clock.

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

    def synchronise(self, mailbox: Mailbox) -> tuple[float, float]:
        """Find the difference of the clocks (Cristian's algorithm); return it and the quickest round trip."""
        quickest = float("inf")
        for _ in range(_ROUNDS):
            asked = time.monotonic()
            mailbox.send(AskClock())
            answer = _await_clock(mailbox)
            took = time.monotonic() - asked
            if took < quickest:
                quickest, self._offset_s = took, answer - (asked + took / 2)
        return self._offset_s, quickest


def _await_clock(mailbox: Mailbox) -> float:
    while True:
        message = mailbox.next_new(LOOK_S)
        if isinstance(message, Clock):
            return message.time_s
        if message is not None:
            mailbox.defer(message)


class EmulatedMachine:
    """Ratio between a step's time on the profile's machine and on this one.

    Parameters
    ----------
    profile : Profile
    worker : int
    streams : Streams
        Where the times of steps are drawn from, if the profile `paces_live_runs`: as in virtual time.
    """

    def __init__(self, profile: Profile, worker: int, streams: Streams) -> None:
        self._worker, self._profile = worker, profile
        self._factor = max(profile.speed) / profile.speed[worker]
        self._slowdowns = [slow for slow in profile.slowdowns if slow.worker == worker]
        self._times = StepTimes(profile, streams) if profile.paces_live_runs else None
        #: times as fast as the profile says, as the user wants; never faster than here
        self.by_hand = 1.0
        self._is_real = self._factor <= 1.0 and not self._slowdowns and self._times is None

    def more_s(
        self, clock: CoordinatorClock, began: float, took_s: float, samples: int, looked: int = 0
    ) -> float:
        """Return the seconds to wait after a step, given its start (`time.perf_counter`) and its duration.

        It took `samples`, and a forward pass over those that were `looked` at before.
        """
        if self._is_real and self.by_hand >= 1.0:
            return 0.0
        at = began - time.perf_counter() + clock() - clock.begin_s
        if self._times is not None:
            whole_s = self._times.next(self._worker, samples, at)
            whole_s += self._profile.forward_s(looked, self._worker)
            return max(0.0, whole_s / self.by_hand - took_s)
        factor = self._factor / self.by_hand
        for slow in self._slowdowns:
            factor *= slow.factor if slow.from_s <= at < slow.to_s else 1.0
        return took_s * (max(1.0, factor) - 1.0)
