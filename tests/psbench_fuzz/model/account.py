"""The model's record of versions, releases, and releases withheld while parameters move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

from psbench.core import Action, AnyStrategy, Kind, Status, Strategy, SwitchingStrategy
from psbench.core import actions as act
from psbench.core.collective import Collective
from psbench.core.peer_to_peer import PeerToPeer, WaitsForNeighbours, sends_before_step
from psbench.core.wire_size import WireSize
from psbench_fuzz.model import (
    aggregation,
    codecs,
    communication,
    consistency,
    gossip,
    placement,
    selection,
    stragglers,
    switching,
)
from psbench_fuzz.model.record import ExpectedRows
from psbench_fuzz.model.rule import rule_of
from psbench_fuzz.model.switches import Switches
from psbench_fuzz.model.view import Member, ModelCluster

#: the modules whose import enters the rules
RULE_MODULES = (
    *(aggregation, codecs, communication, consistency, gossip, placement, selection, stragglers, switching),
)


class Account:
    """Versions held by workers, and the expected content of each release and update.

    Parameters
    ----------
    strategy : Strategy or SwitchingStrategy
    batch_sizes : sequence of int, samples
        Of each worker at the beginning.
    wire_size : WireSize
        Of the model.
    **of_cluster
        Fields of `ModelCluster`.

    Attributes
    ----------
    cluster : ModelCluster
    log : ExpectedRows
        What the log must have of the last answer.
    """

    def __init__(
        self,
        strategy: AnyStrategy,
        *,
        batch_sizes: Sequence[int],
        wire_size: WireSize,
        **of_cluster: Any,
    ) -> None:
        self.strategy, self.batches, self.size = strategy, batch_sizes, wire_size
        self.cluster = ModelCluster(layout=wire_size.layout, **of_cluster)
        self.log = ExpectedRows(self.cluster)
        self.switches = Switches(strategy) if isinstance(strategy, SwitchingStrategy) else None
        self.out: list[Action] = []
        self.changes: list[act.Drop | act.Readmit] = []  # made at the end of an answer
        self.switch: act.SwitchTo | None = None  # a switch that drains
        self.swept = False  # whether work under way has been ended for it
        self.parked: set[int] = set()  # workers that wait for it
        self.move: act.Reassign | None = None  # parameters that are to move
        self.carried: dict[int, int] = {}  # the fragment of each push that is pending
        self.kept_back: dict[int, tuple[act.Release, int, bool]] = {}  # releases that wait for that
        self.orders_kept_back: list[act.Tell] = []
        self.told_to_push = False
        self.handovers = 0
        self.counted = False  # whether the rule was asked about the votes that are being answered
        self.version_at_handover = 0
        self.use(0)

    @property
    def rule(self) -> Any:
        """The switch rule that decides, or None."""
        return self.switches.rule if self.switches is not None else None

    def use(self, index: int) -> None:
        """Start the parts of a composition."""
        c = self.cluster
        self.composition: Strategy = self.strategy.compositions[index]
        now = self.composition
        self.consistency, self.aggregation = rule_of(now.consistency), rule_of(now.aggregation)
        self.communication, self.stragglers = rule_of(now.communication), rule_of(now.stragglers)
        self.placement, self.codec = rule_of(now.placement), rule_of(now.communication.codec)
        c.in_force, c.ranges = index, now.placement.ranges(self.size.layout)
        c.graph, c.sends_first = now.placement, sends_before_step(now.communication)
        if self.switches is not None:
            self.switches.reached = index
            self.switches.show(c)

    def start_parts(self) -> list[Action]:
        """Return the parts' initial actions."""
        parts = (self.consistency, self.aggregation, self.communication, self.stragglers, self.placement)
        begun = self.switches.start(self.cluster) if self.switches is not None else []
        begun += [action for part in parts for action in part.start(self.cluster)]
        return begun + list(self.consistency.on_start(self.cluster))

    def make_version(self, apply: act.Apply) -> list[Action]:
        """Make a version; return the parts' answers, in reverse order of the parts."""
        c, now = self.cluster, self.composition
        epoch = self.communication.rate_epoch(c)
        c.version += 1
        by_share = now.lr_scaling == "by_share"
        made = replace(
            apply,
            version=c.version,
            epoch=epoch,
            lr_scale=len(apply.pushes) / c.num_workers if by_share else 1.0,
            momentum_scale=momentum_scale(
                self.strategy, c.in_force, c.version - 1 - self.version_at_handover, c.num_workers
            ),
        )
        if now.sends_fragments:
            made.fragment = {self.carried.pop(push.id) for push in apply.pushes}.pop()
            c.fragments.append(made.fragment)
        self.out.append(made)
        for push, weight in zip(apply.pushes, apply.weights, strict=True):
            own = c.workers[push.worker].version
            version = own if isinstance(now.placement, PeerToPeer) else c.version
            columns = {"id": push.id, "version": version, "samples": push.samples, "steps": push.steps}
            self.log.add(Kind.APPLY, push.worker, **columns, loss=weight)
            del c.pending[push.id]
            c.samples += push.samples
            c.committed += 1
        rule = [self.rule] if self.rule is not None else []
        movers = [self.placement] if now.placement.moves else []
        found = [part.on_applied(c) for part in (self.communication, self.stragglers, *rule, *movers)]
        return [action for actions in reversed(found) for action in actions]

    def mix(self, mix: act.Mix) -> None:
        """Mix models: each becomes the next version of its worker, or a newcomer's first."""
        workers, now = self.cluster.workers, self.composition
        for number in mix.rows:
            joins = workers[number].status is Status.NEW
            workers[number].version += 0 if joins else 1
        for number, weight in mix.push_weights.items():
            workers[number].push_weight = weight
        versions = {number: workers[number].version for number in mix.rows}
        self.out.append(replace(mix, versions=versions))
        models = [other for number, row in mix.rows.items() for other in row if other != number]
        first = next(iter(mix.rows))
        text = {"sent": mix.sent, "steps_first": not sends_before_step(now.communication), "rows": mix.rows}
        count = 2 * (len(mix.rows) - 1) if mix.meet else len(models)
        size = count * self.size.of(now.communication.codec, now.placement)
        self.log.add(Kind.MIX, first, text, id=mix.push, version=versions[first], bytes=size)

    def count_votes(self, release: act.Release) -> list[Action]:
        """Call the rule before votes are answered, as if all voted steps had been trained on; once."""
        c = self.cluster
        voted = c.workers[release.worker].status is Status.VOTED
        if release.then == "push" or not voted or self.rule is None or self.counted:
            return []
        self.counted = True
        samples = sum(c.workers[worker].voted_samples for worker in c.voted)
        c.samples += samples
        decisions: list[Action] = self.rule.on_applied(c)
        c.samples -= samples
        return decisions

    def release(self, release: act.Release) -> None:
        """Release a worker: with a version, whether it is sent, and orders."""
        c, now = self.cluster, self.composition
        member = c.workers[release.worker]
        if member.dropped:
            return
        orders: dict[str, Any] = dict(release.orders)
        steps = release.then == "step"
        if self.switch is not None and steps:
            if not member.overlapping:
                self.park(member)
                return
            orders["push"] = True
        orders |= self.communication.on_release(member.id, c)
        orders |= self.stragglers.on_release(member.id, c)
        orders |= self.codec.on_release(member.id, c)
        member.batch_size = orders.get("batch_size", member.batch_size)
        voted = member.status is Status.VOTED
        first = member.status is not Status.PUSHED
        kept = member.voted_samples if voted and steps else 0
        c.samples += kept
        current = member.version if isinstance(now.placement, PeerToPeer) else c.version
        load = current if steps and not voted else member.base_version
        own_model = now.own_steps or isinstance(now.placement, Collective)
        sends = not voted and (own_model or load != member.base_version or not member.has_model)
        aggregate = now.aggregation.reply != "model" and sends and not first and member.has_model
        made = replace(release, orders=orders, load=load, send=sends, ticket=member.ticket + 1)
        if now.sends_fragments:
            made.fragment = member.fragment if not first and member.has_model else -1
            member.fragment = orders["fragment"]
            sent = now.communication.fragments(self.size.layout)
            for each in range(len(sent)) if made.fragment < 0 else [made.fragment]:
                member.sent[each] = len(c.fragments)
        if now.decides_own_rounds:
            made.allowance = member.allowance = self.share_of_epochs(member)
        if voted or now.computes_on_workers:
            made = replace(made, aggregate=aggregate)
        if steps and (voted or now.computes_on_workers):
            step = self.communication.rate_epochs_per_step(c)
            ahead = self._ahead(member) / c.dataset_size if step else 0.0
            epoch = self.communication.rate_epoch(c) + ahead
            made = replace(made, epoch=epoch, epochs_per_step=step)
        member.status, member.ticket, member.base_version = Status.COMPUTING, made.ticket, load
        member.overlapping, member.hold_reason, member.voted_samples = False, "", 0
        if self.move is not None and steps:
            self.kept_back.pop(member.id, None)
            self.kept_back[member.id] = made, kept, voted
            member.hold_reason = "re-assignment"
            self.log.add(Kind.HOLD, member.id, "re-assignment")
        else:
            self.send(made, kept)
        self.counted = self.counted and bool(c.voted)

    def _ahead(self, member: Any) -> int:
        """Return the samples that a worker's schedule is ahead of the counted ones.

        Without a server it is where all would be with as many exchanges as the worker has made.
        """
        c = self.cluster
        if isinstance(self.composition.consistency, WaitsForNeighbours):
            here = [c.workers[worker] for worker in c.active]
            return sum((member.version - other.version) * other.batch_size for other in here)
        if member.status is Status.VOTED:
            return sum(c.workers[worker].voted_samples for worker in c.voted if worker != member.id)
        return sum(push.samples for push in c.pending.values())

    def share_of_epochs(self, member: Member) -> int:
        """Return the samples that a worker may take until it pushes.

        The site explains the rule: `notebooks/site/explanations/worker_loop.md`.
        Whoever computes will push what it pushed last, or all that it may; the others share the rest.
        """
        c = self.cluster
        if c.epochs is None:
            return -1
        others = [each for each in c.present if each is not member]
        busy = [each for each in others if each.status is Status.COMPUTING]
        due = sum(min(each.allowance, each.pushed_samples or each.allowance) for each in busy)
        trained = c.samples + sum(push.samples for push in c.pending.values())
        left = Fraction(c.epochs).limit_denominator(10**6) * c.dataset_size - trained - due
        return max(0, ceil(left / (len(others) - len(busy) + 1)))

    def send(self, release: act.Release, kept: int) -> None:
        """Send a release; a worker that has no model is sent a whole one."""
        member, number = self.cluster.workers[release.worker], 0
        if release.send:
            size = self.size._replace(ranges=self.cluster.ranges)
            whole = not member.has_model
            parts = [*self.composition.communication.fragments(size.layout), None]
            part = parts[release.fragment]
            workers = self.cluster.num_workers
            number = self.composition.bytes_down(size, workers, whole, part, release.load)
            member.has_model = True
        self.out.append(release)
        columns = {"id": int(release.then == "push"), "version": release.load, "samples": kept}
        self.log.add(Kind.RELEASE, member.id, release.orders or "", **columns, bytes=number)

    def hold(self, hold: act.Hold) -> None:
        """Hold a worker."""
        member = self.cluster.workers[hold.worker]
        if not member.dropped:
            member.hold_reason = hold.reason
            self.out.append(hold)
            self.log.add(Kind.HOLD, hold.worker, hold.reason)

    def note(self, text: str) -> None:
        """Write a line in the log."""
        self.out.append(act.Note(text))
        self.log.add(Kind.NOTE, text=text)

    def tell(self, tell: act.Tell) -> None:
        """Send orders to a worker, after its release if that is withheld."""
        if self.is_kept_back(tell.worker):
            self.orders_kept_back.append(tell)
            return
        member = self.cluster.workers[tell.worker]
        member.batch_size = tell.orders.get("batch_size", member.batch_size)
        self.out.append(tell)
        self.log.add(Kind.TELL, tell.worker, tell.orders)

    def park(self, member: Member) -> None:
        """Hold a worker until the hand-over, once."""
        if member.id not in self.parked:
            self.parked.add(member.id)
            self.hold(act.Hold(member.id, "switch"))

    def enter(self, worker: int) -> None:
        """Add a worker: at the slowest clock, without state, and with its initial batch."""
        c = self.cluster
        tickets = c.workers[worker].ticket if worker in c.workers else 0
        furthest = max((each.version for each in c.present), default=0)
        c.workers[worker] = Member(worker, clock=c.min_clock, ticket=tickets, batch_size=self.batches[worker])
        c.workers[worker].version = c.workers[worker].first_version = furthest

    def take_back(self) -> None:
        self.changes += [act.Readmit(each.id) for each in self.cluster.workers.values() if each.dropped]

    def begin_switch(self, switch: act.SwitchTo) -> None:
        """Start to drain, if there is another composition; parameters no longer move."""
        assert self.switches is not None
        switch = replace(switch, to=switch.to + self.switches.number)
        if self.switch is None and switch.to != self.cluster.in_force:
            self.let_go()
            self.switch, self.swept, self.parked = switch, False, set()

    def end_work(self) -> list[Action]:
        """Return the actions on workers at a switch: orders to push, or cancellations."""
        assert self.switch is not None
        m = self.composition.communication
        cancels = self.switch.drain == "cancel" and not (self.composition.own_steps or m.accumulates)
        told: list[Action] = []
        for member in self.cluster.present:
            if member.status is Status.VOTED:
                told.append(act.Release(member.id, then="push"))
            elif member.status is Status.COMPUTING and cancels:
                told += [act.Cancel(member.id), act.Release(member.id)]
            elif member.status is Status.COMPUTING and m.pushes != "always":
                told.append(act.Tell(member.id, {"push": True}))
        return told

    def begin_move(self, change: act.Reassign) -> None:
        """Withhold releases until no message is in transit; then the parameters move."""
        if self.switch is None and self.move is None:
            self.move, self.kept_back, self.orders_kept_back = change, {}, []
            self.told_to_push = False
            if self.is_quiet():
                self.move_parameters()

    def is_kept_back(self, worker: int) -> bool:
        """Return whether a worker's release is withheld while the parts regard it as computing."""
        member = self.cluster.workers[worker]
        own = self.kept_back.get(worker) if self.move is not None else None
        return own is not None and own[0].ticket == member.ticket and member.status is Status.COMPUTING

    def is_quiet(self) -> bool:
        """Return whether no worker is computing or voting."""
        return not self.cluster.voted and all(map(self.is_kept_back, self.cluster.computing))

    def sweep_for_move(self) -> list[Action]:
        """Order workers to push that might otherwise never push; once."""
        if self.told_to_push:
            return []
        self.told_to_push = True
        if self.composition.communication.pushes != "alone":
            return []
        computing = [worker for worker in self.cluster.computing if not self.is_kept_back(worker)]
        return [act.Tell(worker, {"push": True}) for worker in computing]

    def move_parameters(self) -> None:
        """Move them; all need a whole model then, but for workers that are answered with aggregates."""
        assert self.move is not None
        self.out.append(self.move)
        moved = sum(
            stop - start - sum(max(0, min(b, stop) - max(a, start)) for a, b in new)
            for old, new in zip(self.cluster.ranges, self.move.ranges, strict=True)
            for start, stop in old
        )
        text = {"moved": moved, "ranges": self.move.ranges}
        self.log.add(Kind.REASSIGN, text=text, version=self.cluster.version)
        self.cluster.ranges = self.move.ranges
        if self.composition.aggregation.reply == "model":
            for member in self.cluster.present:
                member.has_model = False
        self.let_go()

    def let_go(self) -> None:
        """Send withheld releases; workers that have not voted start from the latest version."""
        if self.move is None:
            return
        valid = [each for worker, each in self.kept_back.items() if self.is_kept_back(worker)]
        tells = [tell for tell in self.orders_kept_back if self.is_kept_back(tell.worker)]
        self.move = None
        for release, kept, voted in valid:
            member = self.cluster.workers[release.worker]
            member.hold_reason = ""
            if not voted:
                member.base_version = self.cluster.version
                release = replace(release, load=self.cluster.version, send=True)
            self.send(release, kept)
        for tell in tells:
            self.tell(tell)


def momentum_scale(strategy: AnyStrategy, composition: int, updates: int, n: int) -> float:
    """Return the factor on the optimizer's momentum: below 1 only after a switch with such a policy.

    scaled: 1/n. ramped: 1/n, 2/n, 4/n, ... one value for `ramp_updates` updates. ramped_additive: 1/n, 2/n,
    3/n, ... (Sync-Switch).
    """
    if not isinstance(strategy, SwitchingStrategy) or composition == 0:
        return 1.0
    switch = strategy.switches[composition - 1]
    stage = updates // switch.ramp_updates
    factors = {
        "off": 0.0,
        "scaled": 1 / n,
        "ramped": 2 ** min(stage, 64) / n,
        "ramped_additive": (1 + stage) / n,
    }
    return float(min(1.0, factors.get(switch.momentum, 1.0)))
