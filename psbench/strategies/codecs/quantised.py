"""Stochastic quantisation: every entry is rounded at random to one of few values."""

from __future__ import annotations

import math

import numpy as np

from psbench.arrays import Floats
from psbench.core import parameter
from psbench.errors import CodecError
from psbench.strategies.codecs.base import Packed
from psbench.strategies.codecs.bits import (
    float_bytes,
    floats_of,
    numbers_of,
    pack_planes,
    planes_of,
    unpack_planes,
)
from psbench.strategies.codecs.buckets import Bucketed, Buckets


class TernGrad(Bucketed):
    """Send s, 0 or -s for every entry, with s the largest magnitude.

    Parameters
    ----------
    clip : float, standard deviations, >= 0
        Entries beyond are clipped first, so that one large entry does not drown all others in noise. 0: no
        clipping; the codec is unbiased.
    bucket : int, entries, >= 0
        The paper has a scale for every layer; buckets approximate that.
    error_feedback : bool
        Not in the paper. The squared error is up to s ||x||_1, far above ||x||^2, so the residual may grow.

    Notes
    -----
    An entry x_i is sent as s sign(x_i) with probability |x_i|/s, to within the 2^-24 of a 32-bit draw.
    Our reading: the standard deviation is that about 0, the mean of the paper's model of gradients, so that
    equal entries, or a bucket of one, are not clipped to 0.

    With s the scale, E ||Q(x)||^2 = s ||x||_1, and that is at most (1 + sqrt(d))/2 ||x||^2, reached by
    (1, t, ..., t) with t = 1/(1 + sqrt(d)). With a clip of c it is at most c ||x||^2, because then
    s <= c ||x||/sqrt(d). Both are our derivation, and the smaller is 1 + omega of `shift_rate`. Where
    that is c and few entries hold nearly all of the norm, one answer moves each by one standard deviation.

    Examples
    --------
    >>> TernGrad().num_bits(1000)
    2032
    """

    name = "terngrad"
    source = "Wen et al. 2017 (TernGrad), eqs. 1-3, sec. 3.3"

    clip: float = parameter(
        2.5,
        "magnitude at which entries are clipped; 0: no clipping",
        unit="sigma",
        source="TernGrad 3.3",
        ge=0,
    )

    @property
    def unbiased(self) -> bool:  # pyrefly: ignore[bad-override]
        """True without clipping."""
        return not self.clip

    def shift_rate(self, size: int) -> float:
        """Return 1/(1 + omega) for the d entries of a bucket: omega + 1 = (1 + sqrt(d))/2, or `clip`."""
        bound = (1 + math.sqrt(self.num_sharing(size))) / 2
        return 1 / (min(bound, max(1.0, self.clip)) if self.clip else bound)

    def num_bits(self, size: int) -> int:
        """Return 2 bits an entry, and 32 a scale."""
        return 2 * size + 32 * self.num_scales(size)

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        buckets = Buckets(vector.size, self.bucket)
        magnitudes = np.abs(vector)
        if self.clip:
            limits = self.clip * buckets.norm(vector) / np.sqrt(buckets.counts)
            # a limit beyond the largest float clips nothing
            limits = np.minimum(limits, np.finfo(np.float32).max)
            np.minimum(magnitudes, buckets.expand(limits.astype(np.float32)), out=magnitudes)
        scales = buckets.maximum(magnitudes)
        draws = rng.random(vector.size, dtype=np.float32)
        draws *= buckets.expand(scales)
        sent = draws < magnitudes  # never where all are 0
        return np.concatenate([float_bytes(scales), pack_planes([sent, sent & (vector < 0)])])

    def _decode(self, packed: Packed, size: int) -> Floats:
        header = 4 * self.num_scales(size)
        sent, negative = unpack_planes(packed[header:], size, 2)
        signs = (sent.view(np.int8) - 2 * negative.view(np.int8)).astype(np.float32)
        return signs * Buckets(size, self.bucket).expand(floats_of(packed[:header]))


class QSGD(Bucketed):
    """Round every entry at random to one of the levels between 0 and the norm.

    Parameters
    ----------
    levels : int, >= 1
        s: levels above 0. An entry takes the bits of its level and one for the sign, so 7 levels cost as
        much as 4.
    bucket : int, entries, >= 0
        The error grows with the square root of the entries that share a norm. 0: one norm for all:
        with 100,000 entries and few levels, what arrives is almost only noise.
    error_feedback : bool
        Not in the paper. Where the bound of the error is above ||x||^2 the residual may grow.

    Notes
    -----
    With r = |x_i| s/||x||_2, the level is floor(r) + 1 with probability r - floor(r), else floor(r).
    Unbiased, and E ||Q(x) - x||^2 <= min(d/s^2, sqrt(d)/s) ||x||^2 for a bucket of d entries.
    Our reading: levels are written with a fixed number of bits. The paper's Elias codes are shorter where
    most levels are 0 (at most 2.8 d + 32 bits for s = sqrt(d)), but their length is not known beforehand.

    Examples
    --------
    >>> QSGD(levels=4, bucket=0).num_bits(1000)
    4032
    """

    name = "qsgd"
    source = "Alistarh et al. 2017 (QSGD), sec. 3.1, Lemma 3.1; buckets: sec. 4"
    unbiased = True

    levels: int = parameter(7, "number of levels above 0 for a magnitude", source="QSGD 5", ge=1, le=65535)
    bucket: int = parameter(
        512, "entries that share a norm; 0: the whole vector", unit="entries", source="QSGD 4", ge=0
    )

    def shift_rate(self, size: int) -> float:
        """Return 1/(1 + omega), with omega = min(d/s^2, sqrt(d)/s) for the d entries of a bucket."""
        d, s = self.num_sharing(size), self.levels
        return 1 / (1 + min(d / s**2, math.sqrt(d) / s))

    @property
    def bits_an_entry(self) -> int:
        """The sign's, and ceil(log2(s + 1)) for the level."""
        return 1 + self.levels.bit_length()

    def num_bits(self, size: int) -> int:
        """Return the bits of signs and levels, and 32 a norm."""
        return size * self.bits_an_entry + 32 * self.num_scales(size)

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        buckets = Buckets(vector.size, self.bucket)
        norms = self._norms(vector, buckets)
        reached = np.abs(vector)
        reached /= buckets.expand(np.where(norms, norms, np.float32(1)))
        reached *= np.float32(self.levels)
        reached += rng.random(vector.size, dtype=np.float32)
        # rounding may lift an entry as large as the norm above the last level
        levels = np.minimum(reached.astype(np.uint8 if self.levels < 255 else np.uint32), self.levels)
        return np.concatenate(
            [float_bytes(norms), pack_planes([vector < 0, *planes_of(levels, self.bits_an_entry - 1)])]
        )

    def _decode(self, packed: Packed, size: int) -> Floats:
        header = 4 * self.num_scales(size)
        negative, *bits = unpack_planes(packed[header:], size, self.bits_an_entry)
        vector = numbers_of(bits).astype(np.float32)
        vector *= 1 - 2 * negative.view(np.int8)
        vector *= Buckets(size, self.bucket).expand(floats_of(packed[:header]) / np.float32(self.levels))
        return vector

    def _norms(self, vector: Floats, buckets: Buckets) -> Floats:
        norms = buckets.norm(vector)
        if norms.max() > np.finfo(np.float32).max:
            raise CodecError(
                "codec 'qsgd': a norm is too large for a 32-bit float: the run has diverged "
                "(try a lower learning rate)"
            )
        rounded: Floats = norms.astype(np.float32)
        return rounded
