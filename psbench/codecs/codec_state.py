"""The two ends of a connection between a worker and one server, where codecs write and read.

Both ends keep what the other needs to know without being told: which model the worker holds. A model's
difference from that is what sparse and quantised codecs carry, so what one answer loses is part of the next
difference. Of a codec that is right on average only, both move by a share of what arrives (`shift_rate`), as
its errors would grow from answer to answer otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from psbench.codecs.base import Codec, Floats, Packed
from psbench.codecs.channel import Channel
from psbench.core.strategy import Strategy
from psbench.seeds import Streams

#: the server's own stream of chance, where a worker's has the worker's number
_SERVER = 1 << 20


class WorkerCodecState:
    """A worker's end of its connection to one server.

    Parameters
    ----------
    composition : Strategy
    size : int, entries
        Of the server's slice.
    streams : Streams
    worker, server : int
    """

    def __init__(self, composition: Strategy, size: int, streams: Streams, worker: int, server: int) -> None:
        communication = composition.communication
        assert isinstance(communication.codec, Codec)
        assert isinstance(communication.codec_down, Codec)
        self._down = communication.codec_down
        self._differs = composition.sends_differences
        self.channel = Channel(communication.codec, size, streams, worker, server)
        #: the model that we were sent last
        self.held: Floats | None = None
        self._size = size

    def answer(self, packed: Packed) -> Floats:
        """Return the model that an answer brings; the first is whole."""
        if self._down.entrywise:
            self.held = self._down.decode(packed, self._size)
        elif self.held is None:
            self.held = packed.view("<f4").astype(np.float32)
        else:
            self.held = _moved(self.held, self._down, packed)
        return self.held

    def aggregate(self, packed: Packed) -> Floats:
        """Return the aggregate that an answer brings."""
        return self._down.decode(packed, self._size)

    def push(self, payload: Floats) -> Packed:
        """Return what a push of this payload sends.

        Raises
        ------
        CodecError
            If it has entries that are no numbers, or too large for the codec.
        """
        if self._differs:
            assert self.held is not None
            payload = payload - self.held
        return self.channel.send(payload)


class ServerCodecState:
    """A server's end of its connections to all workers.

    Parameters
    ----------
    composition : Strategy
    size : int, entries
        Of the server's slice.
    streams : Streams
    server : int
    """

    def __init__(self, composition: Strategy, size: int, streams: Streams, server: int) -> None:
        communication = composition.communication
        assert isinstance(communication.codec, Codec)
        assert isinstance(communication.codec_down, Codec)
        self._up, self._down = communication.codec, communication.codec_down
        self._differs = composition.sends_differences
        self._streams, self._keys, self._size = streams, (_SERVER, server), size
        #: of aggregates
        self.channel = Channel(self._down, size, streams, _SERVER, server)
        #: what each worker holds, by the ticket of the answer that brought it; the last two
        self._held: dict[int, dict[int, Floats]] = {}
        #: answers of the version sent last, by what the worker held: all workers of a barrier share one
        self._answers: dict[int, tuple[Floats | None, Packed, Floats]] = {}
        self._version = self._draws = -1
        self._aggregate: tuple[int, Packed] | None = None

    def answer(self, worker: int, ticket: int, version: int, model: Floats) -> Packed:
        """Return what brings a worker this version of the model; the first answer is whole.

        Parameters
        ----------
        ticket : int
            Of the release; rises from answer to answer.

        Shapes
        ------
        model : float32, (size,); not changed      returned : uint8
        """
        if version != self._version:
            self._version, self._answers = version, {}
        before = self._held.get(worker, {})
        held = before[max(before)] if before else None
        key = 0 if held is None or self._down.entrywise else id(held)
        if key not in self._answers:
            self._answers[key] = held, *self._written(model, held)  # `held` stays, so that its id does
        _, packed, now = self._answers[key]
        self._held[worker] = dict([*before.items()][-1:]) | {ticket: now}
        return packed

    def aggregate(self, version: int, aggregate: Floats) -> Packed:
        """Return what brings workers the aggregate of that version's commit, the same to all."""
        if self._aggregate is None or self._aggregate[0] != version:
            self._aggregate = version, self.channel.send(aggregate)
        return self._aggregate[1]

    def arrived(self, worker: int, ticket: int, packed: Packed) -> Floats:
        """Return the payload that a push with that ticket brings.

        The next answer may have been sent before it arrived. A push of a worker that was forgotten since is
        void, and nobody will look at it.
        """
        payload = self._up.decode(packed, self._size)
        if not self._differs:
            return payload
        bases = [number for number in self._held.get(worker, {}) if number <= ticket]
        return self._held[worker][max(bases)] + payload if bases else payload

    def forget(self, worker: int) -> None:
        """Know nothing of a worker that has gone: should it come back, it is sent the model whole."""
        self._held.pop(worker, None)

    @property
    def draws(self) -> int:
        """The number of the last model written; each is written with chance of its own."""
        return self._draws

    def go_on(self, draws: int, held: Mapping[int, Floats]) -> None:
        """Begin where another end of this server's was: after so many models, with what workers hold.

        Workers that hold the same go on to share their answers, and with them their draws.
        """
        shared: dict[bytes, Floats] = {}
        self._draws = draws
        self._held = {w: {0: shared.setdefault(model.tobytes(), model)} for w, model in held.items()}

    def follow(self, before: ServerCodecState) -> None:
        """Draw on from where this server's end was while it held other entries."""
        self._draws, self.channel.num_sent = before._draws, before.channel.num_sent

    def _written(self, model: Floats, held: Floats | None) -> tuple[Packed, Floats]:
        """Return what travels, and what the worker holds then."""
        self._draws += 1
        rng = self._streams.generator("codec", *self._keys, self._draws)
        if self._down.entrywise:
            packed = self._down.encode(model, rng)
            return packed, self._down.decode(packed, self._size)
        if held is None:
            whole = model.astype("<f4").view(np.uint8)
            return whole, model.copy()
        packed = self._down.encode(model - held, rng)
        return packed, _moved(held, self._down, packed)


def _moved(held: Floats, codec: Codec, packed: Packed) -> Floats:
    """Return what a worker holds after an answer; the same at both ends, bit by bit."""
    return held + np.float32(codec.shift_rate(held.size)) * codec.decode(packed, held.size)
