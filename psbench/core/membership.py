"""Who is here: workers that join, leave, are dropped, and come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.action_processor import ActionProcessor
from psbench.core.log import Kind
from psbench.core.view import Status, WorkerView
from psbench.errors import ProtocolError


class Membership:
    """Counts the workers in and out, and has the parts answer for it.

    Parameters
    ----------
    answer : Answer
        Where the view is, and what the parts say to a worker that comes or goes is to be done.
    batch_sizes : sequence of int
        Samples per step of each worker at the beginning.

    Attributes
    ----------
    pending_changes : deque of Drop and Readmit
        Wait until the rest of the answer is done: the parts have answered for those who were there.
    """

    def __init__(self, answer: ActionProcessor, batch_sizes: Sequence[int]) -> None:
        self._answer = answer
        self._view = answer.view
        self._batch_sizes = batch_sizes
        self.pending_changes: deque[act.Drop | act.Readmit] = deque()

    def admit(self, worker: int) -> None:
        """Count a worker in."""
        self._enter(worker)
        self._answer.record(Kind.JOIN, worker=worker)

    def join(self, join: ev.Join) -> None:
        """Count a worker in that comes in mid-run; the parts say what it is to do."""
        self.admit(join.worker)
        self._welcome(join.worker)

    def leave(self, leave: ev.Leave) -> None:
        """Go on without a worker that has died."""
        worker = self._view.workers[leave.worker]
        if worker.status == Status.GONE and not worker.dropped:
            return
        self._answer.record(Kind.LEAVE, worker=leave.worker, text=leave.reason)
        if worker.dropped:
            worker.dropped = False  # nobody is to take it back
        else:
            self._do_without(worker)

    def apply_next_change(self) -> None:
        """Perform the first of `pending_changes`."""
        change = self.pending_changes.popleft()
        if isinstance(change, act.Drop):
            self._drop(change)
        else:
            self._readmit(change)

    def readmit_dropped(self) -> None:
        """Have all come back who were dropped."""
        self.pending_changes.extend(act.Readmit(w.id) for w in self._view.workers.values() if w.dropped)

    def restart(self, worker: WorkerView) -> None:
        """Release a worker once more, as what it was doing is void."""
        view = self._view
        view.num_computing -= worker.status is Status.COMPUTING
        view.num_voted -= worker.status is Status.VOTED
        view.cancelled += 1
        worker.status, worker.voted_samples = Status.NEW, 0
        worker.ticket += 1
        self._answer.unanswered.add(worker.id)
        self._answer.record(Kind.CANCEL, worker=worker.id)
        self._answer.todo.append(act.Release(worker.id))

    def restart_all(self) -> None:
        """Have all who are here begin as they would at the start, with equal clocks (a hand-over)."""
        view, answer = self._view, self._answer
        here = [w for w in view.workers.values() if w.status != Status.GONE]
        clock = max((w.clock for w in here), default=view.min_clock)  # all may have gone during the drain
        for worker in here:
            worker.status = Status.NEW
            worker.base_version = -1  # what it holds may be another kind of state: it is sent the model
            answer.needs_full_model.add(
                worker.id
            )  # whole, as nobody knows what another composition's codec left it
            worker.batch_size = self._first_batch(worker.id)  # what a straggler part ordered was its own
            view.move_clock(worker, clock)
            answer.unanswered.add(worker.id)

    def _enter(self, worker: int) -> None:
        view = self._view
        old = view.workers.get(worker)
        if old is not None and old.status != Status.GONE:
            raise ProtocolError(f"worker {worker} joined, but it is already here")
        view.workers[worker] = new = WorkerView(
            worker, ticket=old.ticket if old else 0, batch_size=self._first_batch(worker)
        )
        view.enter_clock(new)
        view.num_active += 1
        self._answer.unanswered.add(worker)
        self._answer.needs_full_model.add(worker)

    def _first_batch(self, worker: int) -> int:
        return self._batch_sizes[worker % len(self._batch_sizes)]

    def _welcome(self, worker: int) -> None:
        answer = self._answer
        if answer.drain is not None:
            answer.withhold(worker, answer.drain)
        else:
            answer.todo.extend(answer.composition.consistency.on_join(worker, self._view))

    def _do_without(self, worker: WorkerView) -> None:
        view, answer = self._view, self._answer
        if worker.status == Status.COMPUTING:
            view.num_computing -= 1
            has_begun = answer.migration is None or not answer.migration.withholds(worker.id, view)
            view.cancelled += has_begun
        elif worker.status == Status.VOTED:
            view.num_voted -= 1
        worker.status = Status.GONE
        worker.hold_reason = ""
        worker.overlapping = False
        view.num_active -= 1
        view.leave_clock(worker)
        if answer.drain is not None:
            answer.drain.parked.discard(worker.id)
        answer.unanswered.discard(worker.id)
        if view.num_active:
            answer.todo.extend(answer.composition.communication.on_leave(worker.id, view))
            answer.todo.extend(answer.composition.consistency.on_leave(worker.id, view))
        else:
            self.readmit_dropped()  # nobody else is left

    def _drop(self, drop: act.Drop) -> None:
        worker = self._view.workers[drop.worker]
        if worker.status is Status.GONE or self._view.num_active == 1:
            return  # by another part, or with the others: whoever asked could not know
        worker.ticket += 1  # what it still sends is void
        worker.dropped = True
        self._answer.out.append(drop)
        self._answer.record(Kind.DROP, worker=drop.worker, text=drop.reason)
        self._do_without(worker)

    def _readmit(self, readmit: act.Readmit) -> None:
        if not self._view.workers[readmit.worker].dropped:
            return  # it has died since
        self._answer.out.append(readmit)
        self._answer.record(Kind.READMIT, worker=readmit.worker)
        self._enter(readmit.worker)
        self._welcome(readmit.worker)
