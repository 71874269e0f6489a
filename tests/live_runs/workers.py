"""Workers without arithmetic, which follow the protocol: the same loop as a real one, in the same order.

What a worker does is a generator, as in a real one a thread: it yields where it would block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeAlias

import torch

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Json, Message
from psbench.backends.dask.protocol.messages import PushMessage, ReleaseMessage
from psbench.backends.dask.protocol.roles import Address, server_name, servers_of
from psbench.backends.local_steps import restored_loop
from psbench.backends.partition import gather, partitions, partitions_of, ring_shares
from psbench.core.collective import Collective
from psbench.core.worker_loop import WorkerLoop
from psbench.core.worker_policy import Directive
from psbench.testing.invariants import BrokenContract
from psbench.training.build import Workload
from tests.live_runs.servers import version_of

#: what a worker does until it is to wait: it yields a condition to go on
Life: TypeAlias = Generator[Callable[[], bool], None, Any]
#: multiples of it lie evenly between 0 and 1, one after the other far apart
_GOLDEN = 0.6180339887


class _Statistics(dict[str, float]):
    """Of a step: whatever is read has a number of that step and worker; pushes have those names."""

    def __init__(self, worker: int, step: int, names: Iterable[str]) -> None:
        self.number = 0.1 + _GOLDEN * (step + worker / 2) % 1.0
        super().__init__(dict.fromkeys(names, self.number))

    def __missing__(self, name: str) -> float:
        return self.number


class Rings:
    """Who has entered each ring: a ring can be finished once every member has."""

    def __init__(self) -> None:
        self._entered: dict[int, set[int]] = {}

    def enter(self, ring: int, worker: int) -> None:
        """Enter a ring."""
        self._entered.setdefault(ring, set()).add(worker)

    def is_full(self, order: msg.StartRing) -> bool:
        """Whether all members have entered."""
        return len(self._entered[order.ring]) == order.place.size


class FakeWorker:
    """One training worker.

    Parameters
    ----------
    workload : Workload
    worker : int
    rings : Rings
    send : callable
        Sends a message to a process, by its name.
    clock : callable
        Returns the time, in seconds of the coordinator's clock.
    address : str
        Where other workers reach this process.

    Attributes
    ----------
    steps_ended : int
        Steps that may end: a schedule lets one end by adding to it.
    diverges : bool
        Whether what it pushes next is not finite.
    """

    def __init__(
        self,
        workload: Workload,
        worker: int,
        rings: Rings,
        send: Callable[[str, Message], None],
        clock: Callable[[], float],
        address: str = "fake://worker",
    ) -> None:
        self.address = address
        self._place: msg.RingPlace | None = None  # in every ring, if each has a share of the model
        self._workload, self.worker, self._rings, self._send = workload, worker, rings, send
        self._clock, self.diverges = clock, False
        self._compositions = workload.experiment.strategy.compositions
        self.mailbox: deque[Message] = deque()
        self.slices: dict[str, deque[ReleaseMessage]] = {}
        self.steps_ended = self.rings_done = 0
        self.computing = self.in_full_ring = False
        self._loop: WorkerLoop | None = None
        self._index = 0
        self._ranges: Any = None
        self._overlapped: ReleaseMessage | None = None
        self._halted = False
        self._model_tag: int | None = None
        self._finished = 0  # the last ring whose sum it has
        self._contributes = False  # whether it has something to add to a ring
        self.version = 0  # of the model that it has, or of its replica
        self._steps = 0
        self._life = self._run()
        self._goes_on: Callable[[], bool] = lambda: True

    def live(self) -> None:
        """Do what can be done without waiting."""
        while self._goes_on():
            self._goes_on = next(self._life)

    @property
    def ticket(self) -> int:
        """Of its last release; -1 if it has none."""
        return -1 if self._loop is None else self._loop.ticket

    @property
    def exchanges(self) -> bool:
        """Whether it computes while the answer to its push is under way."""
        return self._loop is not None and self._loop.exchanging

    def take_from_peer(self, message: Message) -> None:
        """Take what another worker has sent: of sums that are none nothing is sent."""
        raise AssertionError("members of a ring are told by the schedule when it is finished")

    @property
    def awaits_neighbour(self) -> int:
        """The worker whose model it waits for; -1 if it waits for none."""
        return -1

    @property
    def _composition(self) -> Any:
        return self._compositions[self._index]

    # ---------------------------------------------------------------- its life

    def _run(self) -> Life:
        self._tell(msg.Ready(Address(self.address)))
        while True:
            release = yield from self._await_release()
            directive = yield from self._take(release)
            if release.halts:
                continue
            goes_on = directive == "continue" or self._obey(directive)
            while goes_on:
                directive = yield from self._step()
                goes_on = self._obey(directive)

    def _await_release(self) -> Life:
        while True:
            yield lambda: bool(self.mailbox)
            message = self.mailbox.popleft()
            if isinstance(message, ReleaseMessage):
                self._halted = False
                return message
            if isinstance(message, msg.StartRing):
                yield from self._ring(message)
            else:
                yield from self._handle(message)

    def _take(self, release: ReleaseMessage) -> Life:
        if self._loop is None:
            self._loop = WorkerLoop(self._composition, self.worker, release.samples)
        if self._loop.ticket >= release.ticket:
            raise BrokenContract(f"worker {self.worker} is released twice with ticket {release.ticket}")
        rate = release.epoch, release.epochs_per_step
        directive = self._loop.release(
            release.then, release.ticket, release.version, release.orders, release.allowance, *rate
        )
        if release.then == "step":
            yield from self._renew(release)
        return directive

    def _renew(self, release: ReleaseMessage) -> Life:
        if isinstance(self._composition.placement, Collective):
            if not self._composition.own_steps and self.version != release.version:
                raise BrokenContract(
                    f"worker {self.worker} is to step from version {release.version}, and its replica is of "
                    f"{self.version}"
                )
        elif release.sent:
            assert release.payload is not None
            parts, vectors = self._parts(), [release.payload]
            for name in self._other_servers():
                vectors.append((yield from self._await_slice(name, release.ticket)))
            sizes = [part.size for part in parts]
            if [len(vector) for vector in vectors] != sizes:
                raise BrokenContract(f"worker {self.worker} is sent slices that are not {sizes} long")
            found = version_of(gather(vectors, parts), f"what worker {self.worker} is sent")
            if not release.aggregate and found != release.version:
                raise BrokenContract(f"worker {self.worker} is sent version {found} as {release.version}")
        self._took(release)

    def _took(self, release: ReleaseMessage) -> None:
        """Take note that the model of a release is here."""
        self.version = release.version
        if self._model_tag is not None:
            tag, self._model_tag = self._model_tag, None
            self._send_model(tag)

    def _await_slice(self, name: str, ticket: int) -> Life:
        slices = self.slices.setdefault(name, deque())
        while True:
            yield lambda: bool(slices)
            message = slices.popleft()
            if message.ticket == ticket:
                return message.payload

    def _step(self) -> Life:
        assert self._loop is not None
        samples, done = self._loop.batch_size, self.steps_ended
        self.computing = True
        yield lambda: self.steps_ended > done
        self.computing = False
        while self.mailbox:
            message = self.mailbox.popleft()
            if isinstance(message, ReleaseMessage):
                if not self._loop.exchanging:
                    self.mailbox.appendleft(message)
                    return None
                self._overlapped = message
            elif isinstance(message, msg.StartRing) and self._loop.exchanging:
                yield from self._ring(message)
            elif isinstance(message, msg.StartRing):
                raise BrokenContract(f"worker {self.worker} is in a ring while it computes")
            else:
                yield from self._handle(message)
                if self._halted or self._loop is None:
                    return None
        overlapped = self._overlapped
        if overlapped is not None and self._loop.takes_answer(stepped=True):
            self._overlapped = None
            yield from self._take(overlapped)
        self._steps += 1
        stats = _Statistics(self.worker, self._steps, self._composition.reads)
        return self._loop.stepped(samples, stats.number, 1.0, stats)

    def _obey(self, directive: Directive | None) -> bool:
        """Return whether to compute a step then."""
        loop = self._loop
        if loop is None or directive is None:
            return False
        if directive == "report":
            report = loop.report()
            self._tell(msg.ReportMessage(report.ticket, report.stats))
        elif directive == "vote":
            vote = loop.vote()
            self._tell(msg.VoteMessage(vote.ticket, vote.value, vote.samples, vote.compute_s))
        elif directive in ("push", "push_and_continue"):
            self._push(overlapping=directive == "push_and_continue")
        return directive in ("continue", "report", "push_and_continue")

    def _push(self, overlapping: bool) -> None:
        assert self._loop is not None
        push = self._loop.push(-1, bytes=0, overlapping=overlapping)
        if isinstance(self._composition.placement, Collective):
            self._contributes = True
            self._tell(PushMessage.of(push, self._clock(), not self.diverges))
            return
        first, *others = [torch.full((part.size,), float(push.ticket)) for part in self._parts()]
        for name, payload in zip(self._other_servers(), others, strict=True):
            self._send(name, PushMessage.of(push, self._clock(), not self.diverges, payload))
        self._tell(PushMessage.of(push, self._clock(), not self.diverges, first))

    # ---------------------------------------------------------------- orders

    def _handle(self, message: Message) -> Life:
        """Carry out an order."""
        self._carry_out(message)
        yield from ()

    def _carry_out(self, message: Message) -> None:
        if isinstance(message, msg.NewOrders):
            if self._loop is not None:
                self._loop.on_orders(message.orders)
        elif isinstance(message, msg.Halt):
            self._restart()
            self._halted, self._model_tag = True, None
        elif isinstance(message, msg.SendModel):
            if message.with_release:
                self._model_tag = message.tag
            else:
                self._send_model(message.tag)
        elif isinstance(message, msg.SendWorkerState):
            self._send_state(message)
        elif isinstance(message, msg.ResumeWorker):
            self._resume(message)
        elif isinstance(message, msg.ChangeComposition):
            self._index, self._ranges, self._contributes = message.composition, None, False
            self._restart()
        elif isinstance(message, msg.ChangeRanges):
            self._ranges = message.ranges
        else:
            self._handle_as_member(message)

    def _handle_as_member(self, message: Message) -> None:
        if isinstance(message, (msg.SendState, msg.SendPayload)):
            self._reply(message.tag, self.version)
        elif isinstance(message, msg.AbortRing):
            self._tell(msg.RingVerdict(message.ring, self._finished >= message.ring))
        elif isinstance(message, msg.ContributeZeros):
            self._contributes = True
        elif isinstance(message, msg.SendSum):
            self._reply(message.tag, self.version)
        elif isinstance(message, msg.KeepShare):
            self._place = message.place
        elif isinstance(message, msg.LoadReplica):
            self.version = version_of(message.tensors["parameters"], "a replica")
        elif isinstance(message, msg.MakeVersion):
            self._make_version(message)

    def _make_version(self, order: msg.MakeVersion) -> None:
        if self.version != order.version - 1 or self._finished != order.ring:
            raise BrokenContract(
                f"worker {self.worker} is to make version {order.version} of ring {order.ring}; it has "
                f"version {self.version} and the sum of ring {self._finished}"
            )
        self.version = order.version

    def _restart(self) -> None:
        self._loop = self._overlapped = None

    def _resume(self, order: msg.ResumeWorker) -> None:
        self._index, self._ranges = order.composition, order.ranges
        self._contributes = "push/payload" in order.tensors
        self._restart()
        if order.state is not None:
            self._loop = restored_loop(order.state.data, self._composition, self.worker)

    def _send_model(self, tag: int) -> None:
        self._tell(msg.WorkerModel(tag, self._model(self.version)))

    def _send_state(self, order: msg.SendWorkerState) -> None:
        self._tell(msg.WorkerState(order.tag, Json(self._plain_state(order)), self._part()))

    def _part(self) -> dict[str, torch.Tensor]:
        """Return the tensors of its part of a checkpoint."""
        return {}

    def _plain_state(self, order: msg.SendWorkerState) -> dict[str, Any]:
        plain: dict[str, Any] = {"position": [0, self._steps, 0, 0, 0], "used": self._steps}
        if order.waits and self._loop is not None:
            plain |= {"loop": self._loop.state_dict(), "lr": 0.1, "next_chunk_s": None}
        return plain

    # ---------------------------------------------------------------- rings

    def _ring(self, order: msg.StartRing) -> Life:
        """Finish a ring; if a member is lost, do as the coordinator says."""
        while True:
            if not self._contributes:
                raise BrokenContract(f"worker {self.worker} is in ring {order.ring} and has nothing to add")
            self._rings.enter(order.ring, self.worker)
            settled = yield from self._add_up(order)
            if settled is None:
                break
            ordered = yield from self._await_settlement()
            if isinstance(ordered, msg.TakeSum):
                break
            order = ordered
        self._finished = order.ring
        self._tell(msg.RingVerdict(order.ring, True))

    def _add_up(self, order: msg.StartRing) -> Life:
        """Return None if the ring was finished, else what ended it."""
        done, deferred = self.rings_done, deque[Message]()
        try:
            while True:
                self.in_full_ring = self._rings.is_full(order)
                yield (
                    lambda: (
                        bool(self.mailbox)
                        or (self._rings.is_full(order) and (not self.in_full_ring or self.rings_done > done))
                    )
                )
                if self.mailbox:
                    message = self.mailbox.popleft()
                    if isinstance(message, msg.AbortRing) and message.ring == order.ring:
                        self._tell(msg.RingVerdict(order.ring, self._finished >= order.ring))
                        return message
                    deferred.append(message)
                elif self.rings_done > done:
                    return None
        finally:
            self.in_full_ring = False
            self.mailbox.extendleft(reversed(deferred))

    def _await_settlement(self) -> Life:
        deferred = deque[Message]()
        try:
            while True:
                yield lambda: bool(self.mailbox)
                message = self.mailbox.popleft()
                if isinstance(message, msg.StartRing | msg.TakeSum):
                    return message
                if isinstance(message, msg.AbortRing):
                    self._tell(msg.RingVerdict(message.ring, self._finished >= message.ring))
                else:
                    deferred.append(message)
        finally:
            self.mailbox.extendleft(reversed(deferred))

    # ---------------------------------------------------------------- helpers

    def _tell(self, message: Message) -> None:
        self._send("coordinator", message)

    def _reply(self, tag: int, version: int) -> None:
        self._tell(msg.StateReply(tag, self._model(version)))

    def _model(self, version: int) -> dict[str, torch.Tensor]:
        size = self._workload.model.num_parameters
        if self._place is not None:
            share = ring_shares(size, self._place.size)[self._place.place]
            size = share.stop - share.start
        return {"parameters": torch.full((size,), float(version)), "buffers": torch.zeros(0)}

    def _parts(self) -> list[Any]:
        if self._ranges:
            return partitions_of(self._ranges)
        return partitions(self._composition.placement, self._workload.model.layout)

    def _other_servers(self) -> list[str]:
        return [server_name(number) for number in range(1, servers_of(self._composition))]
