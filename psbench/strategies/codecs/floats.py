"""Codecs of 32-bit and of 16-bit floats."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Floats
from psbench.errors import CodecError
from psbench.strategies.codecs.base import Codec, Lossy, Packed
from psbench.strategies.codecs.bits import float_bytes, floats_of

#: the largest 16-bit float
LARGEST_HALF = 65504.0


class Plain(Codec):
    """32-bit floats without compression.

    Examples
    --------
    >>> Plain().num_bytes(1000)
    4000
    """

    name = "none"
    entrywise = True
    source = "IEEE 754"
    unbiased = True

    def num_bits(self, size: int) -> int:
        return 32 * size

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        return float_bytes(vector).copy()

    def _decode(self, packed: Packed, size: int) -> Floats:
        return floats_of(packed)


class Half(Lossy):
    """16-bit floats: each entry is rounded to the nearest one, ties to even.

    Notes
    -----
    An entry above 65504 is refused, never made infinite. Entries below 6.1e-5 keep fewer than 11 significant
    bits, and those below 3e-8 arrive as 0; with `error_feedback` they are sent once they have added up.

    Examples
    --------
    >>> codec, rng = Half(), np.random.default_rng(0)
    >>> codec.decode(codec.encode(np.array([1.0001, -2.5], dtype=np.float32), rng), 2)
    array([ 1. , -2.5], dtype=float32)
    """

    name = "fp16"
    entrywise = True
    source = "IEEE 754; Hermes IV-C"

    def num_bits(self, size: int) -> int:
        return 16 * size

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        if max(vector.max(), -vector.min()) > LARGEST_HALF:
            first = int(np.flatnonzero(np.abs(vector) > LARGEST_HALF)[0])
            raise CodecError(
                f"codec 'fp16f': entry {first:,} of {vector.size:,} is {vector[first]:g}, but the largest "
                f"16-bit float is {LARGEST_HALF:g}; use codec 'none', or a lower learning rate if the run "
                "diverges"
            )
        return vector.astype("<f2").view(np.uint8)

    def _decode(self, packed: Packed, size: int) -> Floats:
        return packed.view("<f2").astype(np.float32)
