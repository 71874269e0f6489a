"""What every codec does: check, write a vector as packed bits, read it again."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from psbench.core import part
from psbench.core.part import parameter
from psbench.errors import CodecError

Floats: TypeAlias = npt.NDArray[np.float32]
Packed: TypeAlias = npt.NDArray[np.uint8]


class Codec(part.Codec):
    """How a vector of floats is written on the wire; a subclass writes `num_bits`, `_encode` and `_decode`.

    A codec remembers nothing: all of its chance comes from the generator that it is given, and the memory
    of error feedback belongs to the sender (`Channel`).

    Attributes
    ----------
    unbiased : bool
        Whether the mean of what arrives is what was sent.

    Shapes
    ------
    vector : float32, (size,), size >= 1      packed : uint8, (num_bytes(size),)
    """

    @property
    def unbiased(self) -> bool:
        """Whether the mean of what arrives, over all draws, is what was sent."""
        return False

    def num_bits(self, size: int) -> int:
        """Return the bits of an encoded vector, without those that fill up the last byte."""
        raise NotImplementedError(f"{type(self).__name__} must define num_bits")

    def shift_rate(self, size: int) -> float:
        """Return the share of a decoded difference by which a receiver moves towards what the sender has.

        Where held <- held + rate Q(x - held) is to come nearer to x, a codec whose error is below ||x||^2 may
        be taken at its word: 1. An unbiased one with E ||Q(x) - x||^2 <= omega ||x||^2 is right on average
        only, and is taken by 1/(1 + omega), after which E ||x - held||^2 is that share smaller.

        Source
        ------
        Mishchenko et al. (2019), "Distributed Learning with Compressed Gradient Differences" (DIANA), where
        alpha <= 1/(1 + omega); Beznosikov et al. (2020), "On Biased Compression for Distributed Learning".
        """
        return 1.0

    def num_bytes(self, size: int) -> int:
        """Return the length of an encoded vector of `size` entries; it does not depend on their values."""
        return -(-self.num_bits(size) // 8)

    def encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        """Return what travels; the vector is not changed.

        Raises
        ------
        CodecError
            If the vector is empty or no vector of 32-bit floats, if an entry is no finite number, or if what
            would have to be sent is too large for the numbers of the codec.
        """
        if vector.dtype != np.float32 or vector.ndim != 1 or not vector.size:
            raise CodecError(
                f"codec {self.name!r}: expected a vector of 32-bit floats with at least one entry, "
                f"got shape {vector.shape} of {vector.dtype}"
            )
        self._refuse_none_numbers(vector)
        return self._encode(np.ascontiguousarray(vector), rng)

    def decode(self, packed: Packed, size: int) -> Floats:
        """Return what arrives, as a new vector.

        Raises
        ------
        CodecError
            If `packed` is not what `encode` returns for a vector of `size` entries.
        """
        wanted = self.num_bytes(size)
        if packed.dtype != np.uint8 or packed.shape != (wanted,):
            raise CodecError(
                f"codec {self.name!r}: {size:,} entries take {wanted:,} bytes, "
                f"got shape {packed.shape} of {packed.dtype}"
            )
        return self._decode(packed, size)

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        raise NotImplementedError(f"{type(self).__name__} must define _encode")

    def _decode(self, packed: Packed, size: int) -> Floats:
        raise NotImplementedError(f"{type(self).__name__} must define _decode")

    def _refuse_none_numbers(self, vector: Floats) -> None:
        # both are nan if an entry is: two passes, and no vector of truth values
        if math.isfinite(vector.max()) and math.isfinite(vector.min()):
            return
        first = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise CodecError(
            f"codec {self.name!r}: entry {first:,} of {vector.size:,} is {vector[first]}; only finite "
            "numbers can be sent: the run has diverged (try a lower learning rate)"
        )


class Lossy(Codec):
    """A codec after which something is missing, which a sender may remember.

    Parameters
    ----------
    error_feedback : bool
        Whether a sender adds what was lost to what it sends next (see `Channel`).
    """

    error_feedback: bool = parameter(False, "add what was lost to what is sent next", source="protocols 9")

    @property
    def has_memory(self) -> bool:
        """Whether the sender adds what was lost to what it sends next."""
        return self.error_feedback
