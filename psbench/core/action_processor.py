"""The action processor: completes the actions of parts, checks them, and hands them to the backend."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psbench.core import actions as act
from psbench.core.actions import Action
from psbench.core.allowances import Allowances
from psbench.core.collective import Collective
from psbench.core.drain import Drain
from psbench.core.events import Push
from psbench.core.hooks import Hook, Performers, defined
from psbench.core.log import EventLog, Kind, pack_apply, pack_release, plain_json
from psbench.core.migration import REASSIGNMENT, Migration, lost_entries
from psbench.core.neighbourhood import Neighbourhood
from psbench.core.part import Part
from psbench.core.parts import Communication, Switching
from psbench.core.peer_to_peer import PeerToPeer, WaitsForNeighbours, sends_before_step
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView, Status, WorkerView
from psbench.core.wire_size import WireSize
from psbench.errors import ProtocolError

# module-level names for what every push needs: looking up an enum member costs more than comparing it
COMPUTING, PUSHED, VOTED, GONE = Status.COMPUTING, Status.PUSHED, Status.VOTED, Status.GONE
#: old and new keys of the state
#: what the rest of an answer waits for that stopped after an update (`Engine.pause_for_evaluations`)
EVALUATION = "evaluation"
_APPLY, _RELEASE, _HOLD = map(int, (Kind.APPLY, Kind.RELEASE, Kind.HOLD))


@dataclass
class _Exchanged:
    """The samples of one exchange of all active workers, and of those that they have made so far."""

    a_step: int
    samples: int


class ActionProcessor:
    """Performs the actions with which parts answer an event.

    One object serves a whole run; its queues are empty after each event. A method that takes an action
    completes it, updates the view, and writes its row in the log. Over 25 methods because each kind of action
    has one.

    Parameters
    ----------
    view : ClusterView
    wire_size : WireSize
        Size of the encoded model, for the log's bytes.
    log : EventLog or None

    Attributes
    ----------
    todo : deque of Action
        Actions of the parts that are not performed yet.
    out : list of Action
        Actions for the backend.
    unanswered : set of int
        Workers that must be released or held before the answer is complete.
    needs_full_model : set of int
        Workers whose next model must be sent whole, not as a difference.
    allowances : Allowances
        Of workers that decide when they push.
    evaluation_due : callable () -> bool, or None
        Whether the version just made is evaluated before the answer continues; see
        `Engine.pause_for_evaluations`.
    measuring_part : str or None
        Domain of the part that waits for `Measured`, or `EVALUATION`; events are queued meanwhile.
    drain : Drain or None
        A switch under way.
    migration : Migration or None
        A re-assignment of parameters under way.
    composition_id : int
        Number of hand-overs so far.
    rate_factor : float
        Multiplies the rate of every later version: what evaluations have made of it.
    handed_over : int
        The version at the last hand-over.
    """

    def __init__(self, view: ClusterView, wire_size: WireSize, log: EventLog | None) -> None:
        self.view, self.log = view, log
        self.rule: Switching | None = None
        self._rule_saw_votes = False  # those that are being answered
        self._wire_size = wire_size
        self.todo: deque[Action] = deque()
        self.out: list[Action] = []
        self.unanswered: set[int] = set()
        self.needs_full_model: set[int] = set()
        self.allowances = Allowances(view)
        self.measuring_part: str | None = None
        self.evaluation_due: Callable[[], bool] | None = None
        self.drain: Drain | None = None
        self.migration: Migration | None = None
        self.composition_id = 0
        self.rate_factor = 1.0
        self.handed_over = 0

    def performers(self) -> Performers:
        """Return the method that performs each kind of action; the engine performs the others."""
        return {
            act.Commit: self.commit,
            act.Apply: self.apply,
            act.Release: self.release,
            act.Hold: self.hold,
            act.Cancel: self.cancel,
            act.Discard: self.discard,
            act.Tell: self.tell,
            act.Measure: self.measure,
            act.SetTimer: self.set_timer,
            act.Note: self.note,
            act.Reassign: self.reassign,
            act.Mix: self.mix,
        }

    def install(self, now: Strategy, momentum_scale: Callable[[int, int], float] | None) -> None:
        """Use this composition from now on, and cache its hooks."""
        self.composition = now
        self._on_commit: Hook = now.aggregation.on_commit
        self._by_share = now.lr_scaling == "by_share"
        self._momentum_scale = momentum_scale
        self._own_steps = now.own_steps
        self._computes_on_workers = now.computes_on_workers
        self._decides_own_rounds = now.decides_own_rounds
        self._always_send = isinstance(now.placement, Collective) or self._own_steps
        self._fragments = now.communication.fragments(self._wire_size.layout)
        self.view.fragment_updates = [0] * len(self._fragments)
        self._exchanges = now.aggregation.exchanges
        self._replies_aggregate = now.aggregation.reply != "model"
        self._waits_for_neighbours = isinstance(now.consistency, WaitsForNeighbours)
        self._exchanged: _Exchanged | None = None
        self.set_ranges(now.placement.ranges(self._wire_size.layout))
        self.peer_to_peer, self.view.neighbourhood = False, None
        if isinstance(now.placement, PeerToPeer):
            self.peer_to_peer = True
            self.view.neighbourhood = Neighbourhood(self.view, now.placement, now.communication)
            self._sent_bytes = self._wire_size.of(now.communication.codec, now.placement)
            self._steps_first = not sends_before_step(now.communication)
        own_rate = type(now.communication).rate_epoch is not Communication.rate_epoch
        self._rate_epoch = now.communication.rate_epoch if own_rate else None
        self._order_hooks: list[Any] = defined("on_release", now.communication, now.stragglers, now.selection)
        self._order_hooks += defined("on_release", now.communication.codec)

    def watch(self, rule: Switching | None) -> None:
        """Call this switch rule after every update, besides the composition's parts."""
        self.rule, now = rule, self.composition
        watchers: list[Part] = [now.communication, now.stragglers, *([] if rule is None else [rule])]
        movers = [now.placement] if now.placement.moves else []
        self._after_apply: list[Hook] = defined("on_applied", *watchers, *movers)

    def commit(self, commit: act.Commit) -> None:
        """Ask the aggregation part for the next version from these pushes."""
        if not commit.pushes:
            raise ProtocolError(
                f"{self.composition.consistency.name!r}: a Commit without pushes; commit at least one, "
                "such as view.buffered()"
            )
        actions = self._on_commit(commit.pushes, self.view)
        if not actions:
            name = self.composition.aggregation.name
            raise ProtocolError(f"{name!r}: on_commit returned no action; return an Apply, or a Measure")
        if len(actions) == 1 and type(actions[0]) is act.Apply:  # it comes next: spared a turn of the queue
            self.apply(actions[0])
        else:
            self.todo.extendleft(reversed(actions))

    def apply(self, apply: act.Apply) -> None:
        """Make the next version; its pushes are no longer pending."""
        view, log, pushes = self.view, self.log, apply.pushes
        count, pending = len(pushes), view.pending
        if len(apply.weights) != count:
            raise ProtocolError(f"{count} pushes are applied with {len(apply.weights)} weights")
        apply.version = view.version = version = view.version + 1
        apply.epoch = view.samples / view.dataset_size if self._rate_epoch is None else self._rate_epoch(view)
        apply.lr_scale = self.rate_factor * (count / view.num_workers if self._by_share else 1.0)
        if self._momentum_scale is not None:
            apply.momentum_scale = self._momentum_scale(version - 1 - self.handed_over, view.num_workers)
        if self._fragments:
            apply.fragment = self._fragment_of(pushes)
            view.fragment_updates[apply.fragment] += 1
        self.out.append(apply)
        view.committed += count
        if self.peer_to_peer:  # a worker's own version is what its push has made
            version = view.workers[pushes[0].worker].version
        for push, weight in zip(pushes, apply.weights):  # noqa: B905  (checked above; strict costs as much)
            if pending.pop(push.id, None) is None:
                raise ProtocolError(f"push {push.id} is committed twice, or was discarded before")
            view.samples += push.samples
            view.pending_samples -= push.samples
            if log is not None:
                # fmt: off
                log.append(pack_apply(
                    view.now, _APPLY, push.worker, push.id, version, push.samples, push.steps, weight
                ))
                # fmt: on
        for hook in self._after_apply:  # performed first: a switch withholds the releases that follow
            self.todo.extendleft(reversed(hook(view)))
        due = self.evaluation_due
        if due is not None and self.rule is not None and self.rule.awaits_evaluation and due():
            self.measuring_part = EVALUATION

    def mix(self, mix: act.Mix) -> None:
        """Replace workers' models by mixtures; each then has one more version of its own."""
        view = self.view
        for number in mix.rows:
            worker = view.workers[number]
            # a newcomer begins with another's model, at a version that it has already
            if worker.status is not Status.NEW:
                worker.version += 1
                if self._exchanged is not None:
                    self._exchanged.samples += worker.batch_size
            mix.versions[number] = worker.version
            worker.push_weight = mix.push_weights.get(number, worker.push_weight)
        self.out.append(mix)
        # a ring of n workers sends 2 (n - 1) of its n-th parts from each of them
        received = sum(len(row.keys() - {number}) for number, row in mix.rows.items())
        models = 2 * (len(mix.rows) - 1) if mix.meet else received
        size = models * self._sent_bytes
        text = {"sent": mix.sent, "steps_first": self._steps_first, "rows": mix.rows}
        first = next(iter(mix.rows))
        columns = {"id": mix.push, "version": mix.versions[first], "bytes": size, "text": plain_json(text)}
        self.record(Kind.MIX, worker=first, **columns)

    def release(self, release: act.Release) -> None:
        """Release a worker, unless a switch or a re-assignment withholds it."""
        view, number = self.view, release.worker
        worker = view.workers[number]
        status = worker.status
        if status is COMPUTING or status is GONE:
            if worker.dropped:
                return  # dropped by a part that was asked before the one that releases
            raise ProtocolError(f"worker {number} was released, but it is {status.name.lower()}")
        step = release.then == "step"
        if not step and status is not VOTED:
            raise ProtocolError(f"worker {release.worker} was ordered to push, but it has not voted")
        if step and status is VOTED and self.rule is not None and not self._rule_saw_votes:
            self._show_votes(release, self.rule)
            return
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
            self.set_batch_size(worker, orders["batch_size"])
        worker.codec_setting = orders.get("codec", -1) if orders else -1
        release.ticket = worker.ticket = worker.ticket + 1
        worker.status = COMPUTING
        worker.overlapping = False
        worker.hold_reason = ""
        view.num_computing += 1
        voted = status is VOTED
        current = worker.version if self.peer_to_peer else view.version
        release.load = load = current if step and not voted else worker.base_version
        release.send = not voted and (
            self._always_send or worker.base_version != load or number in self.needs_full_model
        )
        worker.base_version = load
        kept = 0
        if self._fragments:
            if status is PUSHED and number not in self.needs_full_model:
                release.fragment = worker.fragment
            if "fragment" not in orders:
                name = self.composition.communication.name
                raise ProtocolError(
                    f"{name!r}: has fragments, so on_release must order one, such as {{'fragment': 0}}"
                )
            worker.fragment = orders["fragment"]
            self.note_fragments(worker, release.fragment)
        if self._decides_own_rounds:
            release.allowance = self.allowances.give(worker)
        if voted or self._computes_on_workers:
            kept = self._complete_for_own_half(release, worker, status)
        if self.migration is not None and step:
            self.migration.withhold(release, kept, voted)
            worker.hold_reason = REASSIGNMENT
            self.record(Kind.HOLD, worker=number, text=REASSIGNMENT)
        else:
            self._hand_out(release, kept)

    def allow_again(self, workers: Sequence[WorkerView]) -> None:
        """Renew the step allowance of workers that are about to be released."""
        for worker in workers:
            worker.allowance = -1
            self.allowances.end(worker.id)
        for worker in workers if self._decides_own_rounds else ():
            self.allowances.give(worker)

    def note_fragments(self, worker: WorkerView, fragment: int) -> None:
        """Record that a worker is sent a fragment, or the whole model (-1)."""
        updates = self.view.fragment_updates
        if fragment < 0:
            worker.fragment_updates = [*updates]
        else:
            worker.fragment_updates[fragment] = updates[fragment]

    def _fragment_of(self, pushes: Sequence[Push]) -> int:
        (fragment, *others) = {push.fragment for push in pushes}
        if others:
            raise ProtocolError(f"one commit has pushes of several fragments, {sorted({fragment, *others})}")
        return fragment

    def _show_votes(self, release: act.Release, rule: Switching) -> None:
        """Call the rule before votes are answered, as if all voted steps had been trained on.

        They are, whether workers keep them or push them, as they are ordered to if the rule switches.
        """
        self._rule_saw_votes = True
        voted = self.view.voted_samples
        self.view.samples += voted
        self.todo.extendleft(reversed([*rule.on_applied(self.view), release]))
        self.view.samples -= voted

    def _hand_out(self, release: act.Release, kept: int) -> None:
        """Hand a complete release to the backend."""
        worker, size = release.worker, 0
        if release.send:
            size = self._bytes_down if release.fragment < 0 else self._fragment_bytes[release.fragment]
            if worker in self.needs_full_model:
                self.needs_full_model.discard(worker)
                size = self._first_bytes_down
            elif self._exchanges:
                now, n = self.composition, self.view.num_workers
                size = now.bytes_down(self._wire_size, n, version=release.load)
        self.out.append(release)
        log = self.log
        if log is not None:
            text = log.number(plain_json(release.orders)) if release.orders else 0
            pushes = release.then == "push"
            load = release.load
            log.append(pack_release(self.view.now, _RELEASE, worker, pushes, load, kept, size, text))

    def _complete_for_own_half(self, release: act.Release, worker: WorkerView, status: Status) -> int:
        """Add the rate for a worker with local steps, and whether it receives the aggregate.

        Returns the samples of a vote's steps that it keeps: they are progress without a push.
        """
        view, kept = self.view, 0
        if status is VOTED:
            view.num_voted -= 1
            kept = worker.voted_samples if release.then == "step" else 0
            view.samples += kept
            view.set_voted(worker, 0)
            self._rule_saw_votes = self._rule_saw_votes and view.num_voted > 0
        has_model = status is PUSHED and worker.id not in self.needs_full_model
        release.aggregate = self._replies_aggregate and release.send and has_model
        if release.then == "step":
            self._set_rate(release, worker, status)
        return kept

    def _set_rate(self, release: act.Release, worker: WorkerView, status: Status) -> None:
        view, communication = self.view, self.composition.communication
        release.epoch = communication.rate_epoch(view)
        release.epochs_per_step = communication.rate_epochs_per_step(view)
        if release.epochs_per_step:
            release.epoch += self._uncounted_samples(worker, status) / view.dataset_size

    def _uncounted_samples(self, worker: WorkerView, status: Status) -> int:
        """Return the samples that the schedule of a released worker counts, and `view.samples` does not yet.

        Without them the rates would depend on the order in which one answer releases workers.
        """
        view = self.view
        if self._waits_for_neighbours:  # as if all had made as many exchanges
            exchanged = self._exchanged or self._count_exchanged()
            return worker.version * exchanged.a_step - exchanged.samples
        if status is VOTED:  # votes are answered together
            return view.voted_samples
        return view.pending_samples

    def _count_exchanged(self) -> _Exchanged:
        """Count the samples that the active workers exchange, from which later changes go on."""
        here = [other for other in self.view.workers.values() if other.status is not GONE]
        steps = sum(other.batch_size for other in here)
        self._exchanged = _Exchanged(steps, sum(other.version * other.batch_size for other in here))
        return self._exchanged

    def count_exchanged_again(self) -> None:
        """Count the exchanged samples anew when they are needed: other workers are active."""
        self._exchanged = None

    def set_batch_size(self, worker: WorkerView, batch_size: int) -> None:
        if self._exchanged is not None:
            self._exchanged.a_step += batch_size - worker.batch_size
            self._exchanged.samples += worker.version * (batch_size - worker.batch_size)
        worker.batch_size = batch_size

    def hold(self, hold: act.Hold) -> None:
        """Hold a worker, with a reason."""
        number, log = hold.worker, self.log
        if not hold.reason:
            raise ProtocolError(f"worker {number} is held without a reason; give one: Hold(worker, reason)")
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
        """Hold a worker until the hand-over."""
        if worker not in drain.parked:
            drain.parked.add(worker)
            self.hold(act.Hold(worker, "switch"))
        self.unanswered.discard(worker)

    def cancel(self, cancel: act.Cancel) -> None:
        """Cancel a worker's computation; the same answer must release or hold the worker."""
        worker = self.view.workers[cancel.worker]
        if worker.status != Status.COMPUTING:
            raise ProtocolError(f"worker {cancel.worker} was cancelled, but it does not compute")
        worker.status = Status.PUSHED
        self.allowances.end(cancel.worker)
        worker.ticket += 1  # what it still sends carries the old one and is void
        self.view.num_computing -= 1
        self.view.cancelled += 1
        self.unanswered.add(cancel.worker)
        self.out.append(cancel)
        self.record(Kind.CANCEL, worker=cancel.worker)

    def discard(self, discard: act.Discard) -> None:
        """Discard a pending push."""
        push = discard.push
        if self.view.pending.pop(push.id, None) is None:
            raise ProtocolError(f"push {push.id} is discarded, but it is not pending")
        self.view.pending_samples -= push.samples
        self.view.discarded += 1
        self.out.append(discard)
        self.record(Kind.DISCARD, worker=push.worker, id=push.id, text=discard.reason)

    def tell(self, tell: act.Tell) -> None:
        """Send orders to a worker; if its release is withheld, send them after the release."""
        if self.migration is not None and self.migration.withholds(tell.worker, self.view):
            self.migration.withhold_orders(tell)
            return
        if "batch_size" in tell.orders:
            self.set_batch_size(self.view.workers[tell.worker], tell.orders["batch_size"])
        self.out.append(tell)
        self.record(Kind.TELL, worker=tell.worker, text=plain_json(tell.orders))

    def measure(self, measure: act.Measure) -> None:
        """Request numbers from the backend; the rest of the answer waits for them."""
        if not hasattr(getattr(self.composition, measure.domain, None), "on_measured"):
            raise ProtocolError(
                f"the {measure.domain} part returned a Measure, but it defines no on_measured"
            )
        self.measuring_part = measure.domain
        self.out.append(measure)
        self.record(Kind.MEASURE, text=plain_json([measure.domain, measure.needs]))

    def set_timer(self, timer: act.SetTimer) -> None:
        """Request a timer from the backend."""
        if not timer.at >= self.view.now:
            raise ProtocolError(
                f"timer {timer.key!r} was set for {timer.at} s, but it is {self.view.now} s already"
            )
        timer.composition_id = self.composition_id
        self.out.append(timer)
        self.record(Kind.SET_TIMER, compute_s=timer.at, text=timer.key)

    def note(self, note: act.Note) -> None:
        """Write a line in the log."""
        self.out.append(note)
        self.record(Kind.NOTE, text=note.text)

    def reassign(self, change: act.Reassign) -> None:
        """Move parameters once no message is in transit; ignored during a switch."""
        if self.drain is None and self.migration is None:
            self.migration = migration = Migration(change)
            if migration.is_quiet(self.view):
                self._carry_out(migration)

    def advance_migration(self, migration: Migration) -> None:
        """Order silent workers to push; once no message is in transit, move the parameters."""
        self.todo.extend(migration.sweep(self.view, self.composition))
        if not self.todo and migration.is_quiet(self.view):
            self._carry_out(migration)

    def _carry_out(self, migration: Migration) -> None:
        view, ranges = self.view, migration.change.ranges
        text = {"moved": sum(lost_entries(view.ranges, ranges)), "ranges": ranges}
        self.out.append(migration.change)
        self.record(Kind.REASSIGN, version=view.version, text=plain_json(text))
        self.set_ranges(ranges)
        if not self._replies_aggregate:
            self.needs_full_model.update(view.active)
        self.end_migration()

    def end_migration(self) -> None:
        """Hand out the releases and orders that were withheld."""
        migration, self.migration = self.migration, None
        if migration is None:
            return
        tells = migration.tells(self.view)
        for release, kept in migration.completed(self.view):
            self._hand_out(release, kept)
        for tell in tells:
            self.tell(tell)

    def hand_over(self, handover: act.Handover) -> None:
        """Hand over to the next composition, which counts its own updates and timers."""
        self.out.append(handover)
        columns = {"id": handover.to, "steps": handover.origin, "compute_s": handover.cost_s}
        self.record(Kind.HANDOVER, version=self.view.version, text=handover.reason, **columns)
        self.handed_over = self.view.version
        self.composition_id += 1

    def set_ranges(self, ranges: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Set the entries that each server holds, and with them the size of messages."""
        self.view.ranges = ranges
        self._wire_size = size = self._wire_size._replace(ranges=ranges)
        now, n = self.composition, self.view.num_workers
        self._bytes_down = now.bytes_down(size, n)
        self._first_bytes_down = now.bytes_down(size, n, whole=True)
        self._fragment_bytes = [now.bytes_down(size, n, fragment=each) for each in self._fragments]

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is kept between two answers, as plain data."""
        return {
            "drain": self.drain.state_dict() if self.drain is not None else None,
            "migration": self.migration.state_dict() if self.migration is not None else None,
            "needs_full_model": sorted(self.needs_full_model),
            "composition_id": self.composition_id,
            "handed_over": self.handed_over,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from `state_dict`."""
        self.drain = Drain.of_state(state["drain"]) if state["drain"] else None
        self.migration = Migration.of_state(state["migration"]) if state["migration"] else None
        self.needs_full_model = set(state["needs_full_model"])
        self.composition_id = state["composition_id"]
        self.handed_over = state["handed_over"]
        self.unanswered.clear()
        self.allowances.count_again()

    def record(self, kind: Kind, **columns: Any) -> None:
        """Write a row in the log, if there is one."""
        if self.log is not None:
            self.log.add(kind, self.view.now, **columns)
