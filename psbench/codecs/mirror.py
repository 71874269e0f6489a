"""One end of a connection that carries a vector that changes little: only the change is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from psbench.codecs.base import Encoding, Floats, Packed
from psbench.errors import CodecError
from psbench.seeds import Streams


class Mirror:
    """Send a model, of which a codec may leave out most, as the change from what the other end has.

    Both ends begin with equal mirrors and keep them equal: the sender encodes x less the mirror, and both
    add what arrives. What a codec loses is thus part of the next difference, without another memory, also
    where `error_feedback` is off. A `Channel` is for what is added up (steps, gradients), a mirror for what
    replaces what was there (models, local parameters).

    Parameters
    ----------
    encoding : Codec or Blockwise
    start : float32 array, (size,)
        What the other end has, such as the model that the run begins with. Copied.
    streams : Streams
        Of the run; each message draws from a stream of its own.
    *keys : int
        What tells this connection from the run's others.

    Attributes
    ----------
    num_bytes : int
        Length of every message.
    mirror : float32 array, (size,)
    num_sent : int
        Messages so far.

    Notes
    -----
    Adding a difference rounds: where nothing is to be lost, send the vector itself.

    Source
    ------
    Richtárik, Sokolov and Fatkhullin (2021), "EF21: A New, Simpler, Theoretically Better, and Practically
    Faster Error Feedback", NeurIPS, there for gradients; for models, Gruntkowska, Tyurin and
    Richtárik (2023), "EF21-P and Friends", ICML.

    Examples
    --------
    >>> from psbench.codecs import TopK
    >>> model = np.array([1, -3, 2, 0.5], dtype=np.float32)
    >>> server, worker = (Mirror(TopK(ratio=0.5), np.zeros(4, np.float32), Streams(0), 0) for _ in range(2))
    >>> worker.receive(server.send(model))
    array([ 0., -3.,  2.,  0.], dtype=float32)
    >>> worker.receive(server.send(model))
    array([ 1. , -3. ,  2. ,  0.5], dtype=float32)
    """

    def __init__(self, encoding: Encoding, start: Floats, streams: Streams, *keys: int) -> None:
        self.encoding = encoding
        self.num_bytes = encoding.num_bytes(start.size)
        self._streams, self._keys = streams, keys
        self.mirror = start.copy()
        self.num_sent = 0

    def send(self, vector: Floats) -> Packed:
        """Return the next message; nothing changes if there is an error.

        Shapes
        ------
        vector : float32, (size,)      returned : uint8, (num_bytes,)

        Raises
        ------
        CodecError
            If the vector has another size, or its difference from the mirror cannot be encoded.
        """
        if vector.shape != self.mirror.shape:
            raise CodecError(
                f"this mirror is of {self.mirror.size:,} entries, got a vector of {vector.shape}"
            )
        rng = self._streams.generator("codec", *self._keys, self.num_sent)
        with np.errstate(over="ignore", invalid="ignore"):  # found by the codec
            difference = vector - self.mirror
        packed = self.encoding.encode(difference, rng)
        self._add(packed)
        self.num_sent += 1
        return packed

    def receive(self, packed: Packed) -> Floats:
        """Take a message at the other end, and return the vector as it is known there."""
        self._add(packed)
        return self.mirror.copy()

    def _add(self, packed: Packed) -> None:
        self.mirror += self.encoding.decode(packed, self.mirror.size)

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a checkpoint needs, as copies: `mirror` and `num_sent`."""
        return {"mirror": self.mirror.copy(), "num_sent": np.array(self.num_sent)}

    def load_state_dict(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Take over what `state_dict` returned.

        Raises
        ------
        CodecError
            If it is of vectors of another size.
        """
        mirror = state["mirror"]
        if mirror.shape != self.mirror.shape:
            raise CodecError(f"a mirror of {mirror.shape} for vectors of {self.mirror.size:,} entries")
        self.mirror = np.array(mirror, dtype=np.float32)
        self.num_sent = int(state["num_sent"])
