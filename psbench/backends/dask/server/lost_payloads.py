"""Payloads that will never come, as the processes that were to send them are dead."""

from __future__ import annotations

from psbench.backends.dask.protocol.messages import PushKey, WorkerGone

#: seconds that a slice sent by a worker that then died may still take to arrive
_GRACE_S = 0.3


class LostPayloads:
    """The dead processes of workers, by the last ticket that each had.

    A process that takes a dead one's place has later tickets: its payloads are waited for, and those of the
    dead one are not, however soon it was replaced.
    """

    def __init__(self) -> None:
        self.absent: set[int] = set()
        self._dead: dict[int, tuple[int, float]] = {}  # last ticket, and when the death was reported

    def read(self, message: WorkerGone, now: float) -> None:
        """Record a death, or the replacement of a worker's process."""
        if message.is_back:
            self.absent.discard(message.worker)
        else:
            self.absent.add(message.worker)
            self._dead[message.worker] = message.ticket, now

    def has(self, key: PushKey, now: float) -> bool:
        """Return whether a push's missing payload will never arrive."""
        worker, ticket = key
        last, since_s = self._dead.get(worker, (-1, now))
        return ticket <= last and now - since_s > _GRACE_S
