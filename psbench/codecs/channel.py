"""Error feedback: what one message loses is part of the sender's next one."""

from __future__ import annotations

import numpy as np

from psbench.codecs.base import Codec, Floats, Packed
from psbench.errors import CodecError
from psbench.seeds import Streams


class Channel:
    """Encode a sequence of vectors, with error feedback if the codec has it.

    The residual e begins at 0. For a vector v, p = e + v is encoded, and e becomes p minus its decoded
    value. So the sum of all decoded messages plus the residual is the sum of all vectors given.

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
    num_bytes : int
        Length of every message.
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
    Gradient Descent with Double-Pass Error-Compensated Compression", ICML, Alg. 1; `protocols` 9.

    Examples
    --------
    >>> from psbench.codecs import TopK
    >>> channel = Channel(TopK(ratio=0.25), 4, Streams(0), 0)
    >>> channel.receive(channel.send(np.array([1, -3, 2, 0.5], dtype=np.float32)))
    array([ 0., -3.,  0.,  0.], dtype=float32)
    >>> channel.residual
    array([1. , 0. , 2. , 0.5], dtype=float32)
    """

    def __init__(self, codec: Codec, size: int, streams: Streams, *keys: int) -> None:
        self.codec, self.size = codec, size
        self.num_bytes = codec.num_bytes(size)
        self._streams, self._keys = streams, keys
        self.residual: Floats | None
        self.restore(None, 0)

    def restore(self, residual: Floats | None, num_sent: int) -> None:
        """Continue after so many messages with the residual left then; None stands for 0.

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

    def send(self, vector: Floats) -> Packed:
        """Return the next message; nothing changes if there is an error.

        Shapes
        ------
        vector : float32, (size,)      returned : uint8, (num_bytes,)

        Raises
        ------
        CodecError
            If the vector has another size, or its sum with the residual cannot be encoded.
        """
        self._check(vector)
        rng = self._streams.generator("codec", *self._keys, self.num_sent)
        if self.residual is None:
            packed = self.codec.encode(vector, rng)
        else:
            # the codec refuses a sum that overflows
            with np.errstate(over="ignore"):
                wanted = self.residual + vector
            packed = self.codec.encode(wanted, rng)
            wanted -= self.receive(packed)
            self.residual = wanted if self.codec.has_memory else None
        self.num_sent += 1
        return packed

    def receive(self, packed: Packed) -> Floats:
        """Decode a message; the receiver's side, which has no state."""
        return self.codec.decode(packed, self.size)

    def _check(self, vector: Floats) -> None:
        if vector.shape != (self.size,):
            raise CodecError(
                f"channel of codec {self.codec.name!r}: expected a vector of {self.size:,} entries, "
                f"got shape {vector.shape}"
            )
