"""The engine: joins the parts, keeps the view, and answers events with actions.

It knows the kinds of action and no strategy. It is pure: no clock, no I/O, no threads, no tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.drain import Drain
from psbench.core.log import EventLog, Kind, pack_apply, pack_release, pack_row, plain_json
from psbench.core.move import WITHHELD, Move, lost_entries
from psbench.core.part import Communication, Part, Switching
from psbench.core.strategy import AnyStrategy, Strategy, SwitchingStrategy, WireSize
from psbench.core.view import ClusterView, Status, WorkerView
from psbench.errors import ProtocolError, UnansweredWorker

Hook = Callable[..., list[Action]]

# plain names for what every push needs: looking up a member of an enumeration costs more than using it
COMPUTING, PUSHED, VOTED, GONE = Status.COMPUTING, Status.PUSHED, Status.VOTED, Status.GONE
NEW = Status.NEW
_FORGOTTEN = "what codecs had not sent yet is forgotten: it belongs to {}s, and what is pushed now is {}"
_PUSH, _APPLY, _RELEASE, _HOLD = map(int, (Kind.PUSH, Kind.APPLY, Kind.RELEASE, Kind.HOLD))


class Engine:
    """One run's decisions.

    Parameters
    ----------
    strategy : Strategy or SwitchingStrategy
    num_workers : int
        Size of the cluster in the specification.
    dataset_size, global_batch : int, samples
    epochs : float or None
        The stop rule's epochs, which "after alpha % of the epochs" needs.
    batch_sizes : list of int
        Samples per step of each worker at the beginning.
    wire_size : WireSize or None
        What the model has to be written on the wire, for the log's bytes.
    rate : callable epoch -> float, or None
        The optimizer's rate; None is a constant.
    rng : numpy Generator
        The strategy's own stream of chance.
    log : EventLog or None
        Where events and actions are recorded; None records nothing.

    Examples
    --------
    >>> from psbench import strategies
    >>> engine = Engine(strategies.asp(), num_workers=1, dataset_size=100, global_batch=10)
    >>> [type(action).__name__ for action in engine.begin([0])]
    ['Release']
    """

    def __init__(
        self,
        strategy: AnyStrategy,
        *,
        num_workers: int,
        dataset_size: int = 1,
        global_batch: int = 1,
        epochs: float | None = None,
        batch_sizes: Iterable[int] = (),
        wire_size: WireSize | None = None,
        rate: Callable[[float], float] | None = None,
        rng: np.random.Generator | None = None,
        log: EventLog | None = None,
    ) -> None:
        self.strategy = strategy
        self._wire_size = wire_size or WireSize()
        self.view = ClusterView(num_workers, dataset_size, global_batch, epochs)
        self.view.layout = self._wire_size.layout
        if rate is not None:
            self.view.rate = rate
        if rng is not None:
            self.view.rng = rng
        self.log = log
        self._batch_sizes = list(batch_sizes) or [max(1, global_batch // num_workers)] * num_workers
        self._todo: deque[Action] = deque()
        self._comings: deque[act.Drop | act.Readmit] = deque()  # wait until the rest of the answer is done
        self._out: list[Action] = []
        self._unanswered: set[int] = set()
        self._inbox: deque[ev.Event] = deque()
        self._asker: str | None = None  # who waits for `Measured`
        self._drain: Drain | None = None  # while a switch is under way
        self._move: Move | None = None  # while a re-assignment is
        self._anew: set[int] = set()  # workers that are to be sent the model whole next
        self._composition_id = 0  # rises with every hand-over
        self._handed_over = 0  # the version of the last hand-over
        self.rule: Switching | None = None
        if isinstance(strategy, SwitchingStrategy):
            self.rule = strategy.rule.fresh()
        self._install(0)

    # ---------------------------------------------------------------- what a backend calls

    def begin(self, workers: Iterable[int], now: float = 0.0) -> list[Action]:
        """Let these workers begin; the first call, before any event."""
        view = self.view
        view.now = now
        for worker in sorted(workers):
            self._enter(worker)
            self._record(Kind.JOIN, worker=worker)
        if self.rule is not None:
            self._todo.extend(self.rule.start(view))
        self._start_parts()
        return self._finish()

    def handle(self, event: ev.Event, now: float) -> list[Action]:
        """Take one event at time `now` (seconds of the run) and return the actions to perform, in order.

        While numbers are being measured, events wait inside; the answer to `Measured` includes theirs.

        Raises
        ------
        UnansweredWorker
            If the parts neither release nor hold a worker that spoke.
        ProtocolError
            If an action makes no sense, such as releasing a worker that computes.
        """
        view = self.view
        view.now = now
        if self._asker is not None and type(event) is not ev.Measured:
            self._inbox.append(event)
            return []
        view.min_clock_rose = False
        _EVENTS[type(event)](self, event)
        out = self._finish()
        while self._inbox and self._asker is None:
            view.min_clock_rose = False
            waiting = self._inbox.popleft()
            _EVENTS[type(waiting)](self, waiting)
            out = out + self._finish()
        return out

    def resume(self, spared: Iterable[int] = (), epochs: float | None = None) -> list[Action]:
        """Go on from a loaded state: what was under way is void, and who was computing begins anew.

        Workers that are `spared` have a release of the last answer still before them, and nobody who waits
        has lost anything but the model, which it is sent again. `epochs` are those of the stop rule from now
        on. If nothing is void, and no switch rule goes by the epochs, nothing is recorded.
        """
        view, own = self.view, set(spared)
        others = [w for w in view.workers.values() if w.id not in own and w.status is not GONE]
        void = self._move is not None or any(w.base_version >= 0 or w.goes_on for w in others)
        other_epochs = epochs != view.epochs and self.rule is not None and self.rule.needs_epochs
        if void or other_epochs:
            told = {"spared": sorted(own), "epochs": [view.epochs, epochs]}
            self._record(Kind.RESUME, version=view.version, text=plain_json(told))
        view.epochs = epochs
        for worker in others:
            worker.base_version, worker.goes_on = -1, False
            if worker.status in (COMPUTING, VOTED):
                self._begin_anew(worker)
        return self._finish()

    def _begin_anew(self, worker: WorkerView) -> None:
        view = self.view
        view.num_computing -= worker.status is COMPUTING
        view.num_voted -= worker.status is VOTED
        view.cancelled += 1
        worker.status, worker.voted_samples = NEW, 0
        worker.ticket += 1
        self._unanswered.add(worker.id)
        self._record(Kind.CANCEL, worker=worker.id)
        self._todo.append(act.Release(worker.id))

    @property
    def measuring(self) -> bool:
        """Whether numbers were asked for that have not come: events wait, the state cannot be written."""
        return self._asker is not None

    # ---------------------------------------------------------------- events

    def _push(self, push: ev.Push) -> None:
        view, log = self.view, self.log
        worker = view.workers[push.worker]
        if worker.ticket != push.ticket or worker.status is not COMPUTING:
            self._void(push.worker, push.ticket, "push")
            return
        if log is not None:
            text = 0 if push.stats is None and not push.goes_on else log.number(_told(push))
            # fmt: off
            log.append(pack_row(
                view.now, _PUSH, push.worker, push.id, push.base_version, push.samples, push.steps,
                push.bytes, push.compute_s, push.send_s, push.loss, text,
            ))
            # fmt: on
        worker.status = PUSHED
        worker.goes_on = push.goes_on
        worker.previous_push_s, worker.last_push_s = worker.last_push_s, view.now
        view.move_clock(worker, worker.clock + 1)
        view.num_computing -= 1
        view.pushes += 1
        view.pending[push.id] = push
        self._unanswered.add(push.worker)
        todo = self._todo
        for hook in self._before_push:
            todo.extend(hook(push, view))
        todo.extend(self._on_push(push, view))

    def _vote(self, vote: ev.Vote) -> None:
        worker = self.view.workers[vote.worker]
        if worker.ticket != vote.ticket or worker.status != Status.COMPUTING:
            self._void(vote.worker, vote.ticket, "vote")
            return
        # the text keeps all digits, which a replay needs to decide the same
        told = {"samples": vote.samples, "compute_s": vote.compute_s, "loss": vote.value}
        self._record(Kind.VOTE, worker=vote.worker, text=plain_json(vote.value), **told)
        worker.status = Status.VOTED
        worker.voted_samples = vote.samples
        self.view.num_computing -= 1
        self.view.num_voted += 1
        self._unanswered.add(vote.worker)
        if self._drain is not None:
            self._todo.append(act.Release(vote.worker, then="push"))
        else:
            self._todo.extend(self.composition.communication.on_vote(vote, self.view))

    def _report(self, report: ev.Report) -> None:
        worker = self.view.workers[report.worker]
        if worker.ticket != report.ticket or worker.status != Status.COMPUTING:
            self._void(report.worker, report.ticket, "report")
            return
        self._record(Kind.REPORT, worker=report.worker, text=plain_json(report.stats))
        self._todo.extend(self.composition.stragglers.on_report(report, self.view))

    def _join(self, join: ev.Join) -> None:
        self._enter(join.worker)
        self._record(Kind.JOIN, worker=join.worker)
        self._welcome(join.worker)

    def _welcome(self, worker: int) -> None:
        if self._drain is not None:
            self._withhold(worker, self._drain)
        else:
            self._todo.extend(self.composition.consistency.on_join(worker, self.view))

    def _leave(self, leave: ev.Leave) -> None:
        worker = self.view.workers[leave.worker]
        if worker.status == Status.GONE and not worker.dropped:
            return
        self._record(Kind.LEAVE, worker=leave.worker, text=leave.reason)
        if worker.dropped:
            worker.dropped = False  # nobody is to take it back
        else:
            self._do_without(worker)

    def _do_without(self, worker: WorkerView) -> None:
        view = self.view
        if worker.status == Status.COMPUTING:
            view.num_computing -= 1
            has_begun = self._move is None or not self._move.withholds(worker.id, view)
            view.cancelled += has_begun
        elif worker.status == Status.VOTED:
            view.num_voted -= 1
        worker.status = Status.GONE
        worker.hold_reason = ""
        worker.goes_on = False
        view.num_active -= 1
        view.leave_clock(worker)
        if self._drain is not None:
            self._drain.parked.discard(worker.id)
        self._unanswered.discard(worker.id)
        if view.num_active:
            self._todo.extend(self.composition.communication.on_leave(worker.id, view))
            self._todo.extend(self.composition.consistency.on_leave(worker.id, view))
        else:
            self._take_back()  # nobody else is left

    def _timer(self, timer: ev.Timer) -> None:
        self._record(Kind.TIMER, text=timer.key, id=timer.composition_id)
        if timer.composition_id == self._composition_id:
            self._todo.extend(self.composition.consistency.on_timer(timer.key, self.view))
            self._todo.extend(self.composition.stragglers.on_timer(timer.key, self.view))
        if self.rule is not None:
            self._todo.extend(self.rule.on_timer(timer.key, self.view))

    def _measured(self, measured: ev.Measured) -> None:
        self._record(Kind.MEASURED, text=plain_json(measured.facts))
        asker, self._asker = self._asker, None
        if asker is None:
            raise ProtocolError("numbers arrived that nobody asked for")
        part: Any = getattr(self.composition, asker)
        self._todo.extendleft(reversed(part.on_measured(measured.facts, self.view)))

    def _evaluated(self, event: ev.Evaluated) -> None:
        self._record(Kind.EVALUATED, id=event.epoch, version=event.version, text=plain_json(event.values))
        if self.rule is not None:
            self._todo.extend(self.rule.on_evaluated(event, self.view))

    def _asked(self, event: ev.Asked) -> None:
        self._record(Kind.ASKED, id=-1 if event.to is None else event.to)
        last = len(self.strategy.compositions) - 1
        if self.rule is None:
            self._todo.append(act.Note("asked to switch, but this strategy has nothing to switch to"))
        elif event.to is not None and not 0 <= event.to <= last:
            self._todo.append(act.Note(f"asked to switch to {event.to}, but there are only 0 to {last}"))
        elif self._drain is not None:
            self._todo.append(act.Note("asked to switch, but a switch is under way"))
        else:
            self._todo.extend(self.rule.on_asked(event, self.view))

    def _void(self, worker: int, ticket: int, what: str) -> None:
        self._record(Kind.VOID, worker=worker, id=ticket, text=what)

    def _enter(self, worker: int) -> None:
        view = self.view
        old = view.workers.get(worker)
        if old is not None and old.status != Status.GONE:
            raise ProtocolError(f"worker {worker} joined, but it is already here")
        view.workers[worker] = new = WorkerView(
            worker, ticket=old.ticket if old else 0, batch_size=self._first_batch(worker)
        )
        view.enter_clock(new)
        view.num_active += 1
        self._unanswered.add(worker)
        self._anew.add(worker)

    def _first_batch(self, worker: int) -> int:
        sizes = self._batch_sizes
        return sizes[worker % len(sizes)]

    # ---------------------------------------------------------------- actions

    def _finish(self) -> list[Action]:
        """Complete the actions of the answer; stop where numbers must be measured first."""
        todo = self._todo
        while self._asker is None:
            if not todo and self._comings:
                self._come_or_go(self._comings.popleft())
                continue
            if not todo and self._drain is not None:
                self._drain_further(self._drain)
            if not todo and self._move is not None:
                self._move_further(self._move)
            if not todo:
                break
            action = todo.popleft()
            _ACTIONS[type(action)](self, action)
        if self._asker is None and self._unanswered:
            workers = sorted(self._unanswered)
            raise UnansweredWorker(
                f"workers {workers} were neither released nor held by {self.composition.consistency.name!r}; "
                "every worker that pushes, votes or joins needs a Release or a Hold in the same answer"
            )
        out, self._out = self._out, []
        return out

    def _commit(self, commit: act.Commit) -> None:
        if not commit.pushes:
            raise ProtocolError("a commit needs at least one push")
        actions = self._on_commit(commit.pushes, self.view)
        if not actions:
            raise ProtocolError(f"{self.composition.aggregation.name!r} answers a commit with nothing")
        self._todo.extendleft(reversed(actions))

    def _apply(self, apply: act.Apply) -> None:
        view, log, pushes = self.view, self.log, apply.pushes
        count, pending = len(pushes), view.pending
        if len(apply.weights) != count:
            raise ProtocolError(f"{count} pushes are applied with {len(apply.weights)} weights")
        apply.version = view.version = version = view.version + 1
        apply.epoch = view.samples / view.dataset_size if self._rate_epoch is None else self._rate_epoch(view)
        apply.lr_scale = count / view.num_workers if self._by_share else 1.0
        if self._momentum_scale is not None:
            apply.momentum_scale = self._momentum_scale(version - 1 - self._handed_over, view.num_workers)
        self._out.append(apply)
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
            self._todo.extendleft(reversed(hook(view)))

    def _release(self, release: act.Release) -> None:
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
        if self._drain is not None and step:
            if not worker.goes_on:
                self._withhold(number, self._drain)
                return
            release.orders = release.orders | {"push": True}  # its steps since the last push are not lost
        self._unanswered.discard(number)
        for hook in self._order_hooks:
            release.orders = {**release.orders, **hook(number, view)}
        orders = release.orders
        if orders and "batch_size" in orders:
            worker.batch_size = orders["batch_size"]
        release.ticket = worker.ticket = worker.ticket + 1
        worker.status = COMPUTING
        worker.goes_on = False
        worker.hold_reason = ""
        view.num_computing += 1
        voted = status is VOTED
        release.load = load = view.version if step and not voted else worker.base_version
        release.send = not voted and (
            self._always_send or worker.base_version != load or number in self._anew
        )
        worker.base_version = load
        kept = 0
        if voted or self._own_steps:
            kept = self._complete_for_own_steps(release, worker, status)
        if self._move is not None and step:
            self._withhold_release(self._move, release, kept, voted)
        else:
            self._let_go(release, kept)

    def _let_go(self, release: act.Release, kept: int) -> None:
        """Hand out a release that is complete."""
        worker, size = release.worker, 0
        if release.send:
            size = self._bytes_down
            if worker in self._anew:
                self._anew.discard(worker)
                size = self._first_bytes_down
        self._out.append(release)
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
                self._todo.extendleft(reversed(self.rule.on_applied(view)))
        has_model = status is PUSHED and worker.id not in self._anew
        release.aggregate = self._replies_aggregate and release.send and has_model
        release.epoch = view.epoch if self._rate_epoch is None else self._rate_epoch(view)
        return kept

    def _hold(self, hold: act.Hold) -> None:
        number, log = hold.worker, self.log
        if not hold.reason:
            raise ProtocolError(f"worker {number} is held without a reason")
        worker = self.view.workers[number]
        status = worker.status
        if worker.dropped:
            return
        if status is COMPUTING or status is GONE:
            raise ProtocolError(f"worker {number} is held, but it is {status.name.lower()}")
        self._unanswered.discard(number)
        worker.hold_reason = hold.reason
        self._out.append(hold)
        if log is not None:
            text = log.number(hold.reason)
            log.append(pack_release(self.view.now, _HOLD, number, 0, 0, 0, 0, text))

    def _cancel(self, cancel: act.Cancel) -> None:
        worker = self.view.workers[cancel.worker]
        if worker.status != Status.COMPUTING:
            raise ProtocolError(f"worker {cancel.worker} was cancelled, but it does not compute")
        worker.status = Status.PUSHED
        worker.ticket += 1  # what it still sends carries the old one and is void
        self.view.num_computing -= 1
        self.view.cancelled += 1
        self._unanswered.add(cancel.worker)
        self._out.append(cancel)
        self._record(Kind.CANCEL, worker=cancel.worker)

    def _postpone(self, change: act.Drop | act.Readmit) -> None:
        self._comings.append(change)  # the parts have answered for those who were there

    def _come_or_go(self, change: act.Drop | act.Readmit) -> None:
        if isinstance(change, act.Drop):
            self._drop(change)
        else:
            self._readmit(change)

    def _drop(self, drop: act.Drop) -> None:
        worker = self.view.workers[drop.worker]
        if worker.status is GONE or self.view.num_active == 1:
            return  # by another part, or with the others: whoever asked could not know
        worker.ticket += 1  # what it still sends is void
        worker.dropped = True
        self._out.append(drop)
        self._record(Kind.DROP, worker=drop.worker, text=drop.reason)
        self._do_without(worker)

    def _take_back(self) -> None:
        self._comings.extend(act.Readmit(w.id) for w in self.view.workers.values() if w.dropped)

    def _readmit(self, readmit: act.Readmit) -> None:
        if not self.view.workers[readmit.worker].dropped:
            return  # it has died since
        self._out.append(readmit)
        self._record(Kind.READMIT, worker=readmit.worker)
        self._enter(readmit.worker)
        self._welcome(readmit.worker)

    def _discard(self, discard: act.Discard) -> None:
        push = discard.push
        if self.view.pending.pop(push.id, None) is None:
            raise ProtocolError(f"push {push.id} is discarded, but it is not pending")
        self.view.discarded += 1
        self._out.append(discard)
        self._record(Kind.DISCARD, worker=push.worker, id=push.id, text=discard.reason)

    def _tell(self, tell: act.Tell) -> None:
        if self._move is not None and self._move.withholds(tell.worker, self.view):
            self._move.withhold_orders(tell)
            return
        if "batch_size" in tell.orders:
            self.view.workers[tell.worker].batch_size = tell.orders["batch_size"]
        self._out.append(tell)
        self._record(Kind.TELL, worker=tell.worker, text=plain_json(tell.orders))

    def _measure(self, measure: act.Measure) -> None:
        if not hasattr(getattr(self.composition, measure.asker, None), "on_measured"):
            raise ProtocolError(f"{measure.asker!r} asks for numbers, but has no on_measured to take them")
        self._asker = measure.asker
        self._out.append(measure)
        self._record(Kind.MEASURE, text=plain_json([measure.asker, measure.needs]))

    def _wake(self, wake: act.Wake) -> None:
        if not wake.at >= self.view.now:
            raise ProtocolError(f"asked to be woken at {wake.at} s, but it is {self.view.now} s already")
        wake.composition_id = self._composition_id
        self._out.append(wake)
        self._record(Kind.WAKE, compute_s=wake.at, text=wake.key)

    def _note(self, note: act.Note) -> None:
        self._out.append(note)
        self._record(Kind.NOTE, text=note.text)

    # ---------------------------------------------------------------- switching

    def _switch(self, switch: act.SwitchTo) -> None:
        """Begin to drain: withhold every step from now on; nothing to do if that is under way or in force."""
        if not 0 <= switch.to < len(self.strategy.compositions):
            raise ProtocolError(f"there is no composition {switch.to} to switch to")
        if self._drain is None and switch.to != self.view.composition:
            self._end_move()  # the next composition begins with an assignment of its own
            self._drain = Drain(switch)

    def _withhold(self, worker: int, drain: Drain) -> None:
        if worker not in drain.parked:
            drain.parked.add(worker)
            self._hold(act.Hold(worker, "switch"))
        self._unanswered.discard(worker)

    def _drain_further(self, drain: Drain) -> None:
        actions = drain.further(self.view, self.composition)
        self._todo.extend(actions)
        if not (actions or self.view.num_under_way):
            self._drain = None
            self._hand_over(drain.switch)

    def _hand_over(self, switch: act.SwitchTo) -> None:
        view, strategy = self.view, self.strategy
        assert isinstance(strategy, SwitchingStrategy)
        forgets = strategy.momentum == "zero"
        handover = act.Handover(view.composition, switch.to, switch.reason, forgets, strategy.cost_s)
        self._out.append(handover)
        self._record(
            *(Kind.HANDOVER,), id=switch.to, version=view.version, steps=view.composition,
            compute_s=strategy.cost_s, text=switch.reason,
        )  # fmt: skip
        before = self.composition
        self._install(switch.to)
        self._handed_over = view.version
        if self.composition.forgets_unsaid(before):
            self._note(
                act.Note(_FORGOTTEN.format(before.aggregation.payload, self.composition.aggregation.payload))
            )
        here = [w.clock for w in view.workers.values() if w.status != Status.GONE]
        clock = max(here, default=view.min_clock)  # all may have gone while the last of them drained
        for worker in view.workers.values():
            if worker.status != Status.GONE:
                worker.status = Status.NEW
                worker.base_version = -1  # what it holds may be another kind of state: it is sent the model
                self._anew.add(worker.id)  # whole, as nobody knows what another composition's codec left it
                worker.batch_size = self._first_batch(worker.id)  # what a straggler part ordered was its own
                view.move_clock(worker, clock)
                self._unanswered.add(worker.id)
        self._composition_id += 1
        self._start_parts()
        self._take_back()  # whom the old parts did without

    # ---------------------------------------------------------------- moving parameters

    def _reassign(self, change: act.Reassign) -> None:
        """Have parameters move when no message is under way; not at all if a switch is."""
        if self._drain is None and self._move is None:
            self._move = move = Move(change)
            if move.is_quiet(self.view):
                self._carry_out(move)

    def _move_further(self, move: Move) -> None:
        self._todo.extend(move.sweep(self.view, self.composition))
        if not self._todo and move.is_quiet(self.view):
            self._carry_out(move)

    def _withhold_release(self, move: Move, release: act.Release, kept: int, voted: bool) -> None:
        move.withhold(release, kept, voted)
        self.view.workers[release.worker].hold_reason = WITHHELD
        self._record(Kind.HOLD, worker=release.worker, text=WITHHELD)

    def _carry_out(self, move: Move) -> None:
        view, ranges = self.view, move.change.ranges
        told = {"moved": sum(lost_entries(view.ranges, ranges)), "ranges": ranges}
        self._out.append(move.change)
        self._record(Kind.REASSIGN, version=view.version, text=plain_json(told))
        self._hold_ranges(ranges)
        if not self._replies_aggregate:
            self._anew.update(view.active)
        self._end_move()

    def _end_move(self) -> None:
        """Send what was withheld, as of now."""
        move, self._move = self._move, None
        if move is None:
            return
        releases, tells = move.releases(self.view), move.tells(self.view)
        for release, kept, voted in releases:
            worker = self.view.workers[release.worker]
            worker.hold_reason = ""
            if not voted:
                release.load = worker.base_version = self.view.version
                release.send = True
            self._let_go(release, kept)
        for tell in tells:
            self._tell(tell)

    def _hold_ranges(self, ranges: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Know what each server holds from now on, and what messages take that way."""
        self.view.ranges = ranges
        self._wire_size = size = self._wire_size._replace(ranges=ranges)
        now, n = self.composition, self.view.num_workers
        self._bytes_down, self._first_bytes_down = (
            now.bytes_down(size, n),
            now.bytes_down(size, n, whole=True),
        )

    # ---------------------------------------------------------------- parts

    def _install(self, index: int) -> None:
        """Make the parts of a composition anew and bind the hooks they define, once."""
        given: Strategy = self.strategy.compositions[index]
        self.composition = given.model_copy(update={p.domain: p.fresh() for p in given.parts})
        self.view.composition = index
        now = self.composition
        self._on_push: Hook = now.consistency.on_push
        self._on_commit: Hook = now.aggregation.on_commit
        self._by_share = now.lr_scaling == "by_share"
        self._momentum_scale = self.strategy.momentum_scale_of(index)
        self._own_steps = now.own_steps
        self._always_send = now.placement.collective or self._own_steps
        self._replies_aggregate = now.aggregation.reply == "aggregate"
        self._hold_ranges(now.placement.ranges(self._wire_size.layout))
        own_rate = type(now.communication).rate_epoch is not Communication.rate_epoch
        self._rate_epoch = now.communication.rate_epoch if own_rate else None
        watchers: list[Part] = [now.communication, now.stragglers]
        if self.rule is not None:
            watchers.append(self.rule)
        self._before_push: list[Hook] = _defined("on_push", now.stragglers, *watchers[2:])
        movers = [now.placement] if now.placement.moves else []
        self._after_apply: list[Hook] = _defined("on_applied", *watchers, *movers)
        self._order_hooks: list[Any] = _defined("on_release", now.communication, now.stragglers)

    def _start_parts(self) -> None:
        for part in self.composition.parts:
            self._todo.extend(part.start(self.view))
        self._todo.extend(self.composition.consistency.on_start(self.view))

    def _record(self, kind: Kind, **columns: Any) -> None:
        if self.log is not None:
            self.log.add(kind, self.view.now, **columns)

    # ---------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Return everything decided so far as plain data; a new engine that loads it goes on identically."""
        if self._asker is not None:
            raise ProtocolError("the state cannot be written while numbers are being measured")
        return {
            "view": self.view.state_dict(),
            "parts": {p.domain: p.state_dict() for p in self.composition.parts},
            "rule": self.rule.state_dict() if self.rule is not None else None,
            "drain": self._drain.state_dict() if self._drain is not None else None,
            "move": self._move.state_dict() if self._move is not None else None,
            "anew": sorted(self._anew),
            "composition_id": self._composition_id,
            "handed_over": self._handed_over,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state written by `state_dict` of an engine of the same strategy."""
        self.view.load_state_dict(state["view"])
        ranges = self.view.ranges
        self._install(self.view.composition)
        self._hold_ranges(ranges)
        for part in self.composition.parts:
            part.load_state_dict(state["parts"][part.domain])
        if self.rule is not None:
            self.rule.load_state_dict(state["rule"])
        self._drain = Drain.of_state(state["drain"]) if state["drain"] else None
        self._move = Move.of_state(state["move"]) if state["move"] else None
        self._anew = set(state["anew"])
        self._composition_id = state["composition_id"]
        self._handed_over = state["handed_over"]
        self._unanswered.clear()


def _told(push: ev.Push) -> str:
    """Return what a push tells beside its columns, for its row's text."""
    return plain_json((push.stats or {}) | ({"goes_on": 1.0} if push.goes_on else {}))


def _defined(hook: str, *parts: Part) -> list[Hook]:
    """Return the bound hooks of the parts whose class defines one itself: the others cost nothing."""
    found = []
    for part in parts:
        base = next(c for c in type(part).__mro__ if c.__bases__ == (Part,))
        if getattr(type(part), hook) is not getattr(base, hook):
            found.append(getattr(part, hook))
    return found


_EVENTS: dict[type, Callable[[Engine, Any], None]] = {
    ev.Push: Engine._push,
    ev.Vote: Engine._vote,
    ev.Report: Engine._report,
    ev.Join: Engine._join,
    ev.Leave: Engine._leave,
    ev.Timer: Engine._timer,
    ev.Measured: Engine._measured,
    ev.Evaluated: Engine._evaluated,
    ev.Asked: Engine._asked,
}
_ACTIONS: dict[type, Callable[[Engine, Any], None]] = {
    act.Commit: Engine._commit,
    act.Apply: Engine._apply,
    act.Release: Engine._release,
    act.Hold: Engine._hold,
    act.Cancel: Engine._cancel,
    act.Drop: Engine._postpone,
    act.Readmit: Engine._postpone,
    act.Discard: Engine._discard,
    act.Tell: Engine._tell,
    act.Measure: Engine._measure,
    act.Wake: Engine._wake,
    act.Note: Engine._note,
    act.SwitchTo: Engine._switch,
    act.Reassign: Engine._reassign,
}
