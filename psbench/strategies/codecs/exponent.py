"""A codec of 4 bits for every entry: a sign and an exponent."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Floats
from psbench.core import parameter
from psbench.strategies.codecs.base import Packed
from psbench.strategies.codecs.bits import float_bytes, floats_of, pack_numbers, unpack_numbers
from psbench.strategies.codecs.buckets import Bucketed, Buckets

SOURCE = "Douillard et al. 2025 (Streaming DiLoCo), sec. 3.3"
#: the code of the largest magnitude of a bucket
_LARGEST = 7


class E3M0(Bucketed):
    """Send the sign of each entry and 3 bits of exponent: the nearest of s, s/2, ... s/64, or 0.

    Notes
    -----
    s is the largest magnitude of a bucket. What arrives is within a factor of sqrt(2), and 0 for magnitudes
    below s 2^-6.5. Encoding what has arrived changes nothing. With buckets of 256 an entry takes 4.125 bits.
    The paper names the format alone; buckets, rounding and thresholds are of an implementation of others.

    Examples
    --------
    >>> codec, rng = E3M0(), np.random.default_rng(0)
    >>> codec.decode(codec.encode(np.array([4, -1.2, 0.01, 0], dtype=np.float32), rng), 4)
    array([ 4., -1.,  0.,  0.], dtype=float32)
    >>> E3M0().num_bits(256) / 256
    4.125
    """

    name = "e3m0"
    source = SOURCE

    bucket: int = parameter(256, "entries that share a scale; 0: the whole vector", source=SOURCE, ge=0)

    def num_bits(self, size: int) -> int:
        """Return 4 bits an entry, and 32 a scale."""
        return 4 * size + 32 * self.num_scales(size)

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        buckets, magnitudes = Buckets(vector.size, self.bucket), np.abs(vector)
        scales = buckets.maximum(magnitudes)
        shared = buckets.expand(scales).astype(np.float64)
        ratio = np.divide(magnitudes, shared, out=np.zeros(vector.size), where=shared > 0)
        sent = ratio >= 2.0 ** (0.5 - _LARGEST)
        exponents = np.rint(np.log2(ratio, out=np.zeros(vector.size), where=sent)) + _LARGEST
        codes = np.where(sent, np.clip(exponents, 1, _LARGEST), 0).astype(np.uint32)
        codes += 8 * (vector < 0).astype(np.uint32)
        return np.concatenate([float_bytes(scales), pack_numbers(codes, 4)])

    def _decode(self, packed: Packed, size: int) -> Floats:
        header = 4 * self.num_scales(size)
        codes = unpack_numbers(packed[header:], size, 4).astype(np.int64)
        scales = Buckets(size, self.bucket).expand(floats_of(packed[:header]))
        exponents = (codes & 7) - _LARGEST
        magnitudes = np.where(codes & 7, np.ldexp(scales, exponents), 0)
        return np.where(codes & 8, -magnitudes, magnitudes).astype(np.float32)
