"""A live worker without a server: it sends its model to neighbours, and mixes theirs with its own.

What is mixed with what weights the coordinator says; models pass from worker to worker. Orders are carried
out one by one in the order in which the coordinator gave them to all, so that no circle of workers waits. A
worker that computes carries out an order for a pair at the end of its step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from psbench.backends.checkpointing import named, under
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.messages import MixModels, PeerModel, PushMessage, ReleaseMessage
from psbench.backends.dask.worker.exchange import WorkerExchange
from psbench.backends.dask.worker.mailbox import Mailbox
from psbench.backends.dask.worker.ring_member import RingMember
from psbench.core.events import Push
from psbench.core.strategy import Strategy
from psbench.errors import WorkerLost
from psbench.training.local_model import LocalModel
from psbench.training.mixing import Mixer
from psbench.training.server import all_finite
from psbench.training.workload import Workload

#: versions of its model that a worker keeps after sending them, for a checkpoint
_KEPT = 2


class GossipMember(RingMember):
    """A worker among neighbours; see `RingMember` for sockets and addresses.

    Attributes
    ----------
    mixed : (parameters, buffers) or None
        What the worker goes on from when it is released.
    """

    def compose(self, composition: Strategy, workload: Workload, model: LocalModel) -> None:
        """Begin with a model that is still empty."""
        self._composition, self._workload, self._model = composition, workload, model
        self._mixer = Mixer(composition.aggregation, workload.experiment.batch_size)
        self._order: MixModels | None = None
        self.mixed: tuple[Tensor, Tensor] | None = None
        self._arrived: dict[tuple[int, int], StateDict] = {}  # models of others, by worker and version or key
        self._sent: dict[int, StateDict] = {}
        self._gone: set[int] = set()
        self._handlers = {
            MixModels: self._take_order,
            msg.GiveModel: lambda order: self._send(order.to, order.key, self._own()),
            msg.WorkerGone: self._note_gone,
        }

    # ---------------------------------------------------------------- sending

    def spread(self, version: int) -> None:
        """Send the worker's model of a version to its neighbours."""
        placement, n = self._composition.placement, self._workload.profile.num_workers
        own = {name: tensor.clone() for name, tensor in self._own().items()}
        self._sent[version] = own
        for old in [number for number in self._sent if number <= version - _KEPT]:
            del self._sent[old]
        for other in placement.receivers(self.worker, version, n):
            self._send(other, version, own)

    def _own(self) -> StateDict:
        return {"parameters": self._model.parameters, "buffers": self._model.buffers}

    def _send(self, other: int, key: int, model: StateDict) -> None:
        if other in self._gone or other not in self._addresses:
            return
        try:
            self._neighbour(other).send(PeerModel(self.worker, key, model))
        except OSError:
            self._gone.add(other)  # the coordinator will say so as well

    # ---------------------------------------------------------------- mixing

    def _take_order(self, order: MixModels) -> None:
        if order.worker == self.worker:
            self._order = order  # carried out with the release that follows, or before a checkpoint
            return
        parameters, _ = self._mix(order)
        self._model.parameters.copy_(parameters)

    def settle(self) -> None:
        """Carry out the order that the next release is to go on from."""
        order, self._order = self._order, None
        if order is not None:
            self.mixed = self._mix(order)

    def _mix(self, order: MixModels) -> tuple[Tensor, Tensor]:
        """Wait for the models of others, and return the mixture; lost ones' weights are the worker's."""
        if order.key < 0 and self.worker in order.row:  # a pair: both send what they have now
            for other in order.row.keys() - {self.worker}:
                self._send(other, order.key, self._own())
        found = {other: self._await(other, order.key) for other in order.row if other != self.worker}
        row = {other: weight for other, weight in order.row.items() if found.get(other, True) is not None}
        if self.worker in row:
            row[self.worker] += sum(order.row.values()) - sum(row.values())
        elif not row:
            raise WorkerLost(f"worker {self.worker} was to begin with the model of a worker that is lost")
        models = [self._own() if other == self.worker else found[other] for other in row]
        pairs = [(model["parameters"], model["buffers"]) for model in models if model is not None]
        for key in [key for key in self._arrived if 0 <= key[1] < order.key]:
            del self._arrived[key]
        return self._mixer.mix(self.worker, pairs, row)

    def _await(self, other: int, key: int) -> StateDict | None:
        """Return the model of another worker; None if it is lost and has not sent it."""
        while True:
            model = self._arrived.pop((other, key), None)
            if model is not None or other in self._gone:
                return model
            arrived = self._receive()
            if arrived is not None:
                if isinstance(arrived, PeerModel):
                    self._arrived[arrived.worker, arrived.key] = arrived.tensors
                continue
            message = self.mailbox.next_new(0)
            if message is None:
                self.mailbox.check()
            elif isinstance(message, msg.WorkerGone):
                self._note_gone(message)
            else:
                self.mailbox.defer(message)

    def _note_gone(self, message: msg.WorkerGone) -> None:
        if message.is_back:
            self._gone.discard(message.worker)
        else:
            self._gone.add(message.worker)

    # ---------------------------------------------------------------- checkpoints

    def state(self) -> StateDict:
        """Return the model, what it is to go on from, and what was sent and has arrived."""
        self.settle()
        found = named("model/", self._model.state_dict())
        if self.mixed is not None:
            found |= {"mixed/parameters": self.mixed[0], "mixed/buffers": self.mixed[1]}
        for version, model in self._sent.items():
            found |= named(f"sent/{version}/", model)
        for (other, key), model in self._arrived.items():
            found |= named(f"arrived/{other}/{key}/", model)
        if (state := self._mixer.states.get(self.worker)) is not None:
            found |= named("mixing/", state.tensors())
        return {name: tensor.clone() for name, tensor in found.items()}

    def restore(self, tensors: StateDict) -> None:
        """Restore what `state` returned, but for the model; what was sent is sent again."""
        if mixed := under("mixed/", tensors):
            self.mixed = mixed["parameters"], mixed["buffers"]
        for name in {name.rpartition("/")[0] for name in under("arrived/", tensors)}:
            other, key = map(int, name.split("/"))
            self._arrived[other, key] = under(f"arrived/{name}/", tensors)
        if state := under("mixing/", tensors):
            self._mixer.load(self.worker, state)
        for version in sorted({int(name.partition("/")[0]) for name in under("sent/", tensors)}):
            self._sent[version] = under(f"sent/{version}/", tensors)

    def begin_training(self) -> None:
        """Send again what a checkpoint says was sent: no other process kept what was on its way."""
        placement, n = self._composition.placement, self._workload.profile.num_workers
        for version, model in self._sent.items():
            for other in placement.receivers(self.worker, version, n):
                self._send(other, version, model)


class GossipExchange(WorkerExchange):
    """What a worker without a server exchanges: its model out to neighbours, a mixture in."""

    def __init__(
        self,
        member: GossipMember,
        composition: Strategy,
        workload: Workload,
        model: LocalModel,
        mailbox: Mailbox,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(mailbox, clock, None)
        self._member, self._model, self._workload = member, model, workload
        self._sends_first = composition.communication.sends_first
        self._by_neighbours = composition.aggregation.mixes == "neighbours"
        member.compose(composition, workload, model)

    def push(self, push: Push, payload: Tensor, buffers: Tensor) -> None:
        """Tell the coordinator, and send the neighbours what the step has made."""
        is_finite = math.isfinite(push.loss) and all_finite(payload)
        if self._by_neighbours and not self._sends_first and is_finite:
            self._member.spread(push.base_version)
        self._mailbox.send(PushMessage.of(push, self._clock(), is_finite))

    def model(self, release: ReleaseMessage) -> tuple[Tensor, Tensor] | tuple[()]:
        """Return the mixture; nothing if the worker goes on from its own model after a void step."""
        self._member.settle()
        mixed, self._member.mixed = self._member.mixed, None
        if mixed is not None:
            return mixed
        if len(self._model.parameters):
            return ()
        server = self._workload.server()  # all begin with the same
        return server.parameters, server.buffers

    def began(self, version: int) -> None:
        """Send the neighbours what a step begins with, if that is what is exchanged."""
        if self._by_neighbours and self._sends_first:
            self._member.spread(version)

    def checkpoint(self, waits: bool) -> tuple[StateDict, dict[str, Any]]:
        """Return the worker's model, whatever it does, and what its neighbours may still ask for."""
        return self._member.state(), {"ready_s": None}

    def restore(self, tensors: StateDict, plain: dict[str, Any]) -> None:
        """Restore what `checkpoint` returned."""
        self._member.restore(tensors)
