"""Where a push arrives at the coordinator: it becomes an event for the engine.

Its payload is in the first server's slice already, and nowhere else. It leaves when the engine applies or
discards the push, or when the engine has found the push void.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psbench.backends.dask.coordinator.run_state import RunState
from psbench.backends.dask.protocol.messages import PushMessage
from psbench.backends.dask.server.store import key_of
from psbench.backends.pushes import why_diverged, with_stats
from psbench.core import events as ev
from psbench.core.view import Status
from psbench.training.batches import BatchPosition


class PushIntake:
    """Takes the workers' pushes.

    Attributes
    ----------
    next_number : int
        Of the next push.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.next_number = 0
        #: samples and steps of each worker's pushes
        self._done: dict[int, tuple[int, int]] = {}
        self._reads: Sequence[str] = ()
        self._bytes_up: Callable[[int, int], int]  # as `compose` says, before a push comes
        self._not_finite: set[int] = set()  # pushes in the queue that have no payload

    def compose(self, bytes_up: Callable[[int, int], int], reads: Sequence[str]) -> None:
        """Take pushes with these statistics; `bytes_up` is given fragment and version of one."""
        self._bytes_up, self._reads = bytes_up, reads

    def set_position(self, worker: int, samples: int, steps: int) -> None:
        """Set how far a worker has come in its data, at the beginning."""
        self._done[worker] = samples, steps

    def position_after(self, worker: int) -> BatchPosition:
        """Return where to go on in a worker's data after its last push: its chunk is not known."""
        return BatchPosition(*self._done.get(worker, (0, 0)), 0, 0, 0)

    def handled_position(self, worker: int) -> BatchPosition:
        """Return where to go on after the last push of a worker that the engine has taken."""
        after = self.position_after(worker)
        queued = [event for event in self._run.events if type(event) is ev.Push and event.worker == worker]
        samples, steps = sum(push.samples for push in queued), sum(push.steps for push in queued)
        return after._replace(taken=after.taken - samples, steps=after.steps - steps)

    def take(self, worker: int, message: PushMessage) -> None:
        """Take a push to the engine's queue."""
        samples, steps = self._done.get(worker, (0, 0))
        self._done[worker] = samples + message.samples, steps + message.steps
        send_s = max(0.0, self._run.clock_s - message.sent_s)
        # a void push may be of another composition, with other fragments and statistics
        is_current = self._is_current(worker, message.ticket)
        fragment = self._run.view.workers[worker].fragment if is_current else -1
        num_bytes = self._bytes_up(fragment, message.version)
        # fmt: off
        push = ev.Push(
            self.next_number, worker, message.ticket, message.version, message.samples, message.steps,
            num_bytes, message.compute_s, send_s, message.loss, message.stats, message.overlapping,
        )
        # fmt: on
        self.next_number += 1
        self._run.store.arrived(push)
        if not message.is_finite:
            self._not_finite.add(push.id)
        self._run.events.append(with_stats(push, self._reads) if self._reads and is_current else push)

    def _is_current(self, worker: int, ticket: int) -> bool:
        known = self._run.view.workers[worker]
        return ticket == known.ticket and known.status is Status.COMPUTING

    def diverges(self, event: ev.Event) -> bool:
        """End the run, and return whether it does, if an event is a push that is not finite and not void.

        When its turn has come: until then an answer may be under way whose checkpoint has the version before.
        """
        if not (type(event) is ev.Push and event.id in self._not_finite):
            return False
        if not self._is_current(event.worker, event.ticket):
            return False
        now = self._run.now
        self._run.engine.handle(event, now)
        self._run.ending.unanswered = True
        self._run.ending.end("diverged", why_diverged(event, now))
        return True

    def discard_void(self) -> None:
        """Drop the payloads of pushes that the engine was given and has found void."""
        run = self._run
        waiting, pending = run.store.waiting, run.view.pending
        if len(waiting) <= len(pending) or run.engine.measuring:
            return
        needed = {key_of(push) for push in pending.values()}
        needed |= {key_of(event) for event in run.events if type(event) is ev.Push}
        for key in [key for key in waiting if key not in needed]:
            run.store.discard(key)
