"""Parameter servers without arithmetic: each entry of a slice is the number of its version."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.messages import PushKey, ReleaseMessage
from psbench.backends.dask.protocol.roles import COORDINATOR, worker_name
from psbench.backends.dask.server.lost_payloads import LostPayloads
from psbench.backends.dask.server.migration import SliceMigration
from psbench.backends.dask.server.parameter_server import partition_of
from psbench.backends.partition import Partition, partitions_of
from psbench.core.collective import Collective
from psbench.core.peer_to_peer import PeerToPeer
from psbench.testing.invariants import BrokenContract
from psbench.training.build import Workload

_NO_BUFFERS = torch.zeros(0)


def version_of(vector: Tensor, what: str) -> int:
    """Return the version that a vector is of: all its entries are that number."""
    low, high = (float(vector.min()), float(vector.max())) if len(vector) else (0.0, 0.0)
    if low != high:
        raise BrokenContract(f"{what} has entries of versions {low:g} to {high:g}")
    return int(low)


class VersionSlice:
    """A slice whose entries are all its version, and the payloads of pushes."""

    def __init__(self, state: StateDict) -> None:
        drawn = bool((state["parameters"] != state["parameters"].round()).any())  # where training starts
        self.parameters = torch.zeros_like(state["parameters"]) if drawn else state["parameters"].clone()
        self.payloads: dict[PushKey, Tensor] = {}
        self.held: dict[int, Tensor] = {}
        for name, tensor in state.items():
            kind, _, which = name.partition("/")
            if kind == "payload":
                worker, ticket = map(int, which.split("/"))
                self.payloads[worker, ticket] = tensor.clone()
            elif kind == "held":
                self.held[int(which)] = tensor.clone()

    def vectors(self, keys: Sequence[PushKey]) -> StateDict:
        """Return what moves with the entries."""
        payloads = {f"payload/{key[0]}/{key[1]}": self.payloads[key] for key in keys}
        held = {f"held/{version}": tensor for version, tensor in self.held.items()}
        return {"parameters": self.parameters} | payloads | held

    def hold_vectors(self, vectors: StateDict) -> None:
        """Hold other entries."""
        self.parameters = vectors["parameters"]
        for key in list(self.payloads):
            name = f"payload/{key[0]}/{key[1]}"
            if name in vectors:
                self.payloads[key] = vectors[name]
        self.held = {version: vectors[f"held/{version}"] for version in self.held}

    def hold(self, version: int, dropped: Sequence[int]) -> None:
        """Hold the current version, and drop others, which are held."""
        for unused in dropped:
            del self.held[unused]
        self.held.setdefault(version, self.parameters.clone())

    def check_held(self, version: int) -> None:
        """Check that a version is held, and is that version."""
        if version not in self.held:
            raise BrokenContract(f"version {version} is asked for, and {sorted(self.held)} are held")
        if (found := version_of(self.held[version], "a held version")) != version:
            raise BrokenContract(f"version {found} is held as {version}")

    def checkpoint(self, keys: Sequence[PushKey]) -> StateDict:
        """Return copies of everything."""
        return {name: each.clone() for name, each in self.vectors(keys).items()} | {"buffers": _NO_BUFFERS}


class FakeServer:
    """A parameter server; number 0 is in the coordinator's process, and never has to wait.

    Parameters
    ----------
    workload : Workload
    number : int
    send : callable
        Sends a message to a process, by its name.
    """

    def __init__(self, workload: Workload, number: int, send: Callable[[str, Message], None]) -> None:
        self._workload, self.number, self._send = workload, number, send
        self.slice: VersionSlice | None = None
        self._part: Partition
        self._migration: SliceMigration
        self._orders: deque[Message] = deque()
        self._lost = LostPayloads()
        self._met: set[int] = set()  # workers that are connected
        # what workers sent before the first order, until which `ServerProcess` reads none of them
        self._unread: list[tuple[str, Message]] = []
        self._has_begun = False
        self._handlers: dict[type[Message], Callable[[Any], Message | None]] = {
            msg.BeginSlice: self._begin,
            msg.ApplyUpdate: self._apply,
            msg.DiscardPush: lambda order: self._drop(order.key),
            msg.ForgetWorker: lambda _: None,
            msg.WorkerGone: lambda _: None,
            msg.HoldVersion: lambda order: self._own.hold(order.version, order.dropped),
            msg.AnswerWorker: self._answer,
            msg.SendState: lambda order: msg.StateReply(order.tag, self._own.checkpoint(())),
            msg.SendSliceState: lambda order: msg.StateReply(order.tag, self._own.checkpoint(order.keys), {}),
            msg.SendPayload: lambda order: msg.StateReply(order.tag, self._payload(order.key)),
            msg.MeasureDistance: self._measure_distance,
            msg.MeasureProducts: self._products,
            msg.MeasureLoad: self._load,
            msg.MeasureMovement: lambda order: msg.NumberReply(order.tag, 1.0),
            msg.GiveEntries: self._give,
            msg.TakeEntries: self._take,
        }
        self._loads = 0

    @property
    def _own(self) -> VersionSlice:
        assert self.slice is not None
        return self.slice

    @property
    def version(self) -> int:
        """The version of the slice."""
        return version_of(self._own.parameters, f"the slice of server {self.number}")

    @property
    def waits(self) -> bool:
        """Whether an order waits for what has not come."""
        return bool(self._orders)

    def carry_out(self, order: Message) -> Message | None:
        """Carry out an order now, and return the answer if there is one."""
        missing = [key for key in _named(order) if key not in self._own.payloads]
        if missing:
            raise BrokenContract(f"{type(order).__name__} names {missing}, whose payloads no server has")
        return self._handlers[type(order)](order)

    # ---------------------------------------------------------------- a process of its own

    def read(self, sender: str, message: Message, now: float) -> None:
        """Take a message of the coordinator or of a worker."""
        if sender != COORDINATOR and not self._has_begun:
            self._unread.append((sender, message))
        elif isinstance(message, msg.Hello):
            self._met.add(int(sender.split()[1]))
        elif isinstance(message, msg.PushMessage):
            assert message.payload is not None
            self.receive((int(sender.split()[1]), message.ticket), message.payload)
        elif isinstance(message, msg.WorkerGone):
            self._lost.read(message, now)
        elif isinstance(message, msg.BeginSlice):
            self._begin(message)
            self._has_begun = True
            while self._unread:
                self.read(*self._unread.pop(0), now)
        elif not isinstance(message, msg.Ping):
            self._orders.append(message)

    def disconnect(self, name: str) -> None:
        """Lose a worker's connection; what it has sent can still be read."""
        self._met.discard(int(name.split()[1]))
        self._unread = [each for each in self._unread if each != (name, msg.Hello(name))]

    def work(self, now: float) -> None:
        """Carry out orders in their order, until one has to wait."""
        while self._orders and self._may(self._orders[0], now):
            answer = self._handlers[type(self._orders[0])](self._orders.popleft())
            if answer is not None:
                self._send(COORDINATOR, answer)

    def _may(self, order: Message, now: float) -> bool:
        if isinstance(order, msg.AnswerWorker):
            return order.worker in self._met or order.worker in self._lost.absent
        for key in _named(order):
            if key not in self._own.payloads:
                if not self._lost.has(key, now):
                    return False
                self._own.payloads[key] = torch.zeros_like(self._own.parameters)
        return True

    # ---------------------------------------------------------------- orders

    def receive(self, key: PushKey, payload: Tensor) -> None:
        """Keep the payload of a push; one of another length is of other entries, and moves nothing."""
        if self.slice is not None:
            fits = len(payload) == len(self.slice.parameters)
            self.slice.payloads[key] = payload if fits else torch.zeros_like(self.slice.parameters)

    def _begin(self, order: msg.BeginSlice) -> None:
        composition = self._workload.experiment.strategy.compositions[order.composition]
        if isinstance(composition.placement, (Collective, PeerToPeer)):
            self.slice = None
            return
        self._holds_versions = composition.holds_versions
        self._part = partition_of(composition, self._workload, order.ranges)[self.number]
        self.slice = VersionSlice(order.tensors)

    def _apply(self, order: msg.ApplyUpdate) -> None:
        own = self._own
        for key in order.keys:
            del own.payloads[key]
        if self._holds_versions:
            for base in order.bases:
                own.check_held(base)
        own.parameters = torch.full_like(own.parameters, self.version + 1)

    def _measure_distance(self, order: msg.MeasureDistance) -> Message:
        self._own.check_held(order.version)
        return msg.NumberReply(order.tag, 1.0)

    def _drop(self, key: PushKey) -> None:
        self._own.payloads.pop(key, None)

    def _answer(self, order: msg.AnswerWorker) -> None:
        if order.worker in self._met:
            answer = ReleaseMessage(order.ticket, order.version, 0, True, payload=self._own.parameters)
            self._send(worker_name(order.worker), answer)

    def _payload(self, key: PushKey) -> StateDict:
        return {"parameters": self._own.payloads[key], "buffers": _NO_BUFFERS}

    def _products(self, order: msg.MeasureProducts) -> Message:
        ones = torch.ones(1, dtype=torch.float64)
        return msg.StateReply(order.tag, {str(i): ones for i in range(len(order.products))})

    def _load(self, order: msg.MeasureLoad) -> Message:
        self._loads += 1
        return msg.NumberReply(order.tag, 1.0 + 2.0 * ((self.number + self._loads // 3) % 2))

    def _give(self, order: msg.GiveEntries) -> Message:
        after = partitions_of(order.ranges)[self.number]
        own: Any = self._own
        self._migration, self._part = SliceMigration(own, self._part, after, order.keys), after
        return msg.StateReply(order.tag, self._migration.given)

    def _take(self, order: msg.TakeEntries) -> Message:
        self._migration.take(order.tensors)
        return msg.StateReply(order.tag, {})


def _named(order: Message) -> list[PushKey]:
    """Return the pushes whose payloads an order needs."""
    if isinstance(order, (msg.ApplyUpdate, msg.SendSliceState, msg.MeasureProducts, msg.GiveEntries)):
        return order.keys
    return [order.key] if isinstance(order, msg.SendPayload) else []
