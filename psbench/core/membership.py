"""Membership: workers that join, leave, are dropped and are readmitted."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.action_processor import ActionProcessor
from psbench.core.log import Kind
from psbench.core.view import Status, WorkerView
from psbench.errors import ProtocolError


class EngineMembership:
    """Adds and removes workers, and lets the parts react.

    Parameters
    ----------
    processor : ActionProcessor
        Holds the view, and performs the actions with which the parts react.
    batch_sizes : sequence of int
        Samples per step of each worker at the beginning.

    Attributes
    ----------
    pending_changes : deque of Drop and Readmit
        Performed after the other actions of an answer, which the parts decided for the workers active then.
    """

    def __init__(self, processor: ActionProcessor, batch_sizes: Sequence[int]) -> None:
        self._processor = processor
        self._view = processor.view
        self._batch_sizes = batch_sizes
        self.pending_changes: deque[act.Drop | act.Readmit] = deque()

    def admit(self, worker: int) -> None:
        """Add a worker at the start of the run."""
        self._add(worker, 0)
        self._processor.record(Kind.JOIN, worker=worker)

    def join(self, join: ev.Join) -> None:
        """Add a worker that joins in mid-run; the parts release or hold it."""
        self._add(join.worker, self._newest_version())
        self._processor.record(Kind.JOIN, worker=join.worker)
        self._admit_midway(join.worker)

    def leave(self, leave: ev.Leave) -> None:
        """Remove a worker that has left or failed."""
        worker = self._view.workers[leave.worker]
        if worker.status == Status.GONE and not worker.dropped:
            return
        self._processor.record(Kind.LEAVE, worker=leave.worker, text=leave.reason)
        if worker.dropped:
            worker.dropped = False  # it cannot be readmitted
        else:
            self._remove(worker)

    def apply_next_change(self) -> None:
        """Perform the first of `pending_changes`."""
        change = self.pending_changes.popleft()
        if isinstance(change, act.Drop):
            self._drop(change)
        else:
            self._readmit(change)

    def readmit_dropped(self) -> None:
        self.pending_changes.extend(act.Readmit(w.id) for w in self._view.workers.values() if w.dropped)

    def restart(self, worker: WorkerView) -> None:
        """Release a worker again because its current work is void."""
        view = self._view
        view.num_computing -= worker.status is Status.COMPUTING
        view.num_voted -= worker.status is Status.VOTED
        view.cancelled += 1
        worker.status = Status.NEW
        view.set_voted(worker, 0)
        self._processor.allowances.end(worker.id)
        worker.ticket += 1
        self._processor.unanswered.add(worker.id)
        self._processor.record(Kind.CANCEL, worker=worker.id)
        self._processor.todo.append(act.Release(worker.id))

    def any_under_way(self, spared: set[int]) -> bool:
        """Return True if a worker other than the spared ones holds a version of the model or overlaps."""
        return any(w.base_version >= 0 or w.overlapping for w in self._others(spared))

    def restart_void_work(self, spared: set[int]) -> None:
        """Discard the state of workers other than the spared ones, and restart those that compute.

        A late worker, whose push would have been dropped, begins with the others: on their fragment.
        """
        composition = self._processor.composition
        catches_up = composition.sends_fragments and composition.consistency.current_only
        for worker in self._others(spared):
            if catches_up and worker.status is Status.COMPUTING:
                composition.communication.on_leave(worker.id, self._view)
            if worker.overlapping and composition.has_local_steps:
                self._processor.needs_full_model.add(worker.id)
            worker.base_version, worker.overlapping = -1, False
            if worker.status in (Status.COMPUTING, Status.VOTED):
                self.restart(worker)

    def _others(self, spared: set[int]) -> list[WorkerView]:
        return [w for w in self._view.workers.values() if w.id not in spared and w.status is not Status.GONE]

    def restart_all(self) -> None:
        """Let all active workers start as at the beginning of a run, with equal clocks (a hand-over)."""
        view, processor = self._view, self._processor
        here = [w for w in view.workers.values() if w.status != Status.GONE]
        clock = max((w.clock for w in here), default=view.min_clock)  # all may have left during the drain
        for worker in here:
            worker.status, worker.fragment = Status.NEW, -1
            worker.base_version = -1  # its local state may be of another kind: it is sent the model
            processor.needs_full_model.add(
                worker.id
            )  # whole: what another composition's codec left it is not known
            worker.batch_size = self._first_batch(worker.id)  # the former straggler part's orders end with it
            view.move_clock(worker, clock)
            processor.unanswered.add(worker.id)

    def _newest_version(self) -> int:
        here = (w.version for w in self._view.workers.values() if w.status is not Status.GONE)
        return max(here, default=0)

    def _add(self, worker: int, version: int) -> None:
        view = self._view
        old = view.workers.get(worker)
        if old is not None and old.status != Status.GONE:
            raise ProtocolError(
                f"worker {worker} joined, but it is already active (status {old.status.name.lower()})"
            )
        view.workers[worker] = new = WorkerView(
            worker, ticket=old.ticket if old else 0, batch_size=self._first_batch(worker)
        )
        new.version = new.first_version = version
        view.enter_clock(new)
        view.num_active += 1
        self._processor.count_exchanged_again()
        self._processor.unanswered.add(worker)
        self._processor.needs_full_model.add(worker)

    def _first_batch(self, worker: int) -> int:
        return self._batch_sizes[worker % len(self._batch_sizes)]

    def _admit_midway(self, worker: int) -> None:
        processor = self._processor
        if processor.peer_to_peer:
            self._give_model(worker)
        if processor.drain is not None:
            processor.withhold(worker, processor.drain)
        else:
            processor.todo.extend(processor.composition.consistency.on_join(worker, self._view))

    def _give_model(self, worker: int) -> None:
        """Initialise a joining worker with the model of the lowest-numbered active worker."""
        others = [w for w in self._view.workers.values() if w.id != worker and w.status is not Status.GONE]
        giver = min((w.id for w in others if w.status is not Status.NEW), default=None)
        if giver is not None:  # else backends know that no model is left
            self._processor.todo.append(act.Mix({worker: {giver: 1.0}}))

    def _remove(self, worker: WorkerView) -> None:
        view, processor = self._view, self._processor
        if worker.status == Status.COMPUTING:
            view.num_computing -= 1
            has_begun = processor.migration is None or not processor.migration.withholds(worker.id, view)
            view.cancelled += has_begun
        elif worker.status == Status.VOTED:
            view.num_voted -= 1
        worker.status = Status.GONE
        view.set_voted(worker, 0)
        processor.allowances.end(worker.id)
        processor.count_exchanged_again()
        worker.hold_reason = ""
        worker.overlapping = False
        view.num_active -= 1
        view.leave_clock(worker)
        if processor.drain is not None:
            processor.drain.parked.discard(worker.id)
        processor.unanswered.discard(worker.id)
        # it forgets the last worker, too: that may be back
        decided = processor.composition.communication.on_leave(worker.id, view)
        if view.num_active:
            processor.todo.extend(decided)
            processor.todo.extend(processor.composition.consistency.on_leave(worker.id, view))
        else:
            self.readmit_dropped()  # no other worker is left

    def _drop(self, drop: act.Drop) -> None:
        worker = self._view.workers[drop.worker]
        if worker.status is Status.GONE or self._view.num_active == 1:
            return  # it was dropped by another part, or is the last worker: the asking part could not know
        worker.ticket += 1  # what it still sends is void
        worker.dropped = True
        self._processor.out.append(drop)
        self._processor.record(Kind.DROP, worker=drop.worker, text=drop.reason)
        self._remove(worker)

    def _readmit(self, readmit: act.Readmit) -> None:
        if not self._view.workers[readmit.worker].dropped:
            return  # it has failed since
        self._processor.out.append(readmit)
        self._processor.record(Kind.READMIT, worker=readmit.worker)
        self._add(readmit.worker, self._newest_version())
        self._admit_midway(readmit.worker)
