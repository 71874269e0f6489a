"""One server's slice of the model, in whichever process the server is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from time import perf_counter

import torch
from torch import Tensor

from psbench.backends.dask.protocol.decoder import MessageRefused
from psbench.backends.dask.protocol.framing import StateDict, is_bare, padded, split, with_buffers
from psbench.backends.dask.protocol.messages import ApplyUpdate, PushKey
from psbench.backends.dask.protocol.payloads import ZERO_COPY_BYTES
from psbench.backends.dask.server.store import NO_CODEC_COUNTERS, state_of
from psbench.backends.partition import Partition
from psbench.backends.stamps import Durations, ServerStamps
from psbench.core.arithmetic import Pushed
from psbench.core.strategy import Strategy
from psbench.errors import CodecError
from psbench.optimization.optimizer import Optimizer
from psbench.seeds import Streams
from psbench.strategies.codecs import ServerCodecState
from psbench.training.products import Product, share_of
from psbench.training.server import Server

_NO_BUFFERS = torch.zeros(0)


def _name(key: PushKey, kind: str = "payload") -> str:
    return f"{kind}/{key[0]}/{key[1]}"


class _Busy:
    """Adds up the seconds that are spent inside."""

    def __init__(self) -> None:
        self._began = self._total = self._before = 0.0
        self.each: Durations | None = None  #: where each stay is to be noted

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *error: object) -> None:
        seconds = perf_counter() - self._began
        self._total += seconds
        if self.each is not None:
            self.each.add(seconds)

    def take(self) -> float:
        """Return the seconds since this was called last."""
        total, self._total = self._total, 0.0
        self._before += total
        return total

    @property
    def whole_s(self) -> float:
        """Seconds since the beginning, including those already taken."""
        return self._before + self._total


class ParameterSlice:
    """One server's slice of the model, with the payloads of pushes that wait to be applied.

    A payload is kept in `payloads` and nowhere else: it enters decoded with `receive`, when the push
    arrives, and leaves with `apply` or `discard`. The first server's payloads end with the model's buffers.

    Parameters
    ----------
    state : State
        Where to begin; only the first server's has buffers.
    optimizer : Optimizer
    global_batch : int, samples
    composition : Strategy
        Says which codecs encode, and whether aggregates are sent.
    streams : Streams
    number : int
        Of the server.
    codec_counters : dict or None
        Given if `state` is of a checkpoint: `codec_counters` as they were.

    Attributes
    ----------
    payloads : dict of tensors by (worker, ticket)
    is_shared : bool
        Whether every worker is sent the same for a version.
    """

    def __init__(
        self,
        state: StateDict,
        optimizer: Optimizer,
        global_batch: int,
        composition: Strategy,
        streams: Streams,
        number: int,
        codec_counters: dict[str, int] | None = None,
    ) -> None:
        aggregation = composition.aggregation
        self.server = Server(state["parameters"], state["buffers"], optimizer, global_batch, aggregation)
        self.server.load_states(state)
        self._sends_parameters = aggregation.payload == "parameters"
        self._vectors_of_a_push = composition.vectors_of_a_push
        self._length = len(self.server.parameters)
        self.is_shared = is_bare(composition)
        self._codec_of = composition, streams, number
        self._codec = None if self.is_shared else ServerCodecState(composition, self._length, streams, number)
        self.payloads: dict[PushKey, Tensor] = {}
        self.busy = _Busy()  #: counts what is done `with` it as serving
        #: what takes note of seconds that codecs and updates take
        self._decoding: AbstractContextManager[None] = nullcontext()
        self._encoding: AbstractContextManager[None] = nullcontext()
        self._updating: AbstractContextManager[None] = nullcontext()
        self._num_buffers = len(self.server.buffers)
        self._held: dict[int, Tensor] = {}
        if codec_counters is not None:
            self._resume(state, codec_counters)

    def take_note(self, stamps: ServerStamps) -> None:
        """Record from now on the serving, decoding, encoding and updating times."""
        self.busy.each = stamps.serving
        self._decoding, self._encoding, self._updating = stamps.decoding, stamps.encoding, stamps.updating

    def _resume(self, state: StateDict, codec_counters: dict[str, int]) -> None:
        """Restore a checkpoint's content other than the server's state."""
        self.server.aggregate = state.get("aggregate")
        for name, tensor in state.items():
            kind, _, which = name.partition("/")
            if kind == "held":
                self._held[int(which)] = tensor
            elif kind == "payload":
                worker, ticket = map(int, which.split("/"))
                buffers = state.get(f"buffers/{which}", tensor[:0])[: len(self.server.buffers)]
                self.payloads[worker, ticket] = torch.cat([tensor, buffers])
        if self._codec is not None:
            held = {n.removeprefix("worker/"): t for n, t in state.items() if n.startswith("worker/")}
            models = {int(worker): tensor.numpy() for worker, tensor in held.items()}
            self._codec.restore(codec_counters["draws"], models)
            self._codec.channel.num_sent = codec_counters["aggregates"]
            if "residual" in state:
                self._codec.channel.restore(state["residual"].numpy(), codec_counters["aggregates"])

    @property
    def _pushed(self) -> int:
        """Number of entries that a push has for this slice."""
        return self._length * self._vectors_of_a_push

    @property
    def codec_counters(self) -> dict[str, int]:
        """Numbers of models (`draws`) and `aggregates` that stochastic codecs have encoded."""
        if self._codec is None:
            return dict(NO_CODEC_COUNTERS)
        return {"draws": self._codec.draws, "aggregates": self._codec.channel.num_sent}

    def checkpoint(self, keys: Sequence[PushKey]) -> StateDict:
        """Return copies of this slice's state for a checkpoint, with the given pushes."""
        state = state_of(self.server, states=True)
        state |= {name: each.clone() for name, each in self.vectors(keys).items() if name not in state}
        if len(self.server.buffers):
            state |= {_name(key, "buffers"): self.payloads[key][self._length :].clone() for key in keys}
        return state

    def facts(self) -> dict[str, dict[str, float]]:
        """Return facts about the slice for the outcome of the run."""
        return {}

    def close(self) -> None:
        """Release the resources of the slice other than its memory."""

    # ---------------------------------------------------------------- pushes

    def receive(self, key: PushKey, payload: Tensor) -> None:
        """Decode the payload of a push, and keep it.

        One that is not as long as the slice moves the model nowhere: it was sent before this server held
        other entries, and is void, or its sender is broken.

        Raises
        ------
        MessageRefused
            If it cannot be decoded.
        """
        with self.busy:
            if self.server.fragments:
                self.payloads[key] = payload  # of which is known when it is applied
            elif self._codec is not None:
                self._receive_encoded(key, payload, self._codec)
            elif payload.dtype == torch.float32 and payload.numel() == self._pushed + self._num_buffers:
                self.payloads[key] = payload
            else:
                self.replace_missing(key)

    def _receive_encoded(self, key: PushKey, payload: Tensor, codec: ServerCodecState) -> None:
        part, buffers = split(payload, self._pushed, self._num_buffers)
        if part.dtype != torch.uint8 or not codec.takes(len(part)):
            self.replace_missing(key)
            return
        try:
            with self._decoding:
                decoded = codec.decode_push(*key, part.numpy())
        except (CodecError, ValueError, IndexError) as error:
            raise MessageRefused(f"its payload cannot be decoded: {error}") from None
        self.payloads[key] = with_buffers(torch.from_numpy(decoded), buffers)

    def apply(self, order: ApplyUpdate) -> None:
        """Make the next version from the named payloads, in the order of the commit."""
        with self.busy, self._updating:
            samples, steps, bases, weights = order.samples, order.steps, order.bases, order.weights
            cut, take, held = order.update.fragment, self._take, self._held.get
            pushes = [
                Pushed(*take(key, cut), key[0], samples[i], steps[i], held(bases[i]), weights[i])
                for i, key in enumerate(order.keys)
            ]
            self.server.apply(pushes, order.update)

    def _take(self, key: PushKey, fragment: int) -> tuple[Tensor, Tensor]:
        payload = self.payloads.pop(key)
        if fragment >= 0:
            return self._part(payload, self.server.fragments[fragment].size)
        if not self._num_buffers:  # views cost as much as the update of a small model
            return payload, _NO_BUFFERS
        return payload[: self._pushed], payload[self._pushed :]

    def _part(self, payload: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Decode the fragment of a payload; payloads that cannot be decoded count as zeros."""
        part, buffers = split(payload, max(1, size), self._num_buffers)
        if len(buffers) != self._num_buffers:
            return torch.zeros(size), self.server.buffers
        with suppress(CodecError):
            if self._codec is not None:
                with self._decoding:
                    return torch.from_numpy(self._codec.decode_part(part.numpy(), size)), buffers
            if part.dtype == torch.float32 and len(part) == size:
                return part, buffers
        return torch.zeros(size), buffers

    def discard(self, key: PushKey) -> bool:
        """Drop a payload; False if it is not here."""
        return self.payloads.pop(key, None) is not None

    def replace_missing(self, key: PushKey) -> None:
        """Replace a payload that will never arrive by one that does not move the model."""
        own, buffers = self.server.parameters, self.server.buffers
        nowhere = torch.zeros(self._pushed)
        if self._sends_parameters:
            nowhere[: self._length] = own
        self.payloads[key] = torch.cat([nowhere, buffers]) if len(buffers) else nowhere

    # ---------------------------------------------------------------- answers

    def answer(self, worker: int, ticket: int, version: int, aggregate: bool, fragment: int) -> Tensor:
        """Return the vector that is sent with a release, encoded.

        The model or a fragment of it, with the buffers, or the last aggregate.
        """
        if fragment >= 0:
            return self._answer_part(self.server.fragments[fragment].of(self.server.parameters))
        return self._aggregate(version) if aggregate else self._model(worker, ticket, version)

    def _answer_part(self, part: Tensor) -> Tensor:
        if self._codec is None or not len(part):
            part = part.clone() if self._codec is None else torch.zeros(1, dtype=torch.uint8)
        else:
            with self._encoding:
                part = torch.from_numpy(self._codec.encode_part(part.numpy()))
        return with_buffers(padded(part), self.server.buffers)

    def _model(self, worker: int, ticket: int, version: int) -> Tensor:
        server, model = self.server, self.server.sent_model()
        if self._codec is not None:
            with self._encoding:
                encoded = self._codec.encode_model(worker, ticket, version, model.numpy())
            return with_buffers(torch.from_numpy(encoded), server.buffers)
        if self._num_buffers:
            return torch.cat([model, server.buffers])
        # a socket copies what is small; what is large must be a copy, as the next update changes it
        is_own = model is server.parameters
        return model.clone() if is_own and self._length * 4 >= ZERO_COPY_BYTES else model

    def _aggregate(self, version: int) -> Tensor:
        assert self.server.aggregate is not None
        if self._codec is None:
            return self.server.aggregate
        with self._encoding:
            return torch.from_numpy(self._codec.encode_aggregate(version, self.server.aggregate.numpy()))

    def forget(self, worker: int) -> None:
        if self._codec is not None:
            self._codec.forget(worker)

    # ---------------------------------------------------------------- entries that move

    def vectors(self, keys: Sequence[PushKey]) -> StateDict:
        """Return by name all vectors that have a value for each entry of the slice.

        The parameters, the state of optimizer and codec, the last aggregate, versions that are held, and the
        payloads of the pushes named.
        """
        server, length = self.server, self._length
        found = {
            name: t for name, t in server.tensors().items() if t.shape == (length,) and name != "buffers"
        }
        found |= {} if server.aggregate is None else {"aggregate": server.aggregate}
        found |= {f"held/{version}": tensor for version, tensor in self._held.items()}
        found |= {_name(key): self.payloads[key][:length] for key in keys}
        residual = None if self._codec is None else self._codec.channel.residual
        return found if residual is None else found | {"residual": torch.from_numpy(residual)}

    def hold_vectors(self, vectors: StateDict) -> None:
        """Switch to another partition with these vectors; each worker's next model is sent unencoded."""
        before, length = self.server, self._length
        server = Server(
            vectors["parameters"], before.buffers, before.spec, before.global_batch, before.aggregation
        )  # without fragments: entries of these do not move
        server.load_states(before.tensors() | vectors)
        server.aggregate = vectors.get("aggregate")
        self.server, self._length = server, len(server.parameters)
        self._held = {version: vectors[f"held/{version}"] for version in self._held}
        for key, payload in self.payloads.items():
            if _name(key) in vectors:  # else it is void
                self.payloads[key] = torch.cat([vectors[_name(key)], payload[length:]])
        if self._codec is not None:
            composition, streams, number = self._codec_of
            codec = ServerCodecState(composition, self._length, streams, number)
            codec.continue_draws_of(self._codec)
            if "residual" in vectors:
                codec.channel.add_residual(vectors["residual"].numpy())
            self._codec = codec
        self.busy.take()

    # ---------------------------------------------------------------- measurements

    def products(self, keys: Sequence[PushKey], asked: Sequence[Product], part: Partition) -> StateDict:
        """Return this slice's shares of scalar products; the pushes named must have arrived."""
        vectors = self.vectors(keys)
        cuts = [part.holding(product.start, product.stop) for product in asked]
        return {str(i): share_of(each, vectors, cuts[i]) for i, each in enumerate(asked)}

    def payload(self, key: PushKey) -> StateDict:
        """Return the payload of a push for this slice."""
        payload = self.payloads[key]
        return {"parameters": payload[: self._length], "buffers": payload[self._length :]}

    def hold(self, version: int, dropped: Iterable[int] = ()) -> None:
        """Keep the current version unless it is kept already, and drop others."""
        for unused in dropped:
            self._held.pop(unused, None)
        if version not in self._held:
            self._held[version] = self.server.parameters.clone()

    def distance_sq(self, version: int) -> float:
        difference = self.server.parameters - self._held[version]
        return float(torch.dot(difference, difference))
