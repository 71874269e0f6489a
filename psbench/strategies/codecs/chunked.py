"""SparseLoCo's codec: the largest entries of every chunk, in a few bits each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from psbench.arrays import Doubles, Floats, Integers
from psbench.core import parameter
from psbench.errors import CodecError, ParameterError
from psbench.strategies.codecs.base import Lossy, Packed
from psbench.strategies.codecs.bits import float_bytes, floats_of, pack_numbers, unpack_numbers
from psbench.strategies.codecs.sparse import index_bits

SOURCE = "Sarfi et al. 2025 (SparseLoCo)"
#: of a value, in bits, that is not quantised
_FLOAT = 32


class ChunkedTopK(Lossy):
    """Send the entries with the largest magnitudes in every chunk, each quantised to a few bits.

    Parameters
    ----------
    value_bits : int, 1 to 8, or 32
        With n = 2^b bins of width s = 6 sigma/n, a value v falls into bin round((v - mean)/s + n/2), or the
        first or last, and arrives as the mean of its bin; sigma is the sample deviation, by n - 1. 32 sends
        values as they are.

    Notes
    -----
    Reduces to: `top_k` with one chunk of the whole vector and 32 bits; `none` if all are kept, too.
    Our reading: chunks are of consecutive entries of the vector, where the authors take tiles of 64 x 64 of
    a matrix; bins are over all values of a message, where theirs are over those of a tensor; any number is
    kept, where theirs is even. Of equal magnitudes any may be sent.

    Source
    ------
    Sarfi et al. (2025), "Communication Efficient LLM Pre-training with SparseLoCo", Alg. 1; bins and indices
    of 12 bits are of the authors' code, tplr-ai/templar c2397ac, src/tplr/compress.py, lines 583-621.

    Examples
    --------
    >>> codec, rng = ChunkedTopK(chunk=2, kept=1, value_bits=32), np.random.default_rng(0)
    >>> codec.decode(codec.encode(np.array([1, -3, 2, 0.5, 7], dtype=np.float32), rng), 5)
    array([ 0., -3.,  2.,  0.,  7.], dtype=float32)
    >>> ChunkedTopK().num_bits(4096) == 64 * (12 + 2) + 4 * 32
    True
    """

    name = "chunked_top_k"
    source = SOURCE

    chunk: int = parameter(4096, "entries in a chunk", unit="entries", source=SOURCE, ge=1, le=1 << 24)
    kept: int = parameter(64, "entries to send from each chunk", unit="entries", source=SOURCE, ge=1)
    value_bits: int = parameter(
        2, "bits of a value; 32: not quantised", unit="bits", source=SOURCE, ge=1, le=32
    )
    error_feedback: bool = parameter(True, "add the error of one message to the next", source=SOURCE)
    residual_decay: float = parameter(
        0.95, "share of the error that the next message adds", source=SOURCE, ge=0, le=1
    )

    def num_kept(self, size: int) -> int:
        """Return the number of sent entries of a vector."""
        full, rest = divmod(size, self.chunk)
        return full * min(self.kept, self.chunk) + min(self.kept, rest)

    @model_validator(mode="after")
    def _known_width(self) -> ChunkedTopK:
        if 8 < self.value_bits < _FLOAT:
            raise ParameterError(
                f"value_bits: {self.value_bits}; use 1 to 8, or {_FLOAT} for values as they are"
            )
        return self

    @property
    def _bins(self) -> int:
        """The values that a message may have; 0 for floats."""
        return 0 if self.value_bits == _FLOAT else 1 << self.value_bits

    def num_bits(self, size: int) -> int:
        """Return the bits of each entry that is sent, with its index, and 32 for the value of each bin."""
        return 32 * self._bins + self.num_kept(size) * (self.value_bits + index_bits(self.chunk))

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        where, width = self._largest(vector), index_bits(self.chunk)
        values, places = vector[where], (where % self.chunk).astype(np.uint32)
        if not self._bins:
            return np.concatenate([float_bytes(values), pack_numbers(places, width)])
        means, codes = self._binned(values.astype(np.float64))
        numbers = ((codes << width) | places).astype(np.uint32)
        return np.concatenate([float_bytes(means), pack_numbers(numbers, self.value_bits + width)])

    def _binned(self, values: Doubles) -> tuple[Floats, Integers]:
        """Return the mean of each bin, and the bin of each value."""
        bins, centred = self._bins, values - values.mean()
        width = 6 / bins * float(np.linalg.norm(centred)) / max(len(values) - 1, 1) ** 0.5
        codes = np.rint(centred / (width or 1.0) + bins / 2).astype(np.int64).clip(0, bins - 1)
        counts = np.maximum(np.bincount(codes, minlength=bins), 1)
        return (np.bincount(codes, values, minlength=bins) / counts).astype(np.float32), codes

    def _decode(self, packed: Packed, size: int) -> Floats:
        count, width = self.num_kept(size), index_bits(self.chunk)
        start = 4 * (self._bins or count)
        values = floats_of(packed[:start])
        if self._bins:
            numbers = unpack_numbers(packed[start:], count, self.value_bits + width)
            values, places = values[numbers >> width], numbers & np.uint32((1 << width) - 1)
        else:
            places = unpack_numbers(packed[start:], count, width)
        vector = np.zeros(size, dtype=np.float32)
        where = self._begins(size) + places
        if where.max() >= size:
            raise CodecError(
                f"codec {self.name!r}: a message has index {where.max():,}, but the vector has {size:,} "
                "entries"
            )
        vector[where] = values
        return vector

    def _begins(self, size: int) -> npt.NDArray[np.intp]:
        count = self.num_kept(size)
        return np.arange(count) // min(self.kept, self.chunk) * self.chunk

    def _largest(self, vector: Floats) -> npt.NDArray[np.intp]:
        full = vector.size // self.chunk * self.chunk
        found = []
        for rows in (vector[:full].reshape(-1, self.chunk), vector[full:].reshape(1, -1)):
            kept = min(self.kept, rows.shape[1])
            if rows.size:
                places = np.argpartition(-np.abs(rows), kept - 1, axis=1)[:, :kept]
                places.sort(axis=1)
                found.append((places + np.arange(len(rows))[:, None] * rows.shape[1]).reshape(-1))
        if len(found) > 1 or not full:
            found[-1] += full
        return np.concatenate(found)
