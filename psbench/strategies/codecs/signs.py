"""Codecs of one bit for every entry."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Floats
from psbench.core import parameter
from psbench.strategies.codecs.base import Packed
from psbench.strategies.codecs.bits import float_bytes, floats_of, unpack_planes
from psbench.strategies.codecs.buckets import Bucketed, Buckets


class Sign(Bucketed):
    """Send the sign of every entry, and the mean magnitude.

    Parameters
    ----------
    error_feedback : bool
        Without it SGD need not converge, as the paper shows.

    Notes
    -----
    What arrives is sign(x) ||x||_1/d, and ||x - C(x)||^2 = ||x||^2 - ||x||_1^2/d.
    Our reading: one bit cannot say 0, so an entry of 0 arrives as the scale; the error has the same formula.

    Examples
    --------
    >>> codec, rng = Sign(), np.random.default_rng(0)
    >>> codec.decode(codec.encode(np.array([0.5, -1, 0.25, 0], dtype=np.float32), rng), 4)
    array([ 0.4375, -0.4375,  0.4375,  0.4375], dtype=float32)
    """

    name = "sign"
    source = "Karimireddy et al. 2019 (EF-signSGD), Alg. 1"

    error_feedback: bool = parameter(True, "add the error of one message to the next", source="EF-signSGD 3")

    def num_bits(self, size: int) -> int:
        """Return a bit an entry, and 32 a scale."""
        return size + 32 * self.num_scales(size)

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        buckets = Buckets(vector.size, self.bucket)
        scales = (buckets.total(np.abs(vector)) / buckets.counts).astype(np.float32)
        return np.concatenate([float_bytes(scales), np.packbits(vector < 0)])

    def _decode(self, packed: Packed, size: int) -> Floats:
        header = 4 * self.num_scales(size)
        (negative,) = unpack_planes(packed[header:], size, 1)
        signs = (1 - 2 * negative.view(np.int8)).astype(np.float32)
        return signs * Buckets(size, self.bucket).expand(floats_of(packed[:header]))


class OneBit(Bucketed):
    """Send the sign bit of each entry, and the means of the negative and of the other entries.

    Parameters
    ----------
    bucket : int, entries, >= 0
        The paper has two means for every column of a weight matrix.

    Notes
    -----
    No other two values for the negative entries and the others have a smaller squared error. If there are no
    entries of one kind, its mean is 0.

    Examples
    --------
    >>> codec, rng = OneBit(), np.random.default_rng(0)
    >>> codec.decode(codec.encode(np.array([0.5, -1, 0.25, 0], dtype=np.float32), rng), 4)
    array([ 0.25, -1.  ,  0.25,  0.25], dtype=float32)
    """

    name = "one_bit"
    source = "Seide et al. 2014 (1-bit SGD), sec. 3"

    error_feedback: bool = parameter(True, "add the error of one message to the next", source="1-bit SGD 3")

    def num_bits(self, size: int) -> int:
        """Return a bit an entry, and 64 for the means of each bucket."""
        return size + 64 * self.num_scales(size)

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        buckets = Buckets(vector.size, self.bucket)
        negative = vector < 0
        num_below = buckets.count(negative)
        parts = np.minimum(vector, 0)
        below = buckets.total(parts) / np.maximum(num_below, 1)
        np.subtract(vector, parts, out=parts)  # those that are not negative, exactly
        above = buckets.total(parts) / np.maximum(buckets.counts - num_below, 1)
        means = np.concatenate([above, below]).astype(np.float32)
        return np.concatenate([float_bytes(means), np.packbits(negative)])

    def _decode(self, packed: Packed, size: int) -> Floats:
        header = 8 * self.num_scales(size)
        (negative,) = unpack_planes(packed[header:], size, 1)
        means = floats_of(packed[:header]).reshape(2, -1)
        if means.shape[1] == 1:
            return np.take(means, negative.view(np.uint8))
        above, below = map(Buckets(size, self.bucket).expand, means)
        return np.where(negative, below, above)
