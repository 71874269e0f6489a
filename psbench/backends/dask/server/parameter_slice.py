"""One shard's slice of the model, wherever the shard is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from psbench.backends.dask.protocol.framing import is_bare, split, with_buffers
from psbench.backends.dask.protocol.transport import ZERO_COPY_BYTES
from psbench.backends.dask.server.store import OPTIMIZER, State, restore, state_of
from psbench.codecs import ServerCodecState
from psbench.core.strategy import Strategy
from psbench.seeds import Streams
from psbench.training.optim import Optimizer
from psbench.training.server import Server


def _name(key: tuple[int, int], kind: str = "payload") -> str:
    return f"{kind}/{key[0]}/{key[1]}"


class ParameterSlice:
    """One shard's slice of the model, with the pushes' slices that wait to be applied.

    The first shard's payloads hold the model's buffers after its slice of the parameters or gradient.

    Parameters
    ----------
    state : State
        Where to begin; only the first shard's has buffers.
    optimizer : Optimizer
    global_batch : int, samples
    streams : Streams
    number : int
        Of the shard.
    composition : Strategy
        Says how numbers travel, and whether aggregates are asked for.
    wire : dict or None
        What `wire` was, if `state` is that of another slice that was recorded.
    """

    def __init__(
        self,
        state: State,
        optimizer: Optimizer,
        global_batch: int,
        composition: Strategy,
        streams: Streams,
        number: int,
        wire: dict[str, int] | None = None,
    ) -> None:
        self.server = Server(state["parameters"], state["buffers"], optimizer, global_batch)
        restore(self.server, state)
        self.server.keeps_aggregate = composition.aggregation.reply == "aggregate"
        self._sends_parameters = composition.aggregation.payload == "parameters"
        self._length = len(self.server.parameters)
        bare = is_bare(composition)
        self._end = None if bare else ServerCodecState(composition, self._length, streams, number)
        #: whether every worker is sent the same for a version
        self.is_shared = bare
        self._compose = composition, streams, number
        self._codec = composition.communication.codec
        self.payloads: dict[tuple[int, int], Tensor] = {}
        #: seconds that went into serving, since they were asked for
        self.busy_s = 0.0
        self._held: dict[int, Tensor] = {}
        if wire is not None:
            self._go_on(state, wire)

    def _go_on(self, state: State, wire: dict[str, int]) -> None:
        """Be where another slice was that was recorded."""
        self.server.aggregate = state.get("aggregate")
        for name, tensor in state.items():
            kind, _, which = name.partition("/")
            if kind == "held":
                self._held[int(which)] = tensor
            elif kind == "payload":
                worker, ticket = map(int, which.split("/"))
                buffers = state.get(f"buffers/{which}", tensor[:0])[: len(self.server.buffers)]
                self.payloads[worker, ticket] = torch.cat([tensor, buffers])
        if self._end is not None:
            held = {n.removeprefix("worker/"): t for n, t in state.items() if n.startswith("worker/")}
            self._end.restore(wire["draws"], {int(worker): tensor.numpy() for worker, tensor in held.items()})
            self._end.channel.num_sent = wire["aggregates"]
            if "unsaid" in state:
                self._end.channel.restore(state["unsaid"].numpy(), wire["aggregates"])

    @property
    def wire(self) -> dict[str, int]:
        """How many models and aggregates were written with chance of their own."""
        if self._end is None:
            return {"draws": -1, "aggregates": 0}
        return {"draws": self._end.draws, "aggregates": self._end.channel.num_sent}

    def record(self, keys: Sequence[tuple[int, int]]) -> State:
        """Return copies of all that a checkpoint holds of this slice, and of what these pushes brought."""
        state = state_of(self.server, optimizer=True)
        state |= {name: each.clone() for name, each in self.vectors(keys).items() if name not in state}
        if len(self.server.buffers):
            state |= {_name(key, "buffers"): self.payloads[key][self._length :].clone() for key in keys}
        return state

    def take(self, key: tuple[int, int], payload: Tensor) -> None:
        """Hold a push's slice, by (worker, ticket)."""
        if self._end is None:
            self.payloads[key] = payload
            return
        part, buffers = split(payload, self._length, len(self.server.buffers))
        if len(part) != self._codec.num_bytes(self._length):  # void: of before we held other entries
            self.payloads[key] = payload
            return
        arrived = torch.from_numpy(self._end.decode_push(*key, part.numpy()))
        self.payloads[key] = with_buffers(arrived, buffers)

    def apply(self, keys: Sequence[tuple[int, int]], samples: Sequence[int], update: dict[str, Any]) -> None:
        """Apply the named payloads, in the order of the commit."""
        payloads = [self.payloads.pop(key) for key in keys]
        if not len(self.server.buffers):
            self.server.apply(payloads, **update)
            return
        self.server.apply([payload[: self._length] for payload in payloads], **update)
        mixing = {name: update[name] for name in ("rule", "weights", "keep")}
        self.server.merge_buffers([payload[self._length :] for payload in payloads], samples, **mixing)

    def nothing(self) -> Tensor:
        """Return what stands for a slice that never came: it moves the model nowhere."""
        own = self.server.parameters
        return own.clone() if self._sends_parameters else torch.zeros_like(own)

    def model(self, worker: int, ticket: int, version: int) -> Tensor:
        """Return slice and buffers as one vector that may be given to the wire."""
        server = self.server
        if self._end is not None:
            written = self._end.encode_model(worker, ticket, version, server.parameters.numpy())
            return with_buffers(torch.from_numpy(written), server.buffers)
        if len(server.buffers):
            return torch.cat([server.parameters, server.buffers])
        # the wire copies what is small; what is large must be a copy, as the next update changes it
        return server.parameters.clone() if self._length * 4 >= ZERO_COPY_BYTES else server.parameters

    def aggregate(self, version: int) -> Tensor:
        """Return the last commit's mean gradient, as it travels."""
        assert self.server.aggregate is not None
        if self._end is None:
            return self.server.aggregate
        return torch.from_numpy(self._end.encode_aggregate(version, self.server.aggregate.numpy()))

    def forget(self, worker: int) -> None:
        """Know no longer what a worker holds."""
        if self._end is not None:
            self._end.forget(worker)

    # ---------------------------------------------------------------- entries that move

    def vectors(self, keys: Sequence[tuple[int, int]]) -> State:
        """Return by name what is kept of each entry: vectors as long as the slice.

        The parameters, what optimizer and codec remember, the last aggregate, versions that are held, and the
        pushes named.
        """
        server, length = self.server, self._length
        found = {"parameters": server.parameters}
        found |= {OPTIMIZER + n: t for n, t in server.optimizer_state().items() if t.shape == (length,)}
        found |= {} if server.aggregate is None else {"aggregate": server.aggregate}
        found |= {f"held/{version}": tensor for version, tensor in self._held.items()}
        found |= {_name(key): self.payloads[key][:length] for key in keys}
        memory = None if self._end is None else self._end.channel.residual
        return found if memory is None else found | {"unsaid": torch.from_numpy(memory)}

    def hold_vectors(self, vectors: State) -> None:
        """Hold other entries from now on, of which this is kept; the next model of each worker goes whole."""
        before, length = self.server, self._length
        server = Server(vectors["parameters"], before.buffers, before.spec, before.global_batch)
        optimizer = before.optimizer_state()
        optimizer |= {n.removeprefix(OPTIMIZER): t for n, t in vectors.items() if n.startswith(OPTIMIZER)}
        server.load_optimizer_state(optimizer)
        server.keeps_aggregate, server.aggregate = before.keeps_aggregate, vectors.get("aggregate")
        self.server, self._length = server, len(server.parameters)
        self._held = {version: vectors[f"held/{version}"] for version in self._held}
        for key, payload in self.payloads.items():
            if _name(key) in vectors:  # else it is void
                self.payloads[key] = torch.cat([vectors[_name(key)], payload[length:]])
        if self._end is not None:
            composition, streams, number = self._compose
            end = ServerCodecState(composition, self._length, streams, number)
            end.continue_draws_of(self._end)
            if "unsaid" in vectors:
                end.channel.add_residual(vectors["unsaid"].numpy())
            self._end = end
        self.busy_s = 0.0

    def take_load(self) -> float:
        """Return the seconds that went into serving since this was asked last."""
        busy, self.busy_s = self.busy_s, 0.0
        return busy

    # ---------------------------------------------------------------- what is asked

    def payload(self, key: tuple[int, int]) -> State:
        """Return what a push carries for this slice."""
        payload = self.payloads[key]
        return {"parameters": payload[: self._length], "buffers": payload[self._length :]}

    def hold(self, version: int, in_use: Iterable[int]) -> None:
        """Remember the current version, and forget those not in use."""
        if version not in self._held:
            keep = set(in_use)
            self._held = {v: tensor for v, tensor in self._held.items() if v in keep}
            self._held[version] = self.server.parameters.clone()

    def distance_sq(self, version: int) -> float:
        """Return the squared distance from the current version to one that is held."""
        difference = self.server.parameters - self._held[version]
        return float(torch.dot(difference, difference))
