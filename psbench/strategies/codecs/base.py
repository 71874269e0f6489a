"""Base classes of codecs: check a vector, encode it as packed bits, decode it again."""

from __future__ import annotations

import math
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from psbench.arrays import Floats
from psbench.core import parameter, parts
from psbench.errors import CodecError

Packed: TypeAlias = npt.NDArray[np.uint8]


class Codec(parts.CodecPart):
    """Encoding of a vector of floats; a subclass defines `num_bits`, `_encode` and `_decode`.

    A codec has no state: it draws random numbers from the generator that it is given, and the residual of
    error feedback belongs to the sender (`Channel`).

    Shapes
    ------
    vector : float32, (size,), size >= 1      packed : uint8, (num_bytes(size),)
    """

    #: whether the expected decoded vector, over all draws, is the encoded one
    unbiased: ClassVar[bool] = False

    def num_bits(self, size: int) -> int:
        """Return the bits of an encoded vector, without the padding of the last byte."""
        raise NotImplementedError(f"{type(self).__name__} must define num_bits")

    def num_bytes(self, size: int) -> int:
        """Return the length of an encoded vector of `size` entries; it does not depend on their values."""
        return -(-self.num_bits(size) // 8)

    def takes(self, num_bytes: int, size: int) -> bool:
        """Return whether an encoded vector of `size` entries may have that length."""
        return num_bytes == self.num_bytes(size)

    def encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        """Return the packed bits of a vector, which is not modified.

        Raises
        ------
        CodecError
            If the vector is empty or not of 32-bit floats, if an entry is NaN or infinite, or if an entry is
            out of the codec's range.
        """
        if vector.dtype != np.float32 or vector.ndim != 1 or not vector.size:
            raise CodecError(
                f"codec {self.name!r}: expected a vector of 32-bit floats with at least one entry, "
                f"got shape {vector.shape} of {vector.dtype}"
            )
        self._check_finite(vector)
        return self._encode(np.ascontiguousarray(vector), rng)

    def decode(self, packed: Packed, size: int) -> Floats:
        """Return the vector of packed bits, as a new array.

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
        return self._decode(packed, size) + np.float32(0.0)  # -0.0 is the mark of what has no gradient

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        raise NotImplementedError(f"{type(self).__name__} must define _encode")

    def _decode(self, packed: Packed, size: int) -> Floats:
        raise NotImplementedError(f"{type(self).__name__} must define _decode")

    def _check_finite(self, vector: Floats) -> None:
        # both are NaN if an entry is: two passes, and no temporary array
        if math.isfinite(vector.max()) and math.isfinite(vector.min()):
            return
        first = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise CodecError(
            f"codec {self.name!r}: entry {first:,} of {vector.size:,} is {vector[first]}; only finite "
            "numbers can be encoded: the run has diverged (try a lower learning rate)"
        )


class Lossy(Codec):
    """A lossy codec; the sender may keep the loss as a residual.

    The base class of a codec with a scale for every few entries is `buckets.Bucketed`.
    """

    error_feedback: bool = parameter(False, "add the error of one message to the next", source="our reading")
    residual_decay: float = parameter(
        1.0,
        "share of the error that the next message adds",
        source="our reading",
        ge=0,
        le=1,
    )

    @property
    def memory(self) -> float:  # pyrefly: ignore[bad-override]
        """The share of a residual that the next message adds."""
        return self.residual_decay

    @property
    def has_memory(self) -> bool:  # pyrefly: ignore[bad-override]
        """Return True if the sender adds a message's loss to the next message."""
        return self.error_feedback
