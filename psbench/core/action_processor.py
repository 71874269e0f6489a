"""An answer in the making: completes the parts' actions, checks them, and hands them out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from psbench.core import actions as act
from psbench.core.actions import Action
from psbench.core.drain import Drain
from psbench.core.log import EventLog, Kind, pack_apply, pack_release, plain_json
from psbench.core.migration import REASSIGNMENT, Migration, lost_entries
from psbench.core.part import Part
from psbench.core.parts import Communication, Switching
from psbench.core.renamed import current_names
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView, Status, WorkerView
from psbench.core.wire_size import WireSize
from psbench.errors import ProtocolError

Hook = Callable[..., list[Action]]

# plain names for what every push needs: looking up a member of an enumeration costs more than using it
COMPUTING, PUSHED, VOTED, GONE = Status.COMPUTING, Status.PUSHED, Status.VOTED, Status.GONE
#: old and new keys of the state
_RENAMED = {"move": "migration", "anew": "needs_full_model"}
#: what the rest of an answer waits for that stopped after an update (`Engine.pause_for_evaluations`)
EVALUATION = "evaluation"
_APPLY, _RELEASE, _HOLD = map(int, (Kind.APPLY, Kind.RELEASE, Kind.HOLD))


class ActionProcessor:
    """What is still to be seen to, what is handed out, and who must be answered yet.

    One object serves a whole run: after each event it is empty again. Its methods that take an action
    perform it: they complete it, bring the view up to date and write its row.

    Parameters
    ----------
    view : ClusterView
    wire_size : WireSize
        What the model has to be written on the wire, for the log's bytes.
    rule : Switching or None
        The rule of a switch, which may have a word after every update.
    log : EventLog or None

    Attributes
    ----------
    todo : deque of Action
        What the parts have said and is not performed.
    out : list of Action
        What a backend is to perform.
    unanswered : set of int
        Workers that must be released or held before the answer is complete.
    anew : set of int
        Workers that are to be sent the model whole next.
    evaluation_due : callable () -> bool, or None
        Whether the version just made is to be evaluated before the answer goes on; see
        `Engine.pause_for_evaluations`.
    measuring_part : str or None
        Domain of the part that waits for `Measured`.
    drain, move : Drain and Move, or None
        A switch and a re-assignment under way.
    composition_id : int
        Rises with every hand-over.
    handed_over : int
        The version of the last hand-over.
    """

    def __init__(
        self, view: ClusterView, wire_size: WireSize, rule: Switching | None, log: EventLog | None
    ) -> None:
        self.view, self.rule, self.log = view, rule, log
        self._wire_size = wire_size
        self.todo: deque[Action] = deque()
        self.out: list[Action] = []
        self.unanswered: set[int] = set()
        self.needs_full_model: set[int] = set()
        self.measuring_part: str | None = None
        self.evaluation_due: Callable[[], bool] | None = None
        self.drain: Drain | None = None
        self.migration: Migration | None = None
        self.composition_id = 0
        self.handed_over = 0

    def install(self, now: Strategy, momentum_scale: Callable[[int, int], float] | None) -> None:
        """Answer for this composition from now on; what every update needs of it is looked up once."""
        self.composition = now
        self._on_commit: Hook = now.aggregation.on_commit
        self._by_share = now.lr_scaling == "by_share"
        self._momentum_scale = momentum_scale
        self._own_steps = now.own_steps
        self._always_send = now.placement.collective or self._own_steps
        self._replies_aggregate = now.aggregation.reply == "aggregate"
        self.hold_ranges(now.placement.ranges(self._wire_size.layout))
        own_rate = type(now.communication).rate_epoch is not Communication.rate_epoch
        self._rate_epoch = now.communication.rate_epoch if own_rate else None
        watchers: list[Part] = [now.communication, now.stragglers]
        if self.rule is not None:
            watchers.append(self.rule)
        movers = [now.placement] if now.placement.moves else []
        self._after_apply: list[Hook] = defined("on_applied", *watchers, *movers)
        self._order_hooks: list[Any] = defined("on_release", now.communication, now.stragglers)

    def commit(self, commit: act.Commit) -> None:
        """Have these pushes become a version in the way that the aggregation says."""
        if not commit.pushes:
            raise ProtocolError("a commit needs at least one push")
        actions = self._on_commit(commit.pushes, self.view)
        if not actions:
            raise ProtocolError(f"{self.composition.aggregation.name!r} answers a commit with nothing")
        self.todo.extendleft(reversed(actions))

    def apply(self, apply: act.Apply) -> None:
        """Make the next version; the pushes in it are pending no longer."""
        view, log, pushes = self.view, self.log, apply.pushes
        count, pending = len(pushes), view.pending
        if len(apply.weights) != count:
            raise ProtocolError(f"{count} pushes are applied with {len(apply.weights)} weights")
        apply.version = view.version = version = view.version + 1
        apply.epoch = view.samples / view.dataset_size if self._rate_epoch is None else self._rate_epoch(view)
        apply.lr_scale = count / view.num_workers if self._by_share else 1.0
        if self._momentum_scale is not None:
            apply.momentum_scale = self._momentum_scale(version - 1 - self.handed_over, view.num_workers)
        self.out.append(apply)
        view.committed += count
        for push, weight in zip(pushes, apply.weights):  # noqa: B905  (checked above; strict costs as much)
            if pending.pop(push.id, None) is None:
                raise ProtocolError(f"push {push.id} is committed twice, or was discarded before")
            view.samples += push.samples
            if log is not None:
                # fmt: off
                log.append(pack_apply(
                    view.now, _APPLY, push.worker, push.id, version, push.samples, push.steps, weight
                ))
                # fmt: on
        for hook in self._after_apply:  # first in line: a switch withholds the releases that follow
            self.todo.extendleft(reversed(hook(view)))
        due = self.evaluation_due
        if due is not None and self.rule is not None and self.rule.awaits_evaluation and due():
            self.measuring_part = EVALUATION

    def release(self, release: act.Release) -> None:
        """Let a worker go on, unless a switch or a re-assignment withholds it."""
        view, number = self.view, release.worker
        worker = view.workers[number]
        status = worker.status
        if status is COMPUTING or status is GONE:
            if worker.dropped:
                return  # by a part that was asked before the one that releases
            raise ProtocolError(f"worker {number} was released, but it is {status.name.lower()}")
        step = release.then == "step"
        if not step and status is not VOTED:
            raise ProtocolError(f"worker {release.worker} was told to push, but it has not voted")
        if self.drain is not None and step:
            if not worker.overlapping:
                self.withhold(number, self.drain)
                return
            release.orders = release.orders | {"push": True}  # its steps since the last push are not lost
        self.unanswered.discard(number)
        for hook in self._order_hooks:
            release.orders = {**release.orders, **hook(number, view)}
        orders = release.orders
        if orders and "batch_size" in orders:
            worker.batch_size = orders["batch_size"]
        release.ticket = worker.ticket = worker.ticket + 1
        worker.status = COMPUTING
        worker.overlapping = False
        worker.hold_reason = ""
        view.num_computing += 1
        voted = status is VOTED
        release.load = load = view.version if step and not voted else worker.base_version
        release.send = not voted and (
            self._always_send or worker.base_version != load or number in self.needs_full_model
        )
        worker.base_version = load
        kept = 0
        if voted or self._own_steps:
            kept = self._complete_for_own_steps(release, worker, status)
        if self.migration is not None and step:
            self.migration.withhold(release, kept, voted)
            worker.hold_reason = REASSIGNMENT
            self.record(Kind.HOLD, worker=number, text=REASSIGNMENT)
        else:
            self._let_go(release, kept)

    def _let_go(self, release: act.Release, kept: int) -> None:
        """Hand out a release that is complete."""
        worker, size = release.worker, 0
        if release.send:
            size = self._bytes_down
            if worker in self.needs_full_model:
                self.needs_full_model.discard(worker)
                size = self._first_bytes_down
        self.out.append(release)
        log = self.log
        if log is not None:
            text = log.number(plain_json(release.orders)) if release.orders else 0
            told = 0 if release.then == "step" else 1
            load = release.load
            log.append(pack_release(self.view.now, _RELEASE, worker, told, load, kept, size, text))

    def _complete_for_own_steps(self, release: act.Release, worker: WorkerView, status: Status) -> int:
        """Say what a worker that steps by itself needs: the rate's epoch, and what kind of answer it gets.

        Returns the samples of a vote's steps that it keeps: they are progress without a push.
        """
        view, kept = self.view, 0
        if status is VOTED:
            view.num_voted -= 1
            kept = worker.voted_samples if release.then == "step" else 0
            view.samples += kept
            worker.voted_samples = 0
            if kept and self.rule is not None:  # progress without a version
                self.todo.extendleft(reversed(self.rule.on_applied(view)))
        has_model = status is PUSHED and worker.id not in self.needs_full_model
        release.aggregate = self._replies_aggregate and release.send and has_model
        release.epoch = view.epoch if self._rate_epoch is None else self._rate_epoch(view)
        return kept

    def hold(self, hold: act.Hold) -> None:
        """Let a worker wait."""
        number, log = hold.worker, self.log
        if not hold.reason:
            raise ProtocolError(f"worker {number} is held without a reason")
        worker = self.view.workers[number]
        status = worker.status
        if worker.dropped:
            return
        if status is COMPUTING or status is GONE:
            raise ProtocolError(f"worker {number} is held, but it is {status.name.lower()}")
        self.unanswered.discard(number)
        worker.hold_reason = hold.reason
        self.out.append(hold)
        if log is not None:
            text = log.number(hold.reason)
            log.append(pack_release(self.view.now, _HOLD, number, 0, 0, 0, 0, text))

    def withhold(self, worker: int, drain: Drain) -> None:
        """Let a worker wait for the hand-over."""
        if worker not in drain.parked:
            drain.parked.add(worker)
            self.hold(act.Hold(worker, "switch"))
        self.unanswered.discard(worker)

    def cancel(self, cancel: act.Cancel) -> None:
        """Make void what a worker computes; it must be answered."""
        worker = self.view.workers[cancel.worker]
        if worker.status != Status.COMPUTING:
            raise ProtocolError(f"worker {cancel.worker} was cancelled, but it does not compute")
        worker.status = Status.PUSHED
        worker.ticket += 1  # what it still sends carries the old one and is void
        self.view.num_computing -= 1
        self.view.cancelled += 1
        self.unanswered.add(cancel.worker)
        self.out.append(cancel)
        self.record(Kind.CANCEL, worker=cancel.worker)

    def discard(self, discard: act.Discard) -> None:
        """Drop a push that is pending."""
        push = discard.push
        if self.view.pending.pop(push.id, None) is None:
            raise ProtocolError(f"push {push.id} is discarded, but it is not pending")
        self.view.discarded += 1
        self.out.append(discard)
        self.record(Kind.DISCARD, worker=push.worker, id=push.id, text=discard.reason)

    def tell(self, tell: act.Tell) -> None:
        """Send orders, after the release if that is withheld."""
        if self.migration is not None and self.migration.withholds(tell.worker, self.view):
            self.migration.withhold_orders(tell)
            return
        if "batch_size" in tell.orders:
            self.view.workers[tell.worker].batch_size = tell.orders["batch_size"]
        self.out.append(tell)
        self.record(Kind.TELL, worker=tell.worker, text=plain_json(tell.orders))

    def measure(self, measure: act.Measure) -> None:
        """Ask for numbers; the rest of the answer waits for them."""
        if not hasattr(getattr(self.composition, measure.domain, None), "on_measured"):
            raise ProtocolError(f"{measure.domain!r} asks for numbers, but has no on_measured to take them")
        self.measuring_part = measure.domain
        self.out.append(measure)
        self.record(Kind.MEASURE, text=plain_json([measure.domain, measure.needs]))

    def set_timer(self, wake: act.SetTimer) -> None:
        """Ask for a timer."""
        if not wake.at >= self.view.now:
            raise ProtocolError(f"asked to be woken at {wake.at} s, but it is {self.view.now} s already")
        wake.composition_id = self.composition_id
        self.out.append(wake)
        self.record(Kind.SET_TIMER, compute_s=wake.at, text=wake.key)

    def note(self, note: act.Note) -> None:
        """Write a line in the log."""
        self.out.append(note)
        self.record(Kind.NOTE, text=note.text)

    def reassign(self, change: act.Reassign) -> None:
        """Have parameters move when no message is under way; not at all if a switch is."""
        if self.drain is None and self.migration is None:
            self.migration = move = Migration(change)
            if move.is_quiet(self.view):
                self._carry_out(move)

    def advance_migration(self, move: Migration) -> None:
        """See to those who might never push; with no message under way, have parameters move."""
        self.todo.extend(move.sweep(self.view, self.composition))
        if not self.todo and move.is_quiet(self.view):
            self._carry_out(move)

    def _carry_out(self, move: Migration) -> None:
        view, ranges = self.view, move.change.ranges
        told = {"moved": sum(lost_entries(view.ranges, ranges)), "ranges": ranges}
        self.out.append(move.change)
        self.record(Kind.REASSIGN, version=view.version, text=plain_json(told))
        self.hold_ranges(ranges)
        if not self._replies_aggregate:
            self.needs_full_model.update(view.active)
        self.end_migration()

    def end_migration(self) -> None:
        """Send what was withheld, as of now."""
        move, self.migration = self.migration, None
        if move is None:
            return
        tells = move.tells(self.view)
        for release, kept in move.completed(self.view):
            self._let_go(release, kept)
        for tell in tells:
            self.tell(tell)

    def hold_ranges(self, ranges: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Know what each server holds from now on, and what messages take that way."""
        self.view.ranges = ranges
        self._wire_size = size = self._wire_size._replace(ranges=ranges)
        now, n = self.composition, self.view.num_workers
        self._bytes_down, self._first_bytes_down = (
            now.bytes_down(size, n),
            now.bytes_down(size, n, whole=True),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what lasts from one answer to the next as plain data."""
        return {
            "drain": self.drain.state_dict() if self.drain is not None else None,
            "migration": self.migration.state_dict() if self.migration is not None else None,
            "needs_full_model": sorted(self.needs_full_model),
            "composition_id": self.composition_id,
            "handed_over": self.handed_over,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state written by `state_dict`."""
        state = current_names(state, _RENAMED)
        self.drain = Drain.of_state(state["drain"]) if state["drain"] else None
        self.migration = Migration.of_state(state["migration"]) if state["migration"] else None
        self.needs_full_model = set(state["needs_full_model"])
        self.composition_id = state["composition_id"]
        self.handed_over = state["handed_over"]
        self.unanswered.clear()

    def record(self, kind: Kind, **columns: Any) -> None:
        """Write a row, if there is a log."""
        if self.log is not None:
            self.log.add(kind, self.view.now, **columns)


def defined(hook: str, *parts: Part) -> list[Hook]:
    """Return the bound hooks of the parts whose class defines one itself: the others cost nothing."""
    found = []
    for part in parts:
        base = next(c for c in type(part).__mro__ if c.__bases__ == (Part,))
        if getattr(type(part), hook) is not getattr(base, hook):
            found.append(getattr(part, hook))
    return found
