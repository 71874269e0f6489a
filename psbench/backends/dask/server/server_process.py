"""A server shard that is not the first: performs the conductor's stream of actions on its own slice."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import zmq
from torch import Tensor

from psbench.backends.dask.coordinator.peers import PING
from psbench.backends.dask.protocol.messages import PUSH, RELEASE, PushMessage, ReleaseMessage
from psbench.backends.dask.protocol.roles import worker_name, worker_number
from psbench.backends.dask.protocol.transport import JSON, ClientSocket, Message, ServerSocket, pack, unpack
from psbench.backends.dask.server.migration import SliceMigration
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.backends.dask.server.store import State, state_of
from psbench.backends.dask.worker.mailbox import Abandoned, Stopped
from psbench.backends.partition import Partition, partitions, partitions_of
from psbench.training.workload import Workload

_LOOK_MS = 50
#: seconds that a slice sent by a worker that then died may still take to arrive
_GRACE_S = 0.3


class ServerProcess:
    """One server shard.

    A version means the same here as at the conductor: actions are performed in its order, and an update
    waits for the slices that it names. A slice that its worker died before sending moves the model nowhere.

    Parameters
    ----------
    problem : Problem
    hub : Hub
        Where the workers' slices come in.
    link : Link
        To the conductor.
    number : int
        Of the shard; the first is 0 and the conductor's.
    """

    def __init__(self, workload: Workload, hub: ServerSocket, link: ClientSocket, number: int) -> None:
        self.workload, self.hub, self.link, self.number = workload, hub, link, number
        self._stream: deque[dict[str, Any]] = deque()
        self._gone: dict[int, float] = {}  # when we heard that a worker is gone
        self._slice: ParameterSlice
        self._partition: Partition
        self._mover: SliceMigration
        self._poller = zmq.Poller()
        self._poller.register(hub.handle, zmq.POLLIN)
        self._poller.register(link.handle, zmq.POLLIN)

    def run(self) -> None:
        """Serve until the conductor says stop.

        Raises
        ------
        Stopped
            Always, at the end.
        """
        self.link.tell({"do": "ready"})
        while True:
            if not self._poller.poll(_LOOK_MS) and self.link.lost:
                raise Abandoned("the conductor is gone")
            while (letter := self.hub.receive(0)) is not None:
                self._take(letter)
            while (letter := self.link.receive(0)) is not None:
                self._hear(letter)
            while self._stream and self._perform(self._stream[0]):
                self._stream.popleft()

    def _take(self, letter: Message) -> None:
        worker = worker_number(letter.sender)
        if letter.kind == PUSH and worker is not None and letter.payload is not None:
            began = time.perf_counter()
            self._slice.take((worker, PushMessage.decode(letter.body).ticket), letter.payload)
            self._slice.busy_s += time.perf_counter() - began

    def _hear(self, letter: Message) -> None:
        if letter.kind == PING or letter.kind != JSON:
            return
        plain = letter.plain
        if plain["do"] == "stop":
            raise Stopped
        if plain["do"] == "gone":
            self._gone[plain["worker"]] = time.monotonic()
        elif plain["do"] == "begin":  # before any worker is released to send us something
            self._begin(plain, letter.payload)
        elif plain["do"] == "receive":
            self._stream.append(plain | {"tensors": unpack(plain["shapes"], letter.payload)})
        else:
            self._stream.append(plain)

    def _begin(self, plain: dict[str, Any], payload: Tensor | None) -> None:
        experiment = self.workload.experiment
        composition = experiment.strategy.compositions[plain["composition"]]
        ranges = plain["ranges"]
        layout = self.workload.model.layout
        self._partition = (partitions_of(ranges) if ranges else partitions(composition.placement, layout))[
            self.number
        ]
        self._slice = ParameterSlice(
            unpack(plain["shapes"], payload),
            experiment.optimizer,
            experiment.batch_size,
            composition,
            self.workload.streams,
            self.number,
            plain["wire"],
        )

    def _perform(self, plain: dict[str, Any]) -> bool:
        """Perform an action if all that it needs is there."""
        order = plain["do"]
        if order == "apply":
            return self._apply(plain)
        if order == "discard":
            return self._discard(tuple(plain["key"]))
        if order == "payload":
            return self._tell_payload(plain["tag"], tuple(plain["key"]))
        if order == "give":
            return self._give(plain)
        if order == "release":
            self._release(plain)
        elif order == "forget":
            self._slice.forget(plain["worker"])
        elif order == "hold":
            self._slice.hold(plain["version"], plain["in_use"])
        elif order == "distance_sq":
            number = self._slice.distance_sq(plain["version"])
            self.link.tell({"do": "keeper", "tag": plain["tag"], "number": number})
        elif order == "load":
            self.link.tell({"do": "keeper", "tag": plain["tag"], "number": self._slice.take_load()})
        elif order == "receive":
            self._mover.take(plain["tensors"])
        elif order == "state" and "keys" in plain:
            return self._tell_all(plain["tag"], [(worker, ticket) for worker, ticket in plain["keys"]])
        elif order == "state":
            self._tell(plain["tag"], state_of(self._slice.server, plain["optimizer"]))
        return True

    def _tell(self, tag: int, state: State) -> None:
        shapes, flat = pack(state)
        self.link.tell({"do": "keeper", "tag": tag, "shapes": shapes}, flat)

    def _tell_all(self, tag: int, keys: list[tuple[int, int]]) -> bool:
        if not self._has(keys):
            return False
        self._tell(tag, self._slice.record(keys))
        return True

    def _tell_payload(self, tag: int, key: tuple[int, int]) -> bool:
        if not self._has([key]):
            return False
        self._tell(tag, self._slice.payload(key))
        return True

    def _discard(self, key: tuple[int, int]) -> bool:
        return self._slice.payloads.pop(key, None) is not None or self._is_lost(key[0])

    def _apply(self, plain: dict[str, Any]) -> bool:
        keys = [(worker, ticket) for worker, ticket in plain["keys"]]
        if not self._has(keys):
            return False
        began = time.perf_counter()
        self._slice.apply(keys, plain["samples"], plain["update"])
        self._slice.busy_s += time.perf_counter() - began
        return True

    def _give(self, plain: dict[str, Any]) -> bool:
        """Give away what is to be elsewhere; what is to be here comes with the next order."""
        keys = [(worker, ticket) for worker, ticket in plain["keys"]]
        if not self._has(keys):
            return False
        after = partitions_of(plain["ranges"])[self.number]
        self._mover, self._partition = SliceMigration(self._slice, self._partition, after, keys), after
        self._tell(plain["tag"], self._mover.given)
        return True

    def _has(self, keys: list[tuple[int, int]]) -> bool:
        """Whether these slices are there, or will never come."""
        payloads = self._slice.payloads
        for key in keys:
            if key not in payloads:
                if not self._is_lost(key[0]):
                    return False
                payloads[key] = self._slice.nothing()
        return True

    def _is_lost(self, worker: int) -> bool:
        return time.monotonic() - self._gone.get(worker, float("inf")) > _GRACE_S

    def _release(self, plain: dict[str, Any]) -> None:
        body = ReleaseMessage(plain["ticket"], plain["version"], 0, True).encode()
        worker, ticket, version = plain["worker"], plain["ticket"], plain["version"]
        own, began = self._slice, time.perf_counter()
        payload = own.aggregate(version) if plain["aggregate"] else own.model(worker, ticket, version)
        self.hub.send(worker_name(plain["worker"]), RELEASE, body, payload)
        own.busy_s += time.perf_counter() - began
