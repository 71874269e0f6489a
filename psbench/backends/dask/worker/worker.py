"""A training worker: executes its worker loop's decisions, from one release to the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from psbench.backends.checkpointing import SELECTION, Since, kept_tensors, named, repeats_steps, under
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Json, Message
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.messages import EntryRanges, ReleaseMessage
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.protocol.transport import Abandoned, ClientSocket, ServerSocket, Stopped
from psbench.backends.dask.protocol.wire import patience_of
from psbench.backends.dask.worker.clock import CoordinatorClock, EmulatedMachine
from psbench.backends.dask.worker.exchange import (
    RingExchange,
    ServerExchange,
    SharedMemoryExchange,
    WorkerExchange,
)
from psbench.backends.dask.worker.gossip_member import GossipExchange, GossipMember
from psbench.backends.dask.worker.mailbox import LOOK_S, Mailbox
from psbench.backends.dask.worker.ring_member import RingMember
from psbench.backends.dask.worker.usage import Usage
from psbench.backends.local_steps import brought, obey, push_round, renew, restored_loop
from psbench.backends.partition import Partition, fragments_of
from psbench.backends.stamps import WorkerStamps
from psbench.core import events as ev
from psbench.core.collective import Collective, Shares, servers_that_add
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.shared_memory import SharedMemory
from psbench.core.strategy import Strategy
from psbench.core.worker_loop import WorkerLoop
from psbench.core.worker_policy import Directive
from psbench.training.batches import BatchPosition
from psbench.training.build import Workload
from psbench.training.corruption import Corruptions
from psbench.training.local_model import LocalModel, StepStatistics

#: tensors and plain data
_Part: TypeAlias = tuple[StateDict, dict[str, Any]]


class Worker:
    """One training worker.

    Parameters
    ----------
    workload : Workload
    worker : int
    coordinator : ClientSocket
    servers : list of ClientSocket
        To the parameter servers but the first, in order.
    socket : ServerSocket or None
        Where the member before this one in a ring sends its pieces; None if no composition has rings.
    key : bytes
        The run's key, for connections to other members.
    """

    member_class = RingMember

    def __init__(
        self,
        workload: Workload,
        worker: int,
        coordinator: ClientSocket,
        servers: list[ClientSocket],
        socket: ServerSocket | None,
        key: bytes,
    ) -> None:
        self.workload, self.worker = workload, worker
        self.servers = [coordinator, *servers]  # the first server is in the coordinator's process
        self.mailbox = Mailbox(coordinator)
        compositions = self._compositions = workload.experiment.strategy.compositions
        member = GossipMember if isinstance(compositions[0].placement, PeerToPeer) else self.member_class
        patience = patience_of(workload.experiment.connection)
        self.member = None if socket is None else member(worker, self.mailbox, socket, key, patience)
        self.trainer, self.evaluator = workload.trainer(), workload.evaluator()
        self.loop: WorkerLoop | None = None  # begins with a release
        self._optimizer = workload.optimizers[1]
        if any(each.has_local_steps for each in compositions):
            # the first update of torch's takes seconds: no step's
            self._optimizer.of_entries(torch.ones(1)).of_tensors([(1,)]).update(torch.zeros(1))
        self._ring_address: Address | None = None if socket is None else socket.address
        self.composition: Strategy
        self.exchange: WorkerExchange
        self.model: LocalModel
        self._ranges: EntryRanges | None = None  # of the servers, if they are not as the placement says
        #: its part of a checkpoint as of its last release, and as of its last push that it computed on beside
        self._at_release: _Part | None = None
        self._at_push: _Part | None = None
        self._repeats = False  # steps of before a checkpoint, once training starts
        self._overlapped: ReleaseMessage | None = None  # that came while the worker computed on
        self._halted = False
        self._model_tag: int | None = None  # of a request for the model after the next release
        self._clock = CoordinatorClock()
        self._machine = EmulatedMachine(workload.profile, worker, workload.streams)
        self._corruptions = Corruptions.of_profile(workload.profile, workload.streams)
        self._next_check = 0.0
        self._usage = Usage(worker, lambda: max(0.0, self._clock() - self._clock.begin_s))
        experiment = workload.experiment
        self._stamps = WorkerStamps(experiment.threads) if experiment.connection.stamps else None
        self._noting: WorkerStamps | None = None  # they, where the last release asked for stamps
        self._handlers: dict[type[Message], Callable[..., None]] = {
            msg.StopRun: self._stop,
            msg.StartTraining: self._start_training,
            msg.NewOrders: self._take_orders,
            msg.ChangeSpeed: self._change_speed,
            msg.Halt: self._halt,
            msg.SendModel: self._model_requested,
            msg.SendWorkerState: self._send_state,
            msg.ResumeWorker: self._resume,
            msg.ChangeComposition: self._hand_over,
            msg.ChangeRanges: self._change_ranges,
        }
        self._compose(0)

    def run(self, met: Callable[[], None] = lambda: None) -> None:
        """Work until the coordinator stops the run.

        Parameters
        ----------
        met : callable
            Called when the coordinator has answered, and knows that this worker is ready.

        Raises
        ------
        Stopped
            Always, at the end.
        """
        clock = self._clock.synchronise(self.mailbox)
        if self._stamps is not None:
            self._stamps.clock(*clock)
        self.mailbox.send(msg.Ready(self._ring_address))
        met()
        try:
            while True:
                release = self._await_release()
                self._usage.begin()
                self._work_from(release)
        except Abandoned:
            raise
        except Stopped:
            if self._stamps is not None:
                self._report_stamps(self._stamps)
            self.mailbox.send(msg.UsageReport(**self._usage.facts()))
            raise
        finally:
            if self.member is not None:
                self.member.close()

    def _report_stamps(self, stamps: WorkerStamps) -> None:
        """Synchronise the clocks once more, and send the recorded times to the coordinator."""
        stamps.clock(*self._clock.synchronise(self.mailbox))
        self.mailbox.send(msg.StampsReport(**stamps.facts()))

    # ---------------------------------------------------------------- from one release to the next

    def _work_from(self, release: ReleaseMessage | None) -> None:
        """Execute the worker loop's directives until the next release is needed."""
        directive: Directive | None = "continue" if release is None else self._take(release)
        if release is not None and release.halts:
            return
        goes_on = directive == "continue" or self._obey(directive)
        while goes_on:
            directive = self._step()
            goes_on = self._obey(directive)

    def _take(self, release: ReleaseMessage) -> Directive:
        """Handle a release with the answers of all servers."""
        if self.loop is None:
            self.loop = WorkerLoop(self.composition, self.worker, release.samples)
        rate = release.epoch, release.epochs_per_step
        directive = self.loop.release(
            release.then, release.ticket, release.version, release.orders, release.allowance, *rate
        )
        if release.then == "step":
            self.exchange.mark_release()
            self._renew(release)
            self.exchange.began(release.version)
            self._at_release = self._part("release")
        return directive

    def _renew(self, release: ReleaseMessage) -> None:
        """Load the model or aggregate of a release."""
        vectors = brought(self.exchange, release, release.sent)
        self.model.obey(release.orders)
        renew(self.model, vectors, release.fragment)
        if self._model_tag is not None:
            tag, self._model_tag = self._model_tag, None
            self._send_model(tag)

    def _step(self) -> Directive | None:
        """Compute a step and return the next directive; None if the step was cancelled."""
        loop, model = self.loop, self.model
        assert loop is not None
        stamps = self._noting
        cpu_s = 0.0 if stamps is None else stamps.cpu()
        began = time.perf_counter()
        if loop.chunk:
            self.trainer.assign(self.worker, loop.chunk)
        samples = loop.batch_size
        own = model.parameters, model.buffers
        job = self.trainer.start(self.worker, samples, loop.injection, model.orders, own)
        batch = self.trainer.read(job)
        read = time.perf_counter() - began
        result = self.trainer.compute(batch, *own)
        computed = time.perf_counter() - began
        self._usage.add(read, computed - read)
        if stamps is not None:
            cpu_s = stamps.cpu() - cpu_s
        paced_s = self._machine.more_s(self._clock, began, computed, samples, job.looked)
        if self._interrupted(paced_s):
            return None
        compute_s = time.perf_counter() - began
        if stamps is not None:
            stamps.step(began, compute_s, paced_s, cpu_s)
        self.trainer.learn(job, result)
        model.stepped(result, samples, loop.epoch)
        overlapped = self._overlapped
        if overlapped is not None and loop.takes_answer(stepped=True):
            self._overlapped = None
            self._take(overlapped)
        stats = StepStatistics(result, model, self.evaluator)
        return loop.stepped(samples, compute_s, result.loss, stats)

    def _interrupted(self, seconds: float) -> bool:
        """Wait for that time, or until the step is cancelled; obey other orders meanwhile."""
        now = time.monotonic()
        if now >= self._next_check:  # a worker that computes for long without waiting would not know
            self._next_check = now + LOOK_S
            self.mailbox.check()
        if seconds <= 0 and self.mailbox.is_empty:
            return False  # nearly always
        until = now + seconds
        while True:
            left = until - time.monotonic()
            message = self.mailbox.next(min(max(0.0, left), LOOK_S))
            if message is None:
                if left <= 0:
                    return False
            elif isinstance(message, ReleaseMessage):
                if self.loop is None or not self.loop.exchanging:
                    self.mailbox.put_back(message)
                    return True
                self._overlapped = message
            else:
                self._handle(message)
                if self._halted:
                    return True

    def _obey(self, directive: Directive | None) -> bool:
        """Execute a directive; return whether to compute a step next."""
        if self.loop is None or directive is None:
            return False
        return obey(directive, self.loop, keep=self.model.keep, send=self._send_decision, push=self._push)

    def _send_decision(self, decision: ev.Report | ev.Vote) -> None:
        if isinstance(decision, ev.Report):
            self.mailbox.send(msg.ReportMessage(decision.ticket, decision.stats))
        else:
            vote = decision.ticket, decision.value, decision.samples, decision.compute_s
            self.mailbox.send(msg.VoteMessage(*vote))
        if self._noting is not None:
            self._noting.sent_word(decision.ticket, isinstance(decision, ev.Vote))

    def _push(self, overlapping: bool) -> None:
        assert self.loop is not None
        push = push_round(
            self.model,
            self.loop,
            self.exchange,
            self._corruptions,
            num_bytes=0,
            overlapping=overlapping,
            reported=self.trainer.report(self.worker),
        )
        if overlapping:
            self._at_push = self._part("push")
        if self._noting is not None:
            self._noting.sent(push.ticket)

    # ---------------------------------------------------------------- messages of the coordinator

    def _await_release(self) -> ReleaseMessage | None:
        """Wait for the next release; None if training starts in the middle of this worker's steps."""
        while True:
            message = self.mailbox.next(LOOK_S)
            if isinstance(message, ReleaseMessage):
                self._halted = False
                self._noting = self._stamps if message.stamped else None
                if self._noting is not None:
                    self._noting.received()
                return message
            if message is not None:
                self._handle(message)
            if self._repeats and isinstance(message, msg.StartTraining):
                self._repeats = False
                return None

    def _handle(self, message: Message) -> None:
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(message)
        elif self.member is not None:
            self.member.handle(message)

    def _stop(self, order: msg.StopRun) -> None:
        raise Stopped

    def _start_training(self, order: msg.StartTraining) -> None:
        self._clock.begin_s = order.begin_s
        if isinstance(self.member, GossipMember):
            self.member.begin_training()

    def _take_orders(self, order: msg.NewOrders) -> None:
        if self.loop is not None:
            self.loop.on_orders(order.orders)
            if self._at_release is not None:
                self._at_release[1].setdefault("later_orders", []).append(order.orders)

    def _change_speed(self, order: msg.ChangeSpeed) -> None:
        self._machine.by_hand = order.factor

    def _halt(self, order: msg.Halt) -> None:
        self._restart(None)
        self._model_tag = None  # the coordinator awaits it no longer; after a switch it does
        self._halted = True

    def _model_requested(self, order: msg.SendModel) -> None:
        if order.with_release:
            self._model_tag = order.tag
        else:
            self._send_model(order.tag)

    def _send_model(self, tag: int) -> None:
        """Send this worker's model, for the mean of all models between averages."""
        tensors = {"parameters": self.model.parameters, "buffers": self.model.buffers}
        self.mailbox.send(msg.WorkerModel(tag, tensors))

    def _send_state(self, order: msg.SendWorkerState) -> None:
        """Send this worker's part of a checkpoint: current if it waits, else of its last release or push."""
        is_exchanging, is_current = self.loop is not None and self.loop.exchanging, True
        if order.waits and not is_exchanging:
            part = self._part()
        elif self._at_push is not None and is_exchanging and (order.waits or self._overlapped is not None):
            part = self._at_push  # its answer is here, or still to be sent: the push was handled
        else:
            part, is_current = self._at_release or self._part(), False
        tensors, plain = self.exchange.checkpoint(is_current)
        tensors |= part[0] | ({} if self._corruptions is None else self._corruptions.tensors(self.worker))
        self.mailbox.send(msg.WorkerState(order.tag, Json(plain | part[1]), tensors))

    def _part(self, since: Since | None = None) -> _Part:
        """Return this worker's state for a checkpoint, assuming that it computes from now on."""
        position = self.trainer.position(self.worker)
        plain: dict[str, Any] = {"position": position, "used": position.steps}
        tensors: StateDict = named(SELECTION, self.trainer.remembered(self.worker))
        if self.loop is not None and (since is None or self._repeats_steps):
            plain["loop"], plain["next_chunk_s"] = self.loop.state_dict(), None
            if since is not None:
                plain["since"], plain["orders"] = since, {**self.model.orders}
            if since is not None or self.composition.computes_on_workers:  # others are sent the model again
                tensors |= named("model/", self.model.state_dict())
        return tensors, plain

    # ---------------------------------------------------------------- compositions

    def _hand_over(self, order: msg.ChangeComposition) -> None:
        """Continue under another composition, with the residual unless its units differ."""
        new, residual = self._compositions[order.composition], self.exchange.residual
        self._compose(order.composition, None if new.forgets_residual(self.composition) else residual)

    def _compose(self, index: int, residual: Tensor | None = None) -> None:
        """Start a composition: with servers, or with this worker's replica."""
        self.composition = composition = self._compositions[index]
        self._repeats_steps = repeats_steps(composition)
        self.trainer.unassign()
        self.trainer.select(composition.selection, self.workload.known_of_data(composition.selection))
        if self._corruptions is not None:
            self._corruptions.forget()
        self._ranges = None
        self._restart(residual)
        if isinstance(composition.placement, Collective):
            assert self.member is not None
            replica = self.workload.server()  # a later composition's is sent
            replica.use(composition.aggregation, self._fragments())
            placement, codec = composition.placement, composition.communication.codec.name
            servers = self.servers[: servers_that_add(placement)]
            gathers = placement.gathers if isinstance(placement, Shares) else 0
            self.member.begin(replica, codec, servers, gathers)

    def _restart(self, residual: Tensor | None) -> None:
        """Discard state derived since the last push."""
        self.loop = self._overlapped = self._at_release = self._at_push = None
        self._repeats = False
        self.model = LocalModel(self.composition, self._optimizer, self._fragments())
        common = self.mailbox, self._clock, residual
        if isinstance(self.composition.placement, Collective):
            assert self.member is not None
            self.exchange = RingExchange(self.member, self._fragments(), *common)
        elif isinstance(self.member, GossipMember):
            own = self.composition, self.workload, self.model
            self.exchange = GossipExchange(self.member, *own, self.mailbox, self._clock)
        elif isinstance(self.composition.placement, SharedMemory):
            self.exchange = SharedMemoryExchange(self.composition, self.workload, self.worker, *common)
        else:
            composition, workload = self.composition, self.workload
            self.exchange = ServerExchange(self.servers, composition, workload, self.worker, *common)
            if self._ranges:
                self.exchange.reassign(self._ranges)
        if self._stamps is not None:
            self.exchange.take_note(self._stamps)

    def _fragments(self) -> list[Partition]:
        return fragments_of(self.composition, self.workload.model.layout)

    def _change_ranges(self, order: msg.ChangeRanges) -> None:
        self._ranges = order.ranges
        self.exchange.reassign(order.ranges)

    def _resume(self, order: msg.ResumeWorker) -> None:
        """Restore this worker's part of a checkpoint."""
        self._compose(order.composition)
        if order.ranges:
            self._change_ranges(msg.ChangeRanges(order.ranges))
        push = under("push/", order.tensors)
        if push:
            assert self.member is not None
            self.member.contribute(push["payload"], push["buffers"])
        if order.state is None:
            return
        plain = order.state.data
        if plain["position"] is not None:
            self.trainer.go_to(self.worker, BatchPosition(*plain["position"]))
            self.trainer.remember(self.worker, under(SELECTION, order.tensors))
        self.exchange.restore(order.tensors, plain)
        self.loop = restored_loop(plain, self.composition, self.worker)
        if self._corruptions is not None:
            self._corruptions.load(order.tensors)
        model = under("model/", order.tensors)
        if model:
            self.model.load_state_dict(model)
        if "since" in plain and self.loop is not None:
            self._repeats = True
            self.model.obey(plain["orders"])
            self._at_release = self._at_push = kept_tensors(order.tensors), {**plain}
            for orders in plain.get("later_orders", ()):
                self.loop.on_orders(orders)
