"""The model of the engine: one event after another, each carried out to its end before the next begins."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from psbench.core import Action, Kind, Status, SwitchingStrategy
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.peer_to_peer import PeerToPeer
from psbench_fuzz.model.account import Account
from psbench_fuzz.model.view import Member

#: what carries out an event: it stops where a part has asked for numbers, and is given them
Reaction: TypeAlias = Generator[None, dict[str, float], None]


class Interpreter(Account):
    """The engine's expected answer to each event; parameters as of `Account`."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.waiting: list[ev.Event] = []  # events that came while numbers were measured
        self.heard: list[Action] = []  # the rule's answers to evaluations that came then
        self.answer: Reaction | None = None  # the event that waits for numbers

    def begin(self, workers: Iterable[int]) -> list[Action]:
        """Return the first answer."""
        for worker in sorted(workers):
            self.enter(worker)
            self.log.add(Kind.JOIN, worker)
        return self.carry_out(self.perform_all(self.start_parts()))

    def handle(self, event: ev.Event, now: float) -> list[Action]:
        """Return the answer to an event; while numbers are measured, events wait for their turn."""
        self.cluster.now = now
        self.out, self.log.rows = [], []
        if self.answer is None:
            self.carry_out(self.react(event))
        elif isinstance(event, ev.Measured):
            self.go_on(event.facts)
        elif isinstance(event, ev.Evaluated):  # which changes nothing that was measured
            self.log.add_event(event)
            self.heard = self.on_evaluated(event) + self.heard
        else:
            self.waiting.append(event)
        while self.answer is None and self.waiting:
            self.carry_out(self.react(self.waiting.pop(0)))
        return self.out

    def resume(self, epochs: float | None) -> list[Action]:
        """Return the answer to a restart from a checkpoint: work in progress is void and starts again."""
        self.out, self.log.rows = [], []
        c = self.cluster
        holding = any(each.base_version >= 0 or each.overlapping for each in c.present)
        if self.move is not None or holding:
            self.log.add(Kind.RESUME, text={"spared": [], "epochs": [c.epochs, epochs]}, version=c.version)
        c.epochs = epochs
        releases: list[Action] = []
        for member in c.present:
            lost = member.overlapping and self.composition.has_local_steps
            member.has_model = member.has_model and not lost
            member.base_version, member.overlapping = -1, False
            if member.status in (Status.COMPUTING, Status.VOTED):
                if self.composition.sends_fragments and self.composition.consistency.current_only:
                    self.communication.on_leave(member.id, c)  # treated as one that has just joined
                c.cancelled += 1
                member.ticket += 1
                member.status, member.voted_samples = Status.NEW, 0
                self.log.add(Kind.CANCEL, member.id)
                releases.append(act.Release(member.id))
        return self.carry_out(self.perform_all(releases))

    def carry_out(self, answer: Reaction) -> list[Action]:
        """Process an event to its end, or to a required measurement."""
        self.cluster.min_clock_rose = False

        def whole() -> Reaction:
            yield from answer
            yield from self.conclude()

        self.answer = whole()
        return self.go_on(None)

    def go_on(self, facts: dict[str, float] | None) -> list[Action]:
        """Continue the current event."""
        assert self.answer is not None
        try:
            if facts is None:
                next(self.answer)
            else:
                self.answer.send(facts)
        except StopIteration:
            self.answer = None
        return self.out

    def conclude(self) -> Reaction:
        """At the end of an answer: drops and readmissions, then a switch or a move that is due."""
        while True:
            if self.changes:
                change = self.changes.pop(0)
                yield from self.drop(change) if isinstance(change, act.Drop) else self.readmit(change)
            elif self.switch is not None:
                decisions, ready = self.drain()
                yield from self.perform_all(decisions)
                if ready:
                    yield from self.hand_over()
                elif not decisions:
                    return
            elif self.move is not None:
                yield from self.perform_all(self.sweep_for_move())
                if self.changes or self.move is None or not self.is_quiet():
                    if self.changes or self.move is None:
                        continue
                    return
                self.move_parameters()
            else:
                return

    def react(self, event: ev.Event) -> Reaction:
        """Process an event."""
        if isinstance(event, (ev.Push, ev.Vote, ev.Report)):
            member = self.cluster.workers[event.worker]
            if event.ticket != member.ticket or member.status is not Status.COMPUTING:
                self.log.add(Kind.VOID, event.worker, type(event).__name__.lower(), id=event.ticket)
                return  # of work that was cancelled, or a second time
            if isinstance(event, ev.Push) and self.composition.sends_fragments:
                updates = self.cluster.fragments[member.sent[member.fragment] :].count(member.fragment)
                event = replace(event, base_version=self.cluster.version - updates)
        self.log.add_event(event)
        name = type(event).__name__.lower()
        decisions: list[Action] = getattr(self, f"on_{name}")(event)
        yield from self.perform_all(decisions)

    def on_push(self, push: ev.Push) -> list[Action]:
        """Record a push; all rules on pushes are called before anything else happens."""
        c = self.cluster
        member = c.workers[push.worker]
        member.status, member.overlapping = Status.PUSHED, push.overlapping
        member.clock += 1
        member.pushed_samples = push.samples
        member.previous_push_s, member.last_push_s = member.last_push_s, c.now
        c.look_at_clocks()
        c.pushes += 1
        c.pending[push.id] = push
        self.carried[push.id] = member.fragment
        asked = [
            self.communication,
            self.codec,
            self.stragglers,
            *([self.rule] if self.rule is not None else []),
        ]
        return [action for part in (*asked, self.consistency) for action in part.on_push(push, c)]

    def on_vote(self, vote: ev.Vote) -> list[Action]:
        """Record a vote; during a drain every worker must push."""
        member = self.cluster.workers[vote.worker]
        member.status, member.voted_samples = Status.VOTED, vote.samples
        if self.switch is not None:
            return [act.Release(vote.worker, then="push")]
        return list(self.communication.on_vote(vote, self.cluster))

    def on_report(self, report: ev.Report) -> list[Action]:
        return list(self.stragglers.on_report(report, self.cluster))

    def on_join(self, join: ev.Join) -> list[Action]:
        """Add a worker."""
        self.enter(join.worker)
        return self.admit(join.worker)

    def on_leave(self, leave: ev.Leave) -> list[Action]:
        """Remove a worker; a dropped one does not return by itself."""
        member = self.cluster.workers[leave.worker]
        if member.status is Status.GONE and not member.dropped:
            return []
        self.log.add(Kind.LEAVE, leave.worker, leave.reason)
        if member.dropped:
            member.dropped = False
            return []
        return self.leave(member)

    def on_timer(self, timer: ev.Timer) -> list[Action]:
        """Pass a timer to the parts that set it, unless a hand-over followed; always to the rule."""
        own = [self.consistency, self.stragglers] if timer.composition_id == self.handovers else []
        asked = [*own, *([self.rule] if self.rule is not None else [])]
        return [action for part in asked for action in part.on_timer(timer.key, self.cluster)]

    def on_evaluated(self, event: ev.Evaluated) -> list[Action]:
        """Pass an evaluation on to the rule."""
        return list(self.rule.on_evaluated(event, self.cluster)) if self.rule is not None else []

    def on_switchrequested(self, event: ev.SwitchRequested) -> list[Action]:
        """Pass a request to the rule, or note why there is no switch."""
        if self.switches is None:
            return [act.Note("asked to switch, but this strategy has nothing to switch to")]
        decisions, self.switch = self.switches.request(event, self.cluster, self.switch)
        self.switches.show(self.cluster)
        return decisions

    def perform_all(self, decisions: list[Action]) -> Reaction:
        """Carry out decisions in order, each with all that follows from it."""
        for decision in decisions:
            yield from self.perform(decision)

    def perform(self, decision: Action) -> Reaction:
        """Carry out one decision."""
        match decision:
            case act.Commit():
                yield from self.perform_all(self.aggregation.on_commit(decision.pushes, self.cluster))
            case act.Apply():
                yield from self.perform_all(self.make_version(decision))
            case act.Measure():
                part = getattr(self, decision.domain)
                self.out.append(decision)
                self.log.add(Kind.MEASURE, text=[decision.domain, decision.needs])
                self.heard = []
                facts = yield
                heard = self.heard
                self.log.add(Kind.MEASURED, text=dict(facts))
                yield from self.perform_all(part.on_measured(facts, self.cluster) + heard)
            case act.Release():
                yield from self.perform_all(self.count_votes(decision))
                self.release(decision)
            case act.Hold():
                self.hold(decision)
            case act.Cancel():
                member = self.cluster.workers[decision.worker]
                member.status, member.ticket = Status.PUSHED, member.ticket + 1
                self.cluster.cancelled += 1
                self.out.append(decision)
                self.log.add(Kind.CANCEL, decision.worker)
            case act.Discard():
                del self.cluster.pending[decision.push.id]
                self.cluster.discarded += 1
                self.out.append(decision)
                self.log.add(Kind.DISCARD, decision.push.worker, decision.reason, id=decision.push.id)
            case act.Drop() | act.Readmit():
                self.changes.append(decision)
            case act.Tell():
                self.tell(decision)
            case act.SetTimer():
                self.out.append(replace(decision, composition_id=self.handovers))
                self.log.add(Kind.SET_TIMER, text=decision.key, compute_s=decision.at)
            case act.SwitchTo():
                self.begin_switch(decision)
            case act.Reassign():
                self.begin_move(decision)
            case act.Mix():
                self.mix(decision)
            case act.Note():
                self.note(decision.text)
            case _:
                raise TypeError(f"a part answered {decision!r}")

    def admit(self, worker: int) -> list[Action]:
        """Return the answer to a newcomer; before a switch it waits for that."""
        if self.switch is not None:
            self.park(self.cluster.workers[worker])
            return []
        return [*self.first_model(worker), *self.consistency.on_join(worker, self.cluster)]

    def first_model(self, worker: int) -> list[Action]:
        """Return the source of a newcomer's model, if there is no server."""
        have = self.cluster.in_status(Status.COMPUTING, Status.PUSHED, Status.VOTED)
        if not (isinstance(self.composition.placement, PeerToPeer) and have):
            return []
        return [act.Mix({worker: {have[0]: 1.0}})]

    def leave(self, member: Member) -> list[Action]:
        """Remove a worker and call the parts; if no worker is left, readmit the dropped ones."""
        c = self.cluster
        if member.status is Status.COMPUTING and not self.is_kept_back(member.id):
            c.cancelled += 1
        member.status, member.overlapping = Status.GONE, False
        self.parked.discard(member.id)
        c.look_at_clocks()
        decided = list(self.communication.on_leave(member.id, c))
        if not c.present:
            self.take_back()
            return []
        return [*decided, *self.consistency.on_leave(member.id, c)]

    def drop(self, drop: act.Drop) -> Reaction:
        """Drop a worker, unless it is the last."""
        member = self.cluster.workers[drop.worker]
        if member.status is Status.GONE or len(self.cluster.present) == 1:
            return
        member.ticket, member.dropped = member.ticket + 1, True
        self.out.append(drop)
        self.log.add(Kind.DROP, drop.worker, drop.reason)
        yield from self.perform_all(self.leave(member))

    def readmit(self, readmit: act.Readmit) -> Reaction:
        """Take back a worker that was dropped."""
        if not self.cluster.workers[readmit.worker].dropped:
            return
        self.out.append(readmit)
        self.log.add(Kind.READMIT, readmit.worker)
        self.enter(readmit.worker)
        yield from self.perform_all(self.admit(readmit.worker))

    def drain(self) -> tuple[list[Action], bool]:
        """Return the actions that end the work in progress, and whether none is left."""
        assert self.switch is not None
        c = self.cluster
        if not self.swept:
            self.swept = True
            if told := self.end_work():
                return told, False
        if c.computing or c.voted:
            return [], False
        overlapping = [each.id for each in c.present if each.overlapping]
        if overlapping:
            return [act.Release(worker) for worker in overlapping], False
        if c.pending:
            return list(self.consistency.on_drained(c)), False
        return [], True

    def hand_over(self) -> Reaction:
        """Hand over: all workers restart with equal clocks, without state and with their initial batches."""
        assert self.switch is not None
        assert isinstance(self.strategy, SwitchingStrategy)
        c, switch, before = self.cluster, self.switch, self.composition
        how = self.strategy.switches[max(c.in_force, switch.to, 1) - 1]
        forgets = how.momentum == "zero"
        self.out.append(act.Handover(c.in_force, switch.to, switch.reason, forgets, how.cost_s))
        columns = {"id": switch.to, "version": c.version, "steps": c.in_force}
        self.log.add(Kind.HANDOVER, text=switch.reason, **columns, compute_s=how.cost_s)
        self.switch = None
        self.handovers += 1
        self.version_at_handover = c.version
        self.use(switch.to)
        if before.leaves_residuals and self.composition.forgets_residual(before):
            parts = before.aggregation, self.composition.aggregation
            old, new = (" and ".join([part.payload, *part.carries]) for part in parts)
            found = f"they are from pushes of {old}, and pushes now carry {new}"
            self.note(f"dropped the codecs' residuals: {found}")
        clock = max((each.clock for each in c.present), default=c.min_clock)
        for member in c.present:
            member.status, member.clock, member.base_version = Status.NEW, clock, -1
            member.has_model, member.batch_size, member.fragment = False, self.batches[member.id], -1
        c.look_at_clocks()
        begun = self.start_parts()
        self.take_back()  # those that the old parts have dropped
        yield from self.perform_all(begun)
