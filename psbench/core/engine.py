"""The engine: passes events to the parts of a strategy and returns the actions to perform.

It knows the kinds of action and no strategy. It is pure: no clock, no I/O, no threads, no tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.action_processor import (
    COMPUTING,
    EVALUATION,
    PUSHED,
    ActionProcessor,
)
from psbench.core.actions import Action
from psbench.core.drain import Drain
from psbench.core.hooks import Hook, Performers, defined
from psbench.core.log import EventLog, Kind, pack_row, plain_json, push_text
from psbench.core.membership import EngineMembership
from psbench.core.part import Part
from psbench.core.parts import Selection
from psbench.core.plateau import PlateauRule
from psbench.core.strategy import Strategy
from psbench.core.switch_rules import SwitchRules
from psbench.core.switching_strategy import AnyStrategy, SwitchingStrategy
from psbench.core.view import ClusterView, Status
from psbench.core.wire_size import WireSize
from psbench.errors import ProtocolError, UnansweredWorker

#: written in logs
_FORGOTTEN = "dropped the codecs' residuals: they are from pushes of {}, and pushes now carry {}"
_PUSH = int(Kind.PUSH)


class Engine:
    """Decisions of one run; it has over 25 methods because each kind of event has one.

    Parameters
    ----------
    strategy : Strategy or SwitchingStrategy
    view : ClusterView
        A new one, with the facts of the run: number of workers, sizes, epochs, rate, random stream.
    batch_sizes : list of int
        Samples per step of each worker at the beginning.
    wire_size : WireSize or None
        Size of the encoded model, for the log's bytes.
    log : EventLog or None
        Where events and actions are recorded; None records nothing.
    plateau : PlateauRule or None
        What evaluations make of the rate; it is the engine's own from then on.

    Examples
    --------
    >>> from psbench import strategies
    >>> engine = Engine(strategies.asp(), ClusterView(num_workers=1, dataset_size=100, global_batch=10))
    >>> [type(action).__name__ for action in engine.begin([0])]
    ['Release']
    """

    def __init__(
        self,
        strategy: AnyStrategy,
        view: ClusterView,
        *,
        batch_sizes: Iterable[int] = (),
        wire_size: WireSize | None = None,
        log: EventLog | None = None,
        plateau: PlateauRule | None = None,
    ) -> None:
        self.strategy, self.view, self.log = strategy, view, log
        self._plateau = plateau
        size = wire_size or WireSize()
        view.layout = size.layout
        self._rules = SwitchRules(strategy) if isinstance(strategy, SwitchingStrategy) else None
        self._processor = processor = ActionProcessor(view, size, log)
        # never replaced; looked up once because every push needs them
        self._todo, self._unanswered = processor.todo, processor.unanswered
        self._allowances = processor.allowances
        equal = [max(1, view.global_batch // view.num_workers)] * view.num_workers
        first_batches = list(batch_sizes) or equal
        self._members = EngineMembership(processor, first_batches)
        self._pending_changes = self._members.pending_changes
        self._waiting_events: deque[ev.Event] = deque()
        self._handlers = self._event_handlers()
        self._selection: Selection | None = None  # as the strategy says it, without a state
        self._performers = self._action_performers()
        self._install(0)

    def _event_handlers(self) -> Performers:
        return {
            ev.Push: self._push,
            ev.Vote: self._vote,
            ev.Report: self._report,
            ev.Join: self._members.join,
            ev.Leave: self._members.leave,
            ev.Timer: self._timer,
            ev.Measured: self._measured,
            ev.Evaluated: self._evaluated,
            ev.SwitchRequested: self._switch_requested,
        }

    def _action_performers(self) -> Performers:
        own: Performers = {act.Drop: self._put_off, act.Readmit: self._put_off, act.SwitchTo: self._switch}
        return self._processor.performers() | own

    # ---------------------------------------------------------------- what a backend calls

    def begin(self, workers: Iterable[int], now: float = 0.0) -> list[Action]:
        """Start the run with these workers; the first call, before any event."""
        self.view.now = now
        for worker in sorted(workers):
            self._members.admit(worker)
        self._start_parts()
        return self._finish()

    def handle(self, event: ev.Event, now: float) -> list[Action]:
        """Handle one event at time `now` (seconds of the run) and return the actions to perform, in order.

        While a `Measure` is under way, events but evaluations are queued; the answer to `Measured` includes
        theirs.

        Raises
        ------
        UnansweredWorker
            If the parts neither release nor hold a worker that spoke.
        ProtocolError
            If an action is impossible, such as releasing a worker that computes.
        """
        view = self.view
        view.now = now
        if self._processor.measuring_part is not None and self._must_wait(event):
            self._waiting_events.append(event)
            return []
        view.min_clock_rose = False
        self._handlers[type(event)](event)
        out = self._finish()
        while self._waiting_events and self._processor.measuring_part is None:
            view.min_clock_rose = False
            waiting = self._waiting_events.popleft()
            self._handlers[type(waiting)](waiting)
            out = out + self._finish()
        return out

    def _must_wait(self, event: ev.Event) -> bool:
        """Return whether an event must wait until the current answer is complete; evaluations need not."""
        evaluation = self._processor.measuring_part == EVALUATION
        return type(event) is not ev.Evaluated and (evaluation or type(event) is not ev.Measured)

    def resume(
        self, spared: Iterable[int] = (), epochs: float | None = None, again: Iterable[int] = ()
    ) -> list[Action]:
        """Continue from a loaded state: work in progress is void, and its workers are released again.

        `spared` workers have yet to receive their release of the last answer and lose nothing; those `again`
        take their steps since their last message once more, from what they held then, without a release.
        Workers that wait lose only the model, which is sent again. `epochs` is the stop rule's number from
        now on. If nothing is void or repeated, and no switch rule depends on the epochs, nothing is recorded.
        """
        view, own, repeating = self.view, set(spared), set(again)
        void = self._processor.migration is not None or self._members.any_under_way(own | repeating)
        other_epochs = epochs != view.epochs and any(rule.needs_epochs for rule in self._rules or ())
        if void or repeating or other_epochs:
            text = {"spared": sorted(own), "epochs": [view.epochs, epochs]}
            text |= {"again": sorted(repeating)} if repeating else {}
            self._processor.record(Kind.RESUME, version=view.version, text=plain_json(text))
        if epochs != view.epochs:
            view.epochs = epochs
            self._processor.allow_again([view.workers[worker] for worker in sorted(own)])
        self._members.restart_void_work(own | repeating)
        return self._finish()

    def pause_for_evaluations(self, due: Callable[[], bool]) -> None:
        """Pause an answer after an update whose evaluation is `due`, if the switch rule uses evaluations.

        For a backend whose evaluations take no time of the run: it handles `Evaluated` next, whose answer has
        the rest, so that a switch hands over the version that was evaluated. Other events are queued.
        """
        self._processor.evaluation_due = due

    @property
    def waiting_events(self) -> Sequence[ev.Event]:
        """Events queued until the pending measurement is answered, in order."""
        return self._waiting_events

    @property
    def measuring(self) -> bool:
        """Return True if a `Measure` is pending: events are queued, and the state cannot be saved."""
        return self._processor.measuring_part is not None

    @property
    def handles_pushes(self) -> bool:
        """Return True if a part besides the consistency defines `on_push`; it may drop a computing worker."""
        return bool(self._before_push)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as plain data; a new engine that loads it decides identically."""
        if self._processor.measuring_part is not None:
            raise ProtocolError(
                "the state cannot be written while a Measure is pending; handle its Measured event first"
            )
        plateau = {} if self._plateau is None else {"plateau": self._plateau.state_dict()}
        return {
            "view": self.view.state_dict(),
            "parts": {p.domain: p.state_dict() for p in self.composition.parts},
            "rule": self._rules.state_dict() if self._rules is not None else None,
            **plateau,
        } | self._processor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from `state_dict`, written by an engine of the same strategy."""
        self.view.load_state_dict(state["view"])
        ranges, updates = self.view.ranges, self.view.fragment_updates
        self._install(self.view.in_force)
        self.view.fragment_updates = updates
        self._processor.set_ranges(ranges)
        for part in self.composition.parts:
            part.load_state_dict(state["parts"][part.domain])
        if self._rules is not None:
            self._rules.load_state_dict(state["rule"], self.view.in_force)
            self._use_rule()
        if self._plateau is not None and "plateau" in state:
            self._plateau.load_state_dict(state["plateau"])
            self._processor.rate_factor = self._plateau.factor
        self._processor.load_state_dict(state)

    # ---------------------------------------------------------------- events

    def _push(self, push: ev.Push) -> None:
        view, log = self.view, self.log
        worker = view.workers[push.worker]
        if (worker.ticket != push.ticket or worker.status is not COMPUTING) and self._is_void(push, "push"):
            return
        push.fragment = fragment = worker.fragment
        if fragment >= 0:
            since = view.fragment_updates[fragment] - worker.fragment_updates[fragment]
            push.base_version = view.version - since
        if log is not None:
            text = 0 if push.stats is None and not push.overlapping else log.number(push_text(push))
            # fmt: off
            log.append(pack_row(
                view.now, _PUSH, push.worker, push.id, push.base_version, push.samples, push.steps,
                push.bytes, push.compute_s, push.send_s, push.loss, text,
            ))
            # fmt: on
        worker.status = PUSHED
        if self._allowances.expected:
            self._allowances.end(push.worker)
        worker.overlapping = push.overlapping
        worker.last_push, worker.pushed_samples = push.id, push.samples
        worker.previous_push_s, worker.last_push_s = worker.last_push_s, view.now
        view.move_clock(worker, worker.clock + 1)
        view.num_computing -= 1
        view.pushes += 1
        view.pending[push.id] = push
        view.pending_samples += push.samples
        self._unanswered.add(push.worker)
        todo = self._todo
        for hook in self._before_push:
            todo.extend(hook(push, view))
        todo.extend(self._on_push(push, view))

    def _vote(self, vote: ev.Vote) -> None:
        if self._is_void(vote, "vote"):
            return
        worker = self.view.workers[vote.worker]
        # the text keeps all digits, which a replay needs to decide the same
        columns = {"samples": vote.samples, "compute_s": vote.compute_s, "loss": vote.value}
        self._processor.record(Kind.VOTE, worker=vote.worker, text=plain_json(vote.value), **columns)
        worker.status = Status.VOTED
        self._allowances.end(vote.worker)
        self.view.set_voted(worker, vote.samples)
        self.view.num_computing -= 1
        self.view.num_voted += 1
        self._unanswered.add(vote.worker)
        if self._processor.drain is not None:
            self._todo.append(act.Release(vote.worker, then="push"))
        else:
            self._todo.extend(self.composition.communication.on_vote(vote, self.view))

    def _report(self, report: ev.Report) -> None:
        if self._is_void(report, "report"):
            return
        self._processor.record(Kind.REPORT, worker=report.worker, text=plain_json(report.stats))
        self._todo.extend(self.composition.stragglers.on_report(report, self.view))

    def _timer(self, timer: ev.Timer) -> None:
        self._processor.record(Kind.TIMER, text=timer.key, id=timer.composition_id)
        if timer.composition_id == self._processor.composition_id:
            self._todo.extend(self.composition.consistency.on_timer(timer.key, self.view))
            self._todo.extend(self.composition.stragglers.on_timer(timer.key, self.view))
        if self.rule is not None:
            self._todo.extend(self.rule.on_timer(timer.key, self.view))

    def _measured(self, measured: ev.Measured) -> None:
        self._processor.record(Kind.MEASURED, text=plain_json(measured.facts))
        domain, self._processor.measuring_part = self._processor.measuring_part, None
        if domain is None:
            raise ProtocolError("a Measured event arrived, but no part has asked to Measure")
        part: Any = getattr(self.composition, domain)
        self._todo.extendleft(reversed(part.on_measured(measured.facts, self.view)))

    def _evaluated(self, event: ev.Evaluated) -> None:
        self._processor.record(
            Kind.EVALUATED, id=event.epoch, version=event.version, text=plain_json(event.values)
        )
        if self._processor.measuring_part == EVALUATION:
            self._processor.measuring_part = None
        if self._plateau is not None and (fall := self._plateau.update(event.values)):
            self._processor.rate_factor = self._plateau.factor
            self._processor.note(act.Note(fall))
        for hook in self._after_evaluation:
            self._todo.extend(hook(event, self.view))
        if self.rule is not None:  # performed first: a switch withholds the releases that follow
            self._todo.extendleft(reversed(self.rule.on_evaluated(event, self.view)))

    def _switch_requested(self, event: ev.SwitchRequested) -> None:
        self._processor.record(Kind.SWITCH_REQUESTED, id=-1 if event.to is None else event.to)
        if self._rules is None:
            self._todo.append(act.Note("asked to switch, but this strategy has nothing to switch to"))
        else:
            self._todo.extend(self._rules.requested(event, self.view, self._processor.drain))
            self._use_rule()

    def _is_void(self, message: ev.Push | ev.Vote | ev.Report, kind: str) -> bool:
        """Return whether a message is void: its work was cancelled, or its worker left. Log it if so."""
        worker = self.view.workers[message.worker]
        if worker.ticket == message.ticket and worker.status is COMPUTING:
            return False
        self._processor.record(Kind.VOID, worker=message.worker, id=message.ticket, text=kind)
        return True

    # ---------------------------------------------------------------- performing actions

    def _finish(self) -> list[Action]:
        """Perform the actions of the answer, up to a `Measure` that must be answered first."""
        todo, processor, perform = self._todo, self._processor, self._performers
        while processor.measuring_part is None:
            if not todo:
                if self._pending_changes:
                    self._members.apply_next_change()
                    continue
                if processor.drain is not None:
                    self._advance_drain(processor.drain)
                if not todo and processor.migration is not None:
                    processor.advance_migration(processor.migration)
                if not todo:
                    break
            action = todo.popleft()
            try:
                perform[type(action)](action)
            except KeyError:
                self._refuse_what_is_unknown(action)
                raise
        if processor.measuring_part is None and self._unanswered:
            workers = sorted(self._unanswered)
            raise UnansweredWorker(
                f"workers {workers} were neither released nor held by {self.composition.consistency.name!r}; "
                "every worker that pushes, votes or joins needs a Release or a Hold in the same answer"
            )
        out, processor.out = processor.out, []
        return out

    def _put_off(self, change: act.Drop | act.Readmit) -> None:
        """Apply the membership change after the other actions of the answer."""
        self._refuse_what_is_unknown(change)
        self._pending_changes.append(change)

    def _refuse_what_is_unknown(self, action: Action) -> None:
        if type(action) not in self._performers:
            raise ProtocolError(f"a part returned {action!r}, which is not an action") from None
        named = getattr(action, "rows", None) or [getattr(action, "worker", None)]
        for worker in named:
            if worker is not None and worker not in self.view.workers:
                here = ", ".join(map(str, sorted(self.view.active)))
                raise ProtocolError(
                    f"{action!r}: worker {worker} does not exist; active are {here}"
                ) from None

    # ---------------------------------------------------------------- switching

    def _switch(self, switch: act.SwitchTo) -> None:
        """Start to drain: withhold steps from now on; ignored during a drain, or if `to` is active."""
        if self._rules is None:
            raise ProtocolError(
                f"cannot switch to composition {switch.to}; this strategy has only composition 0"
            )
        switch = self._rules.numbered(switch)
        if self._processor.drain is None and switch.to != self.view.in_force:
            self._processor.end_migration()  # the next composition has an assignment of its own
            self._processor.drain = Drain(switch)

    def _advance_drain(self, drain: Drain) -> None:
        actions = drain.next_actions(self.view, self.composition)
        self._todo.extend(actions)
        if not (actions or self.view.num_under_way):
            self._processor.drain = None
            self._hand_over(drain.switch)

    def _hand_over(self, switch: act.SwitchTo) -> None:
        assert self._rules is not None
        self._processor.hand_over(self._rules.handover(self.view.in_force, switch))
        before = self.composition
        self._install(switch.to)
        if before.leaves_residuals and self.composition.forgets_residual(before):
            kinds = [each.aggregation for each in (before, self.composition)]
            pushed = [" and ".join((kind.payload, *kind.carries)) for kind in kinds]
            self._processor.note(act.Note(_FORGOTTEN.format(*pushed)))
        self._members.restart_all()
        self._start_parts()
        self._members.readmit_dropped()  # dropped by the old parts

    # ---------------------------------------------------------------- parts

    def _install(self, index: int) -> None:
        """Create the parts of a composition and bind the hooks that they define, once."""
        given: Strategy = self.strategy.compositions[index]
        parts: dict[str, Part] = {p.domain: p.fresh() for p in given.parts}
        if given.selection == self._selection:  # it belongs to the workers' data, and goes on with its state
            parts["selection"] = self.composition.selection
        self._selection = given.selection
        self.composition = now = given.model_copy(update=parts)
        self._after_evaluation: list[Hook] = defined("on_evaluated", now.selection)
        self.view.in_force = index
        self._processor.install(now, self.strategy.momentum_scale_of(index))
        self._on_push: Hook = now.consistency.on_push
        if self._rules is not None:
            self._rules.reach(index)
        self._use_rule()

    def _use_rule(self) -> None:
        """Activate the rule that decides now."""
        rules, now = self._rules, self.composition
        self.rule = rules.deciding if rules else None
        self.view.composition = rules.seen(self.view.in_force) if rules else 0
        self._processor.watch(self.rule)
        parts = now.communication, now.communication.codec, now.stragglers, now.selection
        asked: list[Part] = [*parts, *([] if self.rule is None else [self.rule])]
        self._before_push: list[Hook] = defined("on_push", *asked)

    def _start_parts(self) -> None:
        if self._rules is not None:
            self._todo.extend(self._rules.start(self.view))
        for part in self.composition.parts:
            self._todo.extend(part.start(self.view))
        self._todo.extend(self.composition.consistency.on_start(self.view))
