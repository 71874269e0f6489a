"""Service times of servers and coordinator: 0 unless a cluster sets them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from psbench.core import Specification, parameter

_T = TypeVar("_T")


class Service(Specification):
    """Time that a server needs for a message, and the coordinator for a decision.

    A push or a model of B bytes keeps a server for `message_s` + B * `byte_s` seconds. Each server has one
    queue for both, in the order in which messages arrive or answers are given. Whatever a worker says
    (push, vote, report) takes another `decision_s` at the coordinator, which is the first server's process,
    or one of its own under All-Reduce.

    Examples
    --------
    >>> Service(message_s=0.001).takes_time, Service().takes_time
    (True, False)
    """

    message_s: float = parameter(0.0, "a server's time for a push or a model, however small", unit="s", ge=0)
    byte_s: float = parameter(0.0, "a server's time for each of its bytes", unit="s/B", ge=0)
    decision_s: float = parameter(0.0, "the coordinator's time for a decision", unit="s", ge=0)

    @property
    def takes_time(self) -> bool:
        return bool(self.message_s or self.byte_s or self.decision_s)


NO_SERVICE = Service()


class ServerQueues(Generic[_T]):
    """Queues of the servers; the first server is also the coordinator.

    What arrives while they are busy waits, the first for the first. The answers to what was decided about are
    sent before the next is taken, as one process does both.

    Parameters
    ----------
    service : Service
    shares : sequence of float, (servers,), sum 1
        What part of each message each server carries; of a collective, which has no server, one share of 0.

    Examples
    --------
    Two pushes that arrive together: the second is served after the first and its answer.

    >>> queues = ServerQueues(Service(message_s=1.0, byte_s=0.5, decision_s=0.25), [1.0])
    >>> queues.take("first", 2, now=0.0), queues.take("second", 2, now=0.0)
    (2.25, None)
    >>> queues.answer(4, now=2.25), queues.answer(4, now=2.25), queues.following()
    (5.25, 8.25, ('second', 10.5))
    """

    def __init__(self, service: Service, shares: Sequence[float]) -> None:
        self._service = service
        self._free = [0.0] * len(shares)
        self._waiting: deque[tuple[_T, int | None]] = deque()
        self._takes = False
        self.share(shares)

    def share(self, shares: Sequence[float]) -> None:
        """Set each server's share of every message."""
        service = self._service
        self._each = [(service.message_s if share else 0.0, share * service.byte_s) for share in shares]

    def _serve(self, num_bytes: float, now: float) -> float:
        pairs = zip(self._free, self._each, strict=True)
        self._free = [max(free, now) + fixed + num_bytes * byte_s for free, (fixed, byte_s) in pairs]
        return max(self._free)

    def take(self, what: _T, num_bytes: int | None, now: float) -> float | None:
        """Return when a message that arrives now has been handled, seconds; None if it has to wait.

        `num_bytes` is None of what has no vector. What waits is given by `following`.
        """
        if self._takes:
            self._waiting.append((what, num_bytes))
            return None
        self._takes = True
        served = now if num_bytes is None else self._serve(num_bytes, now)
        self._free[0] = max(self._free[0], now) + self._service.decision_s
        return max(served, self._free[0])

    def following(self) -> tuple[_T, float] | None:
        """Return the next waiting message and its completion time; None if none waits."""
        self._takes = False
        if not self._waiting:
            return None
        what, num_bytes = self._waiting.popleft()
        ends = self.take(what, num_bytes, min(self._free))
        assert ends is not None
        return what, ends

    def answer(self, num_bytes: int, now: float) -> float:
        """Return when a model, or without bytes a short answer, that is due now is sent, seconds."""
        return self._serve(num_bytes, now) if num_bytes else max(self._free[0], now)

    def state_dict(self) -> list[float]:
        """Return until when each server is busy."""
        return list(self._free)

    def load_state_dict(self, state: Sequence[float]) -> None:
        self._free = list(state)
