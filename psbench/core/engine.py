"""The engine: joins the parts, keeps the view, and answers events with actions.

It knows the kinds of action and no strategy. It is pure: no clock, no I/O, no threads, no tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.action_processor import (
    COMPUTING,
    EVALUATION,
    GONE,
    PUSHED,
    VOTED,
    ActionProcessor,
    Hook,
    defined,
)
from psbench.core.actions import Action
from psbench.core.drain import Drain
from psbench.core.log import EventLog, Kind, pack_row, plain_json
from psbench.core.membership import Membership
from psbench.core.part import Part
from psbench.core.parts import Switching
from psbench.core.strategy import Strategy
from psbench.core.switching_strategy import AnyStrategy, SwitchingStrategy
from psbench.core.view import ClusterView, Status
from psbench.core.wire_size import WireSize
from psbench.errors import ProtocolError, UnansweredWorker

_FORGOTTEN = "what codecs had not sent yet is forgotten: it belongs to {}s, and what is pushed now is {}"
_PUSH = int(Kind.PUSH)


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
    capacity : list of int, samples
        What each worker's memory holds beside the model; empty if that is not known.
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
        capacity: Iterable[int] = (),
        rate: Callable[[float], float] | None = None,
        rng: np.random.Generator | None = None,
        log: EventLog | None = None,
    ) -> None:
        self.strategy = strategy
        size = wire_size or WireSize()
        self.view = view = ClusterView(num_workers, dataset_size, global_batch, epochs)
        view.layout, view.capacity = size.layout, tuple(capacity)
        if rate is not None:
            view.rate = rate
        if rng is not None:
            view.rng = rng
        self.log = log
        self.rule: Switching | None = None
        if isinstance(strategy, SwitchingStrategy):
            self.rule = strategy.rule.fresh()
        self._answer = answer = ActionProcessor(view, size, self.rule, log)
        # the answer's own, which are never replaced: every push needs them
        self._todo, self._unanswered = answer.todo, answer.unanswered
        first_batches = list(batch_sizes) or [max(1, global_batch // num_workers)] * num_workers
        self._members = Membership(answer, first_batches)
        self._pending_changes = self._members.pending_changes
        self._inbox: deque[ev.Event] = deque()
        self._take = self._events()
        self._perform = self._actions()
        self._install(0)

    def _events(self) -> dict[type, Callable[[Any], None]]:
        return {
            ev.Push: self._push,
            ev.Vote: self._vote,
            ev.Report: self._report,
            ev.Join: self._members.join,
            ev.Leave: self._members.leave,
            ev.Timer: self._timer,
            ev.Measured: self._measured,
            ev.Evaluated: self._evaluated,
            ev.SwitchRequested: self._asked,
        }

    def _actions(self) -> dict[type, Callable[[Any], None]]:
        answer, pending_changes = self._answer, self._pending_changes
        return {
            act.Commit: answer.commit,
            act.Apply: answer.apply,
            act.Release: answer.release,
            act.Hold: answer.hold,
            act.Cancel: answer.cancel,
            act.Drop: pending_changes.append,
            act.Readmit: pending_changes.append,
            act.Discard: answer.discard,
            act.Tell: answer.tell,
            act.Measure: answer.measure,
            act.SetTimer: answer.set_timer,
            act.Note: answer.note,
            act.SwitchTo: self._switch,
            act.Reassign: answer.reassign,
        }

    # ---------------------------------------------------------------- what a backend calls

    def begin(self, workers: Iterable[int], now: float = 0.0) -> list[Action]:
        """Let these workers begin; the first call, before any event."""
        view = self.view
        view.now = now
        for worker in sorted(workers):
            self._members.admit(worker)
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
        waits_for = self._answer.measuring_part
        if waits_for is not None and type(event) is not (
            ev.Evaluated if waits_for == EVALUATION else ev.Measured
        ):
            self._inbox.append(event)
            return []
        view.min_clock_rose = False
        self._take[type(event)](event)
        out = self._finish()
        while self._inbox and self._answer.measuring_part is None:
            view.min_clock_rose = False
            waiting = self._inbox.popleft()
            self._take[type(waiting)](waiting)
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
        void = self._answer.migration is not None or any(w.base_version >= 0 or w.overlapping for w in others)
        other_epochs = epochs != view.epochs and self.rule is not None and self.rule.needs_epochs
        if void or other_epochs:
            told = {"spared": sorted(own), "epochs": [view.epochs, epochs]}
            self._answer.record(Kind.RESUME, version=view.version, text=plain_json(told))
        view.epochs = epochs
        for worker in others:
            worker.base_version, worker.overlapping = -1, False
            if worker.status in (COMPUTING, VOTED):
                self._members.restart(worker)
        return self._finish()

    def pause_for_evaluations(self, due: Callable[[], bool]) -> None:
        """Let an answer stop after an update whose evaluation is due, where the switch rule awaits it.

        For a backend whose evaluations take no time of the run: it gives `Evaluated` next and gets the rest
        of the answer, so that a switch is handed over at the version that was evaluated. Other events wait
        meanwhile.

        Parameters
        ----------
        due : callable () -> bool
            Whether the version just made is to be evaluated.
        """
        self._answer.evaluation_due = due

    @property
    def measuring(self) -> bool:
        """Whether numbers were asked for that have not come: events wait, the state cannot be written."""
        return self._answer.measuring_part is not None

    def state_dict(self) -> dict[str, Any]:
        """Return everything decided so far as plain data; a new engine that loads it goes on identically."""
        if self._answer.measuring_part is not None:
            raise ProtocolError("the state cannot be written while numbers are being measured")
        return {
            "view": self.view.state_dict(),
            "parts": {p.domain: p.state_dict() for p in self.composition.parts},
            "rule": self.rule.state_dict() if self.rule is not None else None,
        } | self._answer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state written by `state_dict` of an engine of the same strategy."""
        self.view.load_state_dict(state["view"])
        ranges = self.view.ranges
        self._install(self.view.composition)
        self._answer.hold_ranges(ranges)
        for part in self.composition.parts:
            part.load_state_dict(state["parts"][part.domain])
        if self.rule is not None:
            self.rule.load_state_dict(state["rule"])
        self._answer.load_state_dict(state)

    # ---------------------------------------------------------------- events

    def _push(self, push: ev.Push) -> None:
        view, log = self.view, self.log
        worker = view.workers[push.worker]
        if worker.ticket != push.ticket or worker.status is not COMPUTING:
            self._void(push.worker, push.ticket, "push")
            return
        if log is not None:
            text = 0 if push.stats is None and not push.overlapping else log.number(_told(push))
            # fmt: off
            log.append(pack_row(
                view.now, _PUSH, push.worker, push.id, push.base_version, push.samples, push.steps,
                push.bytes, push.compute_s, push.send_s, push.loss, text,
            ))
            # fmt: on
        worker.status = PUSHED
        worker.overlapping = push.overlapping
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
        self._answer.record(Kind.VOTE, worker=vote.worker, text=plain_json(vote.value), **told)
        worker.status = Status.VOTED
        worker.voted_samples = vote.samples
        self.view.num_computing -= 1
        self.view.num_voted += 1
        self._unanswered.add(vote.worker)
        if self._answer.drain is not None:
            self._todo.append(act.Release(vote.worker, then="push"))
        else:
            self._todo.extend(self.composition.communication.on_vote(vote, self.view))

    def _report(self, report: ev.Report) -> None:
        worker = self.view.workers[report.worker]
        if worker.ticket != report.ticket or worker.status != Status.COMPUTING:
            self._void(report.worker, report.ticket, "report")
            return
        self._answer.record(Kind.REPORT, worker=report.worker, text=plain_json(report.stats))
        self._todo.extend(self.composition.stragglers.on_report(report, self.view))

    def _timer(self, timer: ev.Timer) -> None:
        self._answer.record(Kind.TIMER, text=timer.key, id=timer.composition_id)
        if timer.composition_id == self._answer.composition_id:
            self._todo.extend(self.composition.consistency.on_timer(timer.key, self.view))
            self._todo.extend(self.composition.stragglers.on_timer(timer.key, self.view))
        if self.rule is not None:
            self._todo.extend(self.rule.on_timer(timer.key, self.view))

    def _measured(self, measured: ev.Measured) -> None:
        self._answer.record(Kind.MEASURED, text=plain_json(measured.facts))
        domain, self._answer.measuring_part = self._answer.measuring_part, None
        if domain is None:
            raise ProtocolError("numbers arrived that nobody asked for")
        part: Any = getattr(self.composition, domain)
        self._todo.extendleft(reversed(part.on_measured(measured.facts, self.view)))

    def _evaluated(self, event: ev.Evaluated) -> None:
        self._answer.record(
            Kind.EVALUATED, id=event.epoch, version=event.version, text=plain_json(event.values)
        )
        if self._answer.measuring_part == EVALUATION:
            self._answer.measuring_part = None
        if self.rule is not None:  # first in line: a switch withholds the releases that follow
            self._todo.extendleft(reversed(self.rule.on_evaluated(event, self.view)))

    def _asked(self, event: ev.SwitchRequested) -> None:
        self._answer.record(Kind.SWITCH_REQUESTED, id=-1 if event.to is None else event.to)
        last = len(self.strategy.compositions) - 1
        if self.rule is None:
            self._todo.append(act.Note("asked to switch, but this strategy has nothing to switch to"))
        elif event.to is not None and not 0 <= event.to <= last:
            self._todo.append(act.Note(f"asked to switch to {event.to}, but there are only 0 to {last}"))
        elif self._answer.drain is not None:
            self._todo.append(act.Note("asked to switch, but a switch is under way"))
        else:
            self._todo.extend(self.rule.on_switch_requested(event, self.view))

    def _void(self, worker: int, ticket: int, what: str) -> None:
        self._answer.record(Kind.VOID, worker=worker, id=ticket, text=what)

    # ---------------------------------------------------------------- the answer

    def _finish(self) -> list[Action]:
        """Complete the actions of the answer; stop where numbers must be measured first."""
        todo, answer, perform = self._todo, self._answer, self._perform
        while answer.measuring_part is None:
            if not todo:
                if self._pending_changes:
                    self._members.apply_next_change()
                    continue
                if answer.drain is not None:
                    self._drain_further(answer.drain)
                if not todo and answer.migration is not None:
                    answer.advance_migration(answer.migration)
                if not todo:
                    break
            action = todo.popleft()
            perform[type(action)](action)
        if answer.measuring_part is None and self._unanswered:
            workers = sorted(self._unanswered)
            raise UnansweredWorker(
                f"workers {workers} were neither released nor held by {self.composition.consistency.name!r}; "
                "every worker that pushes, votes or joins needs a Release or a Hold in the same answer"
            )
        out, answer.out = answer.out, []
        return out

    # ---------------------------------------------------------------- switching

    def _switch(self, switch: act.SwitchTo) -> None:
        """Begin to drain: withhold every step from now on; nothing to do if that is under way or in force."""
        if not 0 <= switch.to < len(self.strategy.compositions):
            raise ProtocolError(f"there is no composition {switch.to} to switch to")
        if self._answer.drain is None and switch.to != self.view.composition:
            self._answer.end_migration()  # the next composition begins with an assignment of its own
            self._answer.drain = Drain(switch)

    def _drain_further(self, drain: Drain) -> None:
        actions = drain.further(self.view, self.composition)
        self._todo.extend(actions)
        if not (actions or self.view.num_under_way):
            self._answer.drain = None
            self._hand_over(drain.switch)

    def _hand_over(self, switch: act.SwitchTo) -> None:
        view, strategy = self.view, self.strategy
        assert isinstance(strategy, SwitchingStrategy)
        forgets = strategy.momentum == "zero"
        handover = act.Handover(view.composition, switch.to, switch.reason, forgets, strategy.cost_s)
        self._answer.out.append(handover)
        self._answer.record(
            *(Kind.HANDOVER,), id=switch.to, version=view.version, steps=view.composition,
            compute_s=strategy.cost_s, text=switch.reason,
        )  # fmt: skip
        before = self.composition
        self._install(switch.to)
        self._answer.handed_over = view.version
        if self.composition.forgets_residual(before):
            self._answer.note(
                act.Note(_FORGOTTEN.format(before.aggregation.payload, self.composition.aggregation.payload))
            )
        self._members.restart_all()
        self._answer.composition_id += 1
        self._start_parts()
        self._members.readmit_dropped()  # whom the old parts did without

    # ---------------------------------------------------------------- parts

    def _install(self, index: int) -> None:
        """Make the parts of a composition anew and bind the hooks they define, once."""
        given: Strategy = self.strategy.compositions[index]
        self.composition = given.model_copy(update={p.domain: p.fresh() for p in given.parts})
        self.view.composition = index
        now = self.composition
        self._answer.install(now, self.strategy.momentum_scale_of(index))
        self._on_push: Hook = now.consistency.on_push
        asked: list[Part] = [now.communication, now.stragglers]
        asked += [] if self.rule is None else [self.rule]
        self._before_push: list[Hook] = defined("on_push", *asked)

    def _start_parts(self) -> None:
        for part in self.composition.parts:
            self._todo.extend(part.start(self.view))
        self._todo.extend(self.composition.consistency.on_start(self.view))


def _told(push: ev.Push) -> str:
    """Return what a push tells beside its columns, for its row's text."""
    return plain_json((push.stats or {}) | ({"goes_on": 1.0} if push.overlapping else {}))
