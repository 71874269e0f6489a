"""Workers without a server, and without arithmetic: each awaits the models that it is to mix."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.messages import MixModels, PeerModel, PushMessage, ReleaseMessage
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.worker.gossip_member import _KEPT
from psbench.core.peer_to_peer import NeighbourMixing, sends_before_step
from tests.live_runs.workers import FakeWorker, Life


class FakeGossipWorker(FakeWorker):
    """A worker among neighbours, in the order of `GossipMember`; see `FakeWorker`."""

    def __init__(self, *arguments: Any) -> None:
        self._addresses: dict[int, Address] = {}
        self._awaited = -1
        self._unread = list[tuple[int, int, int]]()  # models are read while one is awaited
        # those of others, by worker, by version or key, and by the first release that they are for
        self._arrived = set[tuple[int, int, int]]()
        self._ticket = -1
        self._lost_at = dict[int, int]()
        self._unreachable = set[int]()
        self._has_begun = False
        self._aside = deque[Message]()  # read while it waited, and for later
        self._forget()
        super().__init__(*arguments)

    def _forget(self) -> None:
        self._sent: set[int] = set()  # versions of its own
        self._has_model = False
        self._order: MixModels | None = None

    @property
    def awaits_neighbour(self) -> int:
        """The worker whose model it waits for; -1 if it waits for none."""
        return self._awaited

    def take_from_peer(self, message: PeerModel) -> None:
        """Take the model of another worker."""
        self._unread.append((message.worker, message.key, message.ticket))

    # ---------------------------------------------------------------- sending

    @property
    def _by_neighbours(self) -> bool:
        return isinstance(self._composition.aggregation, NeighbourMixing)

    def _spread(self, version: int) -> None:
        self._sent = {each for each in self._sent if each > version - _KEPT} | {version}
        for other in self._receivers(version):
            self._send_model_to(other, version)

    def _receivers(self, version: int) -> list[int]:
        n = self._workload.profile.num_workers
        return self._composition.placement.receivers(self.worker, version, n)

    def _send_again(self, workers: Collection[int], ticket: int = -1) -> None:
        for version in sorted(self._sent):
            for other in self._receivers(version):
                if other in workers:
                    self._send_model_to(other, version, ticket)

    def _send_model_to(self, other: int, key: int, ticket: int = -1) -> None:
        if other not in self._unreachable and other in self._addresses:
            self._send(self._addresses[other].url, PeerModel(self.worker, key, self._model(0), ticket))

    def _push(self, overlapping: bool) -> None:
        assert self._loop is not None
        push = self._loop.push(-1, bytes=0, overlapping=overlapping)
        if (
            self._by_neighbours
            and not sends_before_step(self._composition.communication)
            and not self.diverges
        ):
            self._spread(push.base_version)
        self._tell(PushMessage.of(push, self._clock(), not self.diverges))

    def _send_model(self, tag: int) -> None:
        if self._has_model:
            super()._send_model(tag)
        else:
            self._tell(msg.WorkerModel(tag, {"parameters": torch.zeros(0), "buffers": torch.zeros(0)}))

    # ---------------------------------------------------------------- mixing

    def _renew(self, release: ReleaseMessage) -> Life:
        self._ticket = release.ticket
        yield from self._settle()
        self._has_model = True
        self._took(release)
        if self._by_neighbours and sends_before_step(self._composition.communication):
            self._spread(release.version)

    def _settle(self) -> Life:
        """Carry out the order that the next release is to go on from."""
        order, self._order = self._order, None
        if order is not None:
            yield from self._mix(order)

    def _mix(self, order: MixModels) -> Life:
        """Wait for the models of others; what else is read meanwhile is for later."""
        yield from self._await_all(order)
        self.mailbox.extendleft(reversed(self._aside))
        self._aside.clear()

    def _await_all(self, order: MixModels) -> Life:
        is_own = self.worker in order.row
        others = [other for other in order.row if other != self.worker]
        if order.key < 0 and is_own:
            for other in others:
                self._send_model_to(other, order.key)
        found = []
        for other in others:
            found.append((yield from self._await(other, order)))
        if not (is_own or any(found)):
            another = yield from self._await_another_giver()
            if another is not None:
                yield from self._await_all(another)
        old = {name for name in self._arrived if 0 <= name[1] < order.key and name[2] <= self._ticket}
        self._arrived -= old

    def _await(self, other: int, order: MixModels) -> Life:
        """Return whether the model of another worker has come; else that one is lost."""
        self._awaited = other
        while (found := self._come(other, order.key)) is None:
            if other in order.lost or self._lost_at.get(other, -1) > order.number:
                break
            yield lambda: bool(self._unread or self.mailbox)
            self._arrived.update(self._unread)
            self._unread.clear()
            if self.mailbox:
                message = self.mailbox.popleft()
                if isinstance(message, msg.NeighbourLost):
                    self._note_lost(message)
                elif isinstance(message, msg.GiveModel) and message.at_once:
                    self._send_model_to(message.to, message.key)
                elif isinstance(message, msg.PeerAddresses):
                    self._set_addresses(message)
                else:
                    self._aside.append(message)
        self._awaited = -1
        self._arrived -= {found}
        return found is not None

    def _come(self, other: int, key: int) -> tuple[int, int, int] | None:
        """Return the name of a model that has come; one that was sent again may be for a later release."""
        names = sorted(name for name in self._arrived if name[:2] == (other, key) and name[2] <= self._ticket)
        return names[0] if names else None

    def _await_another_giver(self) -> Life:
        """Return the order to begin with the model of another worker; None if this one is to halt before."""
        while not any(isinstance(message, msg.Halt) for message in self._aside):
            yield lambda: bool(self.mailbox)
            message = self.mailbox.popleft()
            if isinstance(message, msg.NeighbourLost):
                self._note_lost(message)
            elif isinstance(message, msg.PeerAddresses):
                self._set_addresses(message)
            elif isinstance(message, MixModels) and message.worker not in message.row:
                return message
            else:
                self._aside.append(message)
        return None

    # ---------------------------------------------------------------- orders

    def _handle(self, message: Message) -> Life:
        if isinstance(message, MixModels):
            if message.worker == self.worker:
                if not (self._has_model and message.key < 0 and self.worker not in message.row):
                    self._order = message
            else:
                yield from self._mix(message)
        elif isinstance(message, msg.SendWorkerState):
            yield from self._settle()
            self._send_state(message)
        else:
            yield from super()._handle(message)

    def _handle_as_member(self, message: Message) -> None:
        if isinstance(message, msg.GiveModel):
            self._send_model_to(message.to, message.key)
        elif isinstance(message, msg.NeighbourLost):
            self._note_lost(message)
        elif isinstance(message, msg.PeerAddresses):
            self._set_addresses(message)
        elif isinstance(message, msg.StartTraining) and not self._has_begun:
            self._has_begun = True
            self._send_again(range(self._workload.profile.num_workers))
        elif isinstance(message, msg.SendAgain):
            self._send_again({message.to}, message.ticket)

    def _set_addresses(self, message: msg.PeerAddresses) -> None:
        self._addresses |= message.addresses
        self._unreachable.difference_update(message.addresses)

    def _note_lost(self, message: msg.NeighbourLost) -> None:
        self._lost_at[message.worker] = message.number
        self._unreachable.add(message.worker)

    def _restart(self) -> None:
        super()._restart()
        self._forget()

    # ---------------------------------------------------------------- checkpoints

    def _part(self) -> dict[str, Tensor]:
        names = [f"sent/{version}" for version in self._sent]
        names += [f"arrived/{other}/{key}" for other, key, _ in self._arrived if key >= 0]
        names += ["model/parameters"] if self._has_model else []
        return {name: self._model(0)["parameters"] for name in names}

    def _resume(self, order: msg.ResumeWorker) -> None:
        super()._resume(order)
        for name in order.tensors:
            kind, *numbers = name.split("/")
            if kind == "model":
                self._has_model = True
            elif kind == "sent":
                self._sent.add(int(numbers[0]))
            else:
                self._arrived.add((int(numbers[0]), int(numbers[1]), -1))
