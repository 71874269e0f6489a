"""One sender's end of a lossy connection: what it has not yet been able to say."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from psbench.codecs.base import Codec, Floats, Packed
from psbench.errors import CodecError
from psbench.seeds import Streams


class Channel:
    """Encode a sequence of vectors, with error feedback if the codec has it.

    The memory m begins at 0. Of a vector v, p = m + v is encoded, and m becomes p less what arrives: what
    is lost in one message is part of the next, and all that was sent plus the memory is all that was given.

    Parameters
    ----------
    codec : Codec
    size : int, entries
        Of every vector.
    streams : Streams
        Of the run; each message draws from a stream of its own.
    *keys : int
        What tells this channel from the run's others, such as the worker's id.

    Attributes
    ----------
    num_bytes : int
        Length of every message.
    memory : float32 array, (size,), or None
        None if the codec has no error feedback, and nothing is owed.
    num_sent : int
        Messages so far.

    Notes
    -----
    The memory holds what it is given. In the published form that is the step lr g, so that a step once lost
    is made up for as large as it was; the receiver then takes what arrives as a step of rate 1. Given g
    itself, what was lost is taken later with the rate of that time. The two differ only where the rate
    changes, or where the codec does not scale with its input (fp16).

    Where the strategy changes, or other servers hold the parameters, another channel's residual may be added
    to this one's (`add_residual`): what both have sent plus the residual is what both were given.

    DoubleSqueeze is a channel of every worker to the server and one of the server to all workers, which is
    given the mean of what came in; each worker applies what arrives.

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
        self.reset()

    def reset(self) -> None:
        """Forget what was lost, and begin with the first message's stream."""
        self.residual: Floats | None = np.zeros(self.size, np.float32) if self.codec.has_memory else None
        self.num_sent = 0

    def reset_to(self, memory: Floats | None, num_sent: int) -> None:
        """Go on from where a channel like this one was."""
        self.residual, self.num_sent = memory, num_sent

    def add_residual(self, residual: Floats) -> None:
        """Remember what another channel has not said; without error feedback it is sent with the next vector.

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
            If the vector has another size, or it and the memory cannot be encoded.
        """
        self._check(vector)
        rng = self._streams.generator("codec", *self._keys, self.num_sent)
        if self.residual is None:
            packed = self.codec.encode(vector, rng)
        else:
            # a sum too large for a float is found by the codec
            with np.errstate(over="ignore"):
                wanted = self.residual + vector
            packed = self.codec.encode(wanted, rng)
            wanted -= self.receive(packed)
            self.residual = wanted if self.codec.has_memory else None
        self.num_sent += 1
        return packed

    def receive(self, packed: Packed) -> Floats:
        """Return what arrives of a message; the receiver's half, which remembers nothing."""
        return self.codec.decode(packed, self.size)

    def _check(self, vector: Floats) -> None:
        if vector.shape != (self.size,):
            raise CodecError(f"this channel carries vectors of {self.size:,} entries, got {vector.shape}")

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a checkpoint needs, as copies: `num_sent`, and `memory` (`owed` by a codec without)."""
        state: dict[str, npt.NDArray[Any]] = {"num_sent": np.array(self.num_sent)}
        return state if self.residual is None else state | {self._remembered: self.residual.copy()}

    def load_state_dict(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Take over what `state_dict` returned; the same messages follow as there.

        Raises
        ------
        CodecError
            If it is that of another codec or of vectors of another size.
        """
        if ("memory" in state) != self.codec.has_memory:
            raise CodecError("one of these channels has error feedback and the other has not; call reset()")
        memory = state.get(self._remembered)
        if memory is not None and memory.shape != (self.size,):
            raise CodecError(f"a memory of {memory.shape} for vectors of {self.size:,} entries")
        self.residual = None if memory is None else np.array(memory, dtype=np.float32)
        self.num_sent = int(state["num_sent"])

    @property
    def _remembered(self) -> str:
        return "memory" if self.codec.has_memory else "owed"
