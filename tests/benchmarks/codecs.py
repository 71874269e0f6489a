"""Time to encode and decode a vector, the sender's memory included, beside what it saves on the wire."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from psbench.seeds import Streams
from psbench.strategies.codecs import QSGD, Channel, Codec, Half, OneBit, RandomK, Sign, TernGrad, TopK
from psbench.strategies.codecs.sparse import Sparse
from tests.benchmarks.measure import Row, Rows, in_turns

#: the CNN for digits, a small residual network, ResNet-18
SIZES = (110_000, 270_000, 11_000_000)
#: bits a second; on the middle one a codec must pay, on a faster one sending the floats may be quicker
NETWORKS = (1e8, 1e9, 1e10)
CODECS: tuple[Codec, ...] = (
    *(Half(), TopK(ratio=0.01), TopK(ratio=0.1), RandomK(ratio=0.01)),
    *(TernGrad(), QSGD(), Sign(), OneBit()),
)


def _seconds(codec: Codec, vector: np.ndarray) -> list[float]:
    """Return the CPU seconds of a sender, its memory included, and of a receiver: one thread each."""
    channel = Channel(codec, vector.size, Streams(0))
    packed = channel.send(vector)
    return in_turns([lambda: _timed(channel.send, vector), lambda: _timed(channel.receive, packed)], 5)


def _timed(do: Callable[[np.ndarray], np.ndarray], array: np.ndarray) -> float:
    began = time.thread_time()
    do(array)
    return time.thread_time() - began


def _row(codec: Codec, size: int) -> Row:
    vector = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    sending, receiving = _seconds(codec, vector)
    num_bytes = codec.num_bytes(size)
    saved = [8 * (4 * size - num_bytes) / bandwidth for bandwidth in NETWORKS]
    ratio = f" {codec.ratio}" if isinstance(codec, Sparse) else ""
    return Row(
        f"{codec.name}{ratio}, {size:,} entries in {num_bytes:,} bytes: saved at 1 Gbit/s / spent",
        f"{1e3 * sending:.2f} + {1e3 * receiving:.2f} ms",
        " / ".join(f"{1e3 * seconds:,.1f}" for seconds in saved) + " ms at 100 Mbit/s, 1, 10 Gbit/s",
        saved[1] / (sending + receiving),
        1.0,
        10.0,
    )


def run() -> Rows:
    """Measure every codec at every size, one way: a worker's push."""
    return [_row(codec, size) for size in SIZES for codec in CODECS]
