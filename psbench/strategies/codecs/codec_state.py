"""Memory of senders and receivers: residuals of error feedback, and the models that workers hold.

A `Channel` encodes a sequence of vectors, with error feedback: what one message loses is part of the sender's
next one. A worker has a channel to each server, for its pushes, and a server has one to all workers, for
aggregates.

Both sides track the model that the worker holds, without extra messages. Sparse and quantised codecs carry
the difference from it, so that what one answer loses is part of the next difference. With a codec that is
only unbiased, both sides apply a share of each decoded difference (`shift_rate`); otherwise errors would grow
from answer to answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from psbench.arrays import Floats
from psbench.core import Strategy
from psbench.errors import CodecError
from psbench.seeds import Streams
from psbench.strategies.codecs.base import Codec, Packed

#: key of the server's own random streams, where a worker's streams have the worker's number
_SERVER = 1 << 20


class Channel:
    """Encode a sequence of vectors, with error feedback if the codec has it.

    The residual e begins at 0. For a vector v, p = e + v is encoded, and e becomes p minus its decoded
    value. So the sum of all decoded messages plus the residual is the sum of all vectors given. With a
    `residual_decay` b below 1, p = b e + v: what is not sent for long is forgotten.

    Parameters
    ----------
    codec : Codec
    size : int, entries
        Of every vector.
    streams : Streams
        The run's random streams; each message draws from a stream of its own.
    *keys : int
        Identify this channel among the run's, such as the worker's id.

    Attributes
    ----------
    residual : float32 array, (size,), or None
        None if the codec has no error feedback and no residual was added (`add_residual`).
    num_sent : int
        Messages so far.

    Notes
    -----
    The residual has the unit of the vectors. In the published form they are steps lr g, and the receiver
    applies decoded messages with rate 1. Given gradients g, what was lost is applied later, with the rate of
    that time. The two differ only where the rate changes, or where the codec does not scale with its input
    (fp16).

    Where the strategy changes, or other servers hold the parameters, another channel's residual may be added
    to this one's (`add_residual`): what both have sent plus the residual is what both were given.

    DoubleSqueeze is one channel from every worker to the server, and one from the server to all workers for
    the mean of the decoded pushes, which each worker applies.

    Source
    ------
    Stich, Cordonnier and Jaggi (2018), Alg. 1; Tang et al. (2019), "DoubleSqueeze: Parallel Stochastic
    Gradient Descent with Double-Pass Error-Compensated Compression", ICML, Alg. 1.

    Examples
    --------
    >>> from psbench.strategies.codecs import TopK
    >>> channel = Channel(TopK(ratio=0.25), 4, Streams(0), 0)
    >>> channel.receive(channel.send(np.array([1, -3, 2, 0.5], dtype=np.float32)))
    array([ 0., -3.,  0.,  0.], dtype=float32)
    >>> channel.residual
    array([1. , 0. , 2. , 0.5], dtype=float32)
    """

    def __init__(self, codec: Codec, size: int, streams: Streams, *keys: int) -> None:
        self.codec, self.size = codec, size
        self._streams, self._keys = streams, keys
        self.residual: Floats | None
        self.restore(None, 0)

    def restore(self, residual: Floats | None, num_sent: int) -> None:
        """Continue after `num_sent` messages with that residual; None means 0.

        Raises
        ------
        CodecError
            If the residual has another size.
        """
        if residual is None:
            self.residual = np.zeros(self.size, np.float32) if self.codec.has_memory else None
        else:
            self._check(residual)
            self.residual = residual.astype(np.float32)
        self.num_sent = num_sent

    def add_residual(self, residual: Floats) -> None:
        """Add the residual of another channel; a codec without error feedback sends it with the next vector.

        Shapes
        ------
        residual : float32, (size,); not changed

        Raises
        ------
        CodecError
            If it has another size.
        """
        self._check(residual)
        self.residual = residual.copy() if self.residual is None else self.residual + residual

    def send(self, vector: Floats, setting: int = -1) -> Packed:
        """Return the next message; the state is unchanged if an error occurs.

        Parameters
        ----------
        setting : int
            Of a codec that has several; see `CodecPart.at`.

        Shapes
        ------
        vector : float32, (size,)      returned : uint8, (num_bytes of the codec,)

        Raises
        ------
        CodecError
            If the vector has another size, or its sum with the residual cannot be encoded.
        """
        self._check(vector)
        rng = self._streams.generator("codec", *self._keys, self.num_sent)
        if self.residual is None:
            packed = self._at(setting, self.size).encode(vector, rng)
        else:
            # the codec refuses a sum that overflows
            with np.errstate(over="ignore"):
                memory = np.float32(self.codec.memory)
                before = self.residual if memory == 1 else self.residual * memory
                wanted = before + vector
            packed = self._at(setting, self.size).encode(wanted, rng)
            wanted -= self.receive(packed)
            self.residual = wanted if self.codec.has_memory else None
        self.num_sent += 1
        return packed

    def send_part(self, vector: Floats, setting: int = -1) -> Packed:
        """Return the next message, of some of the entries; for channels without a residual."""
        rng = self._streams.generator("codec", *self._keys, self.num_sent)
        packed = self._at(setting, vector.size).encode(vector, rng)
        self.num_sent += 1
        return packed

    def receive(self, packed: Packed) -> Floats:
        """Decode a message; the receiver's side, which has no state."""
        return self.codec.decode(packed, self.size)

    def _at(self, setting: int, size: int) -> Codec:
        codec = self.codec.at(setting, size)
        assert isinstance(codec, Codec)
        return codec

    def _check(self, vector: Floats) -> None:
        if vector.shape != (self.size,):
            raise CodecError(
                f"channel of codec {self.codec.name!r}: expected a vector of {self.size:,} entries, "
                f"got shape {vector.shape}"
            )


class WorkerCodecState:
    """Codec state of one worker towards one server.

    Parameters
    ----------
    composition : Strategy
    size : int, entries
        Size of the server's slice.
    streams : Streams
    worker, server : int
    """

    def __init__(self, composition: Strategy, size: int, streams: Streams, worker: int, server: int) -> None:
        communication = composition.communication
        assert isinstance(communication.codec, Codec)
        assert isinstance(communication.codec_down, Codec)
        self._down = communication.codec_down
        self._differs = composition.sends_differences
        pushed = size * composition.vectors_of_a_push
        self.channel = Channel(communication.codec, pushed, streams, worker, server)
        #: the model that the worker was sent last
        self.held: Floats | None = None
        self._size, self._answered = size, size * composition.vectors_of_an_answer

    def decode_model(self, packed: Packed) -> Floats:
        """Decode the model of an answer; the first one is whole."""
        if self._down.entrywise:
            self.held = self._down.decode(packed, self._answered)
        elif self.held is None:
            self.held = packed.view("<f4").astype(np.float32)
        else:
            self.held = _shifted(self.held, self._down, packed)
        return self.held

    def decode_aggregate(self, packed: Packed) -> Floats:
        return self._down.decode(packed, self._size)

    def encode_push(self, payload: Floats, setting: int = -1) -> Packed:
        """Encode the payload of a push, with that setting of the codec.

        Raises
        ------
        CodecError
            If an entry is NaN or infinite, or out of the codec's range.
        """
        if self._differs:
            assert self.held is not None
            payload = payload - self.held[: self._size]
        return self.channel.send(payload, setting)

    def decode_push(self, packed: Packed) -> Floats:
        """Return the payload of the last push as the server decodes it."""
        payload = self.channel.receive(packed)
        if self._differs:
            assert self.held is not None
            payload = payload + self.held[: self._size]
        return payload


class ServerCodecState:
    """Codec state of one server towards all workers.

    Parameters
    ----------
    composition : Strategy
    size : int, entries
        Size of the server's slice.
    streams : Streams
    server : int
    """

    def __init__(self, composition: Strategy, size: int, streams: Streams, server: int) -> None:
        communication = composition.communication
        assert isinstance(communication.codec, Codec)
        assert isinstance(communication.codec_down, Codec)
        self._up, self._down = communication.codec, communication.codec_down
        self._vectors = composition.vectors_of_a_push
        self._differs = composition.sends_differences
        self._streams, self._keys, self._size = streams, (_SERVER, server), size
        self._answered = size * composition.vectors_of_an_answer
        #: encodes aggregates
        self.channel = Channel(self._down, size, streams, _SERVER, server)
        #: models that each worker holds, by the ticket of the answer; the last two
        self._held: dict[int, dict[int, Floats]] = {}
        #: encoded answers of the last version, by the model held: a barrier's workers share one
        self._answers: dict[int, tuple[Floats | None, Packed, Floats]] = {}
        self._version = self._draws = -1
        self._aggregate: tuple[int, Packed] | None = None

    def encode_model(self, worker: int, ticket: int, version: int, model: Floats) -> Packed:
        """Encode this version of the model for a worker; the first answer is whole.

        Parameters
        ----------
        ticket : int
            Ticket of the release; rises from answer to answer.

        Shapes
        ------
        model : float32, (size,) or of several vectors; not changed      returned : uint8
        """
        if version != self._version:
            self._version, self._answers = version, {}
        before = self._held.get(worker, {})
        held = before[max(before)] if before else None
        key = 0 if held is None or self._down.entrywise else id(held)
        if key not in self._answers:
            self._answers[key] = held, *self._encoded(model, held)  # `held` stays, so that its id does
        _, packed, now = self._answers[key]
        self._held[worker] = dict([*before.items()][-1:]) | {ticket: now}
        return packed

    def encode_aggregate(self, version: int, aggregate: Floats) -> Packed:
        if self._aggregate is None or self._aggregate[0] != version:
            self._aggregate = version, self.channel.send(aggregate)
        return self._aggregate[1]

    def decode_push(self, worker: int, ticket: int, packed: Packed) -> Floats:
        """Decode the payload of a push with that ticket.

        The next answer may have been sent before the push arrived. The push of a worker that was forgotten
        since is void, so that its payload is never used.
        """
        payload = self._up.decode(packed, self._size * self._vectors)
        if not self._differs:
            return payload
        bases = [number for number in self._held.get(worker, {}) if number <= ticket]
        return self._held[worker][max(bases)][: self._size] + payload if bases else payload

    def takes(self, num_bytes: int) -> bool:
        """Return whether the payload of a push may have that length."""
        return self._up.takes(num_bytes, self._size * self._vectors)

    def encode_part(self, part: Floats) -> Packed:
        """Encode the model in parts, each separately."""
        return self._down.encode(part, self._streams.generator("codec", *self._keys, 0))

    def decode_part(self, packed: Packed, size: int) -> Floats:
        """Decode the payload of a fragment's push; this server holds `size` of its entries."""
        return self._up.decode(packed, size) if size else np.zeros(0, np.float32)

    def forget(self, worker: int) -> None:
        """Forget a worker that has left: if it returns, it is sent the whole model."""
        self._held.pop(worker, None)

    @property
    def draws(self) -> int:
        """Number of encoded models; each uses a new random stream."""
        return self._draws

    def restore(self, draws: int, held: Mapping[int, Floats]) -> None:
        """Restore from a checkpoint: the number of models encoded, and the model that each worker holds.

        Workers that hold equal models share their answers, and with them the random draws, as before.
        """
        shared: dict[bytes, Floats] = {}
        self._draws = draws
        self._held = {w: {0: shared.setdefault(model.tobytes(), model)} for w, model in held.items()}

    def continue_draws_of(self, before: ServerCodecState) -> None:
        self._draws, self.channel.num_sent = before._draws, before.channel.num_sent

    def _encoded(self, model: Floats, held: Floats | None) -> tuple[Packed, Floats]:
        """Return an encoded model, and the model that the worker holds after decoding it."""
        self._draws += 1
        rng = self._streams.generator("codec", *self._keys, self._draws)
        if self._down.entrywise:
            packed = self._down.encode(model, rng)
            return packed, self._down.decode(packed, self._answered)
        if held is None:
            whole = model.astype("<f4").view(np.uint8)
            return whole, model.copy()
        packed = self._down.encode(model - held, rng)
        return packed, _shifted(held, self._down, packed)


def _shifted(held: Floats, codec: Codec, packed: Packed) -> Floats:
    """Return the model that a worker holds after an answer; the same on both sides, bit by bit."""
    step: Floats = np.float32(codec.shift_rate(held.size)) * codec.decode(packed, held.size)
    return held + step
