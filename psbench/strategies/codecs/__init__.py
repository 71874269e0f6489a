"""Codecs: vectors of floats as packed bits, and the error feedback of their senders."""

from psbench.strategies.codecs.base import Codec, Lossy
from psbench.strategies.codecs.chunked import ChunkedTopK
from psbench.strategies.codecs.codec_state import Channel, ServerCodecState, WorkerCodecState
from psbench.strategies.codecs.exponent import E3M0
from psbench.strategies.codecs.floats import Half, Plain
from psbench.strategies.codecs.quantised import QSGD, TernGrad
from psbench.strategies.codecs.signs import OneBit, Sign
from psbench.strategies.codecs.sparse import RandomK, TopK
from psbench.strategies.codecs.tensors import decode, encode, over_the_wire

__all__ = [
    "E3M0",
    "QSGD",
    "Channel",
    "ChunkedTopK",
    "Codec",
    "Half",
    "Lossy",
    "OneBit",
    "Plain",
    "RandomK",
    "ServerCodecState",
    "Sign",
    "TernGrad",
    "TopK",
    "WorkerCodecState",
    "decode",
    "encode",
    "over_the_wire",
]
