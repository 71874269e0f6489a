"""A training worker: does what its worker loop says, from one answer to the next."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor

from psbench.backends.dask.coordinator.coordinator import servers_of
from psbench.backends.dask.protocol.framing import is_bare, split, with_buffers
from psbench.backends.dask.protocol.messages import PUSH, RELEASE, PushMessage, ReleaseMessage
from psbench.backends.dask.protocol.transport import JSON, ClientSocket, Message, ServerSocket, pack, unpack
from psbench.backends.dask.worker.checkpointing import begin_from, recorded
from psbench.backends.dask.worker.mailbox import LOOK_S, Abandoned, Mailbox, Stopped
from psbench.backends.dask.worker.ring_member import RingMember
from psbench.backends.dask.worker.usage import Usage
from psbench.backends.partition import gather, partitions, partitions_of
from psbench.backends.worker_codecs import WorkerCodecs
from psbench.codecs import over_the_wire
from psbench.core.migration import Ranges
from psbench.core.worker_loop import WorkerLoop
from psbench.core.worker_policy import Directive
from psbench.errors import CodecError
from psbench.training.batches import Position
from psbench.training.local_model import StepStatistics, local_model
from psbench.training.server import finite
from psbench.training.workload import Workload

#: exchanges that the clocks' difference is taken from: the quickest counts
_CLOCK_ROUNDS = 5


class Worker:
    """One training worker.

    Parameters
    ----------
    problem : Problem
    worker : int
    link : Link
        To the conductor.
    others : list of Link
        To the server shards but the first, in order.
    hub : Hub or None
        Where the member before us in a ring sends its pieces; None if no composition has rings.
    key : bytes
        The run's key, for links to other members.
    """

    member_class = RingMember

    def __init__(
        self,
        workload: Workload,
        worker: int,
        link: ClientSocket,
        others: list[ClientSocket],
        hub: ServerSocket | None,
        key: bytes,
    ) -> None:
        self.workload, self.worker, self.link, self.others = workload, worker, link, others
        self.mail = Mailbox(link)
        self.member = None if hub is None else self.member_class(worker, self.mail, hub, key)
        self.trainer, self.evaluator = workload.trainer(), workload.evaluator()
        self.loop: WorkerLoop | None = None  # begins with a release
        self._optimizer = workload.experiment.optimizer
        if any(each.communication.local for each in workload.experiment.strategy.compositions):
            self._optimizer.build(torch.zeros(1))  # the first of a process takes seconds: no step's
        self._ring_address = None if hub is None else list(hub.address)
        self.lr = 0.0
        self.begins: Position | None = None  # where we were in our data when we were answered
        self._answer: Message | None = None  # that came while we computed on
        self._halted = False
        self._tell_model: int | None = None  # with the next release: the number of who asks
        self.connections: WorkerCodecs | None = None  # where a codec reads and writes
        self.owed: Tensor | None = None  # what it has not said before, where none does
        self._offset_s = self._begin_s = self._next_check = 0.0
        self._slowness = _slowness(workload, worker)
        self._usage = Usage(worker)
        self._compose(0)

    def run(self) -> None:
        """Work until the conductor says stop.

        Raises
        ------
        Stopped
            Always, at the end.
        """
        self._set_clock()
        self.mail.tell({"do": "ready", "ring": self._ring_address})
        try:
            while True:
                letter = self._await_release()
                self._usage.begin()
                self._go_on(letter)
        except Abandoned:
            raise
        except Stopped:
            self.mail.tell({"do": "usage", "facts": self._usage.facts()})
            raise
        finally:
            if self.member is not None:
                self.member.close()

    # ---------------------------------------------------------------- from one answer to the next

    def _go_on(self, letter: Message) -> None:
        """Do what the loop says, from a release until there is nothing to do without an answer."""
        verdict: Directive | None = self._take(letter)
        goes_on = verdict == "continue" or self._obey(verdict)
        while goes_on:
            verdict = self._step()
            goes_on = self._obey(verdict)

    def _take(self, letter: Message) -> Directive:
        """Take a release, and what comes with it from all servers."""
        released = ReleaseMessage.decode(letter.body)
        if self.loop is None:
            self.loop = WorkerLoop(self.composition, self.worker, released.samples)
        verdict = self.loop.release(released.then, released.ticket, released.version, released.orders)
        if released.then == "step":
            self.begins = self.trainer.position(self.worker)
            if self.connections is not None:
                self.connections.mark_release()
        if released.then == "step":
            self._renew(released, letter.payload)
        return verdict

    def _renew(self, released: ReleaseMessage, payload: Tensor | None) -> None:
        before = self.lr
        if self.own_steps:
            self.lr = self._optimizer.rate(released.epoch)
        if released.aggregate:
            self.model.receive(self._aggregate(released, payload), self.lr)
        elif released.sent:
            self.model.load(*self._model(released, payload), self.lr)
        else:
            self.model.keep(before)  # after a vote, or if we hold that version already
        if self._tell_model is not None:
            tag, self._tell_model = self._tell_model, None
            self._send_model(tag)

    def _model(self, released: ReleaseMessage, payload: Tensor | None) -> tuple[Tensor, Tensor]:
        if self._collective:
            assert self.member is not None
            return self.member.replica.parameters, self.member.replica.buffers
        assert payload is not None
        first, buffers = split(payload, self._partitions[0].size, len(self.workload.buffers))
        parts = self._parts(released, first)
        written = self.connections
        return (gather(parts, self._partitions) if written is None else written.model(parts)), buffers

    def _aggregate(self, released: ReleaseMessage, payload: Tensor | None) -> Tensor:
        if self._collective:
            assert self.member is not None
            assert self.member.replica.aggregate is not None
            return self.member.replica.aggregate
        assert payload is not None
        parts = self._parts(released, payload)
        written = self.connections
        return gather(parts, self._partitions) if written is None else written.aggregate(parts)

    def _parts(self, released: ReleaseMessage, first: Tensor) -> list[Tensor]:
        """Return the servers' slices as they travelled."""
        return [first, *(self._part(other, released.ticket) for other in self._serving)]

    def _part(self, other: ClientSocket, ticket: int) -> Tensor:
        """Wait for another server's part of the answer; older ones are of work that was made void."""
        while True:
            letter = other.receive(LOOK_S)
            if letter is not None and letter.kind == RELEASE:
                assert letter.payload is not None
                if ReleaseMessage.decode(letter.body).ticket == ticket:
                    return letter.payload
            elif letter is None:
                self.mail.look()

    def _step(self) -> Directive | None:
        """Compute a step and return what to do then; None if it has become void."""
        loop, model = self.loop, self.model
        assert loop is not None
        began = time.perf_counter()
        if loop.chunk:
            self.trainer.assign(self.worker, loop.chunk)
        samples = loop.batch_size
        batch = self.trainer.read(self.trainer.start(self.worker, samples, loop.injection))
        read = time.perf_counter() - began
        result = self.trainer.compute(batch, model.parameters, model.buffers)
        computed = time.perf_counter() - began
        self._usage.add(read, computed - read)
        if self._interrupted(computed * (self._slow_factor(began) - 1.0)):
            return None
        compute_s = time.perf_counter() - began
        model.stepped(result, samples, self.lr)
        answer, self._answer = self._answer, None
        if answer is not None:
            self._take(answer)
        stats = StepStatistics(result, model, self.evaluator)
        return loop.stepped(samples, compute_s, result.loss, stats)

    def _slow_factor(self, began: float) -> float:
        """Return how many times as long as here a step takes on the emulated machine."""
        factor, spells = self._slowness
        if spells:
            at = began - time.perf_counter() + time.monotonic() + self._offset_s - self._begin_s
            for from_s, to_s, times in spells:
                factor *= times if from_s <= at < to_s else 1.0
        return max(1.0, factor)

    def _interrupted(self, seconds: float) -> bool:
        """Wait so long, or until the step becomes void; obey other orders meanwhile."""
        now = time.monotonic()
        if now >= self._next_check:  # who computes for long without waiting would not know
            self._next_check = now + LOOK_S
            self.mail.check()
        if seconds <= 0 and self.mail.is_empty:
            return False  # nearly always
        until = now + seconds
        while True:
            left = until - time.monotonic()
            letter = self.mail.next(min(max(0.0, left), LOOK_S))
            if letter is None:
                if left <= 0:
                    return False
            elif letter.kind == RELEASE:
                if self.loop is None or not self.loop.exchanging:
                    self.mail.put_back(letter)
                    return True
                self._answer = letter
            else:
                self._hear(letter)
                if self._halted:
                    return True

    # ---------------------------------------------------------------- what the loop says

    def _obey(self, verdict: Directive | None) -> bool:
        """Do what the worker loop says; returns whether to compute a step then."""
        loop = self.loop
        if loop is None or verdict is None:
            return False
        if verdict in ("continue", "report"):
            self.model.keep(self.lr)
            if verdict == "report":
                report = loop.report()
                self.mail.tell({"do": "report", "ticket": report.ticket, "stats": report.stats})
            return True
        if verdict in ("push", "push_and_continue"):
            self._push(overlapping=verdict == "push_and_continue")
        elif verdict == "vote":
            self._vote()
        return verdict == "push_and_continue"

    def _vote(self) -> None:
        assert self.loop is not None
        vote = self.loop.vote()
        told = {"ticket": vote.ticket, "value": vote.value}
        self.mail.tell({"do": "vote", "samples": vote.samples, "compute_s": vote.compute_s} | told)

    def _push(self, overlapping: bool) -> None:
        assert self.loop is not None
        push = self.loop.push(-1, bytes=0, overlapping=overlapping)
        payload, buffers = self._payload(), self.model.buffers
        if self._collective:
            payload = over_the_wire(payload, self.composition.communication.codec.name)
        is_finite = math.isfinite(push.loss) and finite(payload)
        parts: list[Tensor] = []
        if is_finite and not self._collective:
            try:
                parts = self._written(payload)
            except CodecError:
                is_finite = False
        body = PushMessage.of(push, time.monotonic() + self._offset_s, is_finite).encode()
        if not parts:  # nothing travels, or what cannot, and then the word of it ends the run
            if self.member is not None:
                self.member.mine = payload, buffers
            self.link.send(PUSH, body)
            return
        for other, part in zip(self._serving, parts[1:], strict=True):
            other.send(PUSH, body, part)
        self.link.send(PUSH, body, with_buffers(parts[0], buffers))

    def _payload(self) -> Tensor:
        payload = self.model.payload()
        owed, self.owed = self.owed, None
        return payload if owed is None else payload + owed

    def _written(self, payload: Tensor) -> list[Tensor]:
        """Return the servers' slices as they travel."""
        if self.connections is None:
            return [cut.of(payload) for cut in self._partitions]
        return self.connections.push(payload)

    def _send_model(self, tag: int) -> None:
        """Send our own model, which is as good as anybody's where models drift apart."""
        shapes, flat = pack({"parameters": self.model.parameters, "buffers": self.model.buffers})
        self.mail.tell({"do": "model", "tag": tag, "shapes": shapes}, flat)

    # ---------------------------------------------------------------- letters

    def _await_release(self) -> Message:
        while True:
            letter = self.mail.next(LOOK_S)
            if letter is None:
                continue
            if letter.kind == RELEASE:
                self._halted = False
                return letter
            self._hear(letter)

    def _hear(self, letter: Message) -> None:
        if letter.kind != JSON:
            return  # a ping
        plain = letter.plain
        order = plain["do"]
        if order == "stop":
            raise Stopped
        if order == "orders":
            if self.loop is not None:
                self.loop.on_orders(plain["orders"])
        elif order == "model":
            self._asked_for_model(plain["tag"], plain["with_release"])
        elif order == "halt":
            self._begin_anew()
            self._halted = True
        elif order == "checkpoint":
            self._tell_record(plain["tag"], plain["waits"])
        elif order == "resume":
            self._resume(plain, letter.payload)
        elif order == "compose":
            self._hand_over(plain["composition"])
        elif order == "reassign":
            self._reassign(plain["ranges"])
        elif order == "start":
            self._start(plain)
        elif self.member is not None:
            self.member.obey(plain, letter)

    def _asked_for_model(self, tag: int, with_release: bool) -> None:
        if with_release:
            self._tell_model = tag
        else:
            self._send_model(tag)

    def _start(self, plain: dict[str, Any]) -> None:
        self._begin_s = plain["begin_s"]
        if self.member is not None:
            self.member.meet(plain["ring"])

    def _set_clock(self) -> None:
        """Find what to add to our clock to get the conductor's (Cristian's algorithm)."""
        quickest = float("inf")
        for _ in range(_CLOCK_ROUNDS):
            asked = time.monotonic()
            self.mail.tell({"do": "clock"})
            answer = self._await_clock()
            took = time.monotonic() - asked
            if took < quickest:
                quickest, self._offset_s = took, answer - (asked + took / 2)

    def _await_clock(self) -> float:
        while True:
            letter = self.mail.fresh(LOOK_S)
            if letter is not None and letter.kind == JSON:
                plain = letter.plain
                if plain["do"] == "clock":
                    return float(plain["time_s"])
                self.mail.keep(letter)

    # ---------------------------------------------------------------- compositions

    def _hand_over(self, index: int) -> None:
        """Go on under another composition with what we have not said under this one."""
        now, unsaid = self.workload.experiment.strategy.compositions[index], self._unsaid
        self._compose(index, None if now.forgets_residual(self.composition) else unsaid)

    def _compose(self, index: int, unsaid: Tensor | None = None) -> None:
        """Work for another composition: with servers, or with a replica of our own."""
        workload = self.workload
        self.composition = composition = workload.experiment.strategy.compositions[index]
        count = servers_of(composition)
        self._collective, self.own_steps = not count, composition.own_steps
        self._partitions = partitions(composition.placement, workload.model.layout)
        self._serving = self.others[: max(0, count - 1)]
        self.trainer.unassign()
        self._begin_anew(unsaid)
        if self._collective:
            assert self.member is not None
            replica = workload.server()  # a later composition's is sent
            replica.keeps_aggregate = composition.aggregation.reply == "aggregate"
            self.member.begin(replica, composition.communication.codec.name)

    def _tell_record(self, tag: int, waits: bool) -> None:
        """Tell what we would need to go on: as we are if we wait, else as we were when we were answered."""
        tensors, was = recorded(self, waits)
        shapes, flat = pack(tensors)
        self.mail.tell({"do": "record", "tag": tag, "shapes": shapes, "was": was}, flat)

    def _resume(self, plain: dict[str, Any], payload: Tensor | None) -> None:
        """Be where a worker was that told so."""
        self._compose(plain["composition"])
        if plain["ranges"] and not self._collective:
            self._reassign(plain["ranges"])
        if plain["was"] is not None:
            begin_from(self, plain["was"], unpack(plain["shapes"], payload))

    def _reassign(self, ranges: Ranges) -> None:
        """Write to servers that hold other entries from now on; what we compute stays as it is."""
        self._partitions = partitions_of(ranges)
        if self.connections is not None:
            self.connections = self.connections.repartitioned(self._partitions)

    @property
    def _unsaid(self) -> Tensor | None:
        """What our pushes have not said."""
        return self.owed if self.connections is None else self.connections.residual

    def _begin_anew(self, unsaid: Tensor | None = None) -> None:
        """Forget what we have concluded and computed; what was pushed is not lost."""
        self.loop = self._answer = self._tell_model = self.begins = None
        self.model = local_model(self.composition, self._optimizer)
        self.connections, self.owed = None, unsaid
        if not (self._collective or is_bare(self.composition)):
            self.connections = WorkerCodecs(
                self.composition, self._partitions, self.workload.streams, self.worker
            )
            self.owed = None
            if unsaid is not None:
                self.connections.add_residual(unsaid)


def _slowness(workload: Workload, worker: int) -> tuple[float, list[tuple[float, float, float]]]:
    """Return how many times slower a worker is than the fastest, and its slow spells."""
    profile = workload.profile
    spells = [(slow.from_s, slow.to_s, slow.factor) for slow in profile.slowdowns if slow.worker == worker]
    return max(profile.speed) / profile.speed[worker], spells


__all__ = ["Abandoned", "Stopped", "Worker"]
