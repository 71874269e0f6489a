"""Codecs: vectors of floats as packed bits, and the error feedback of their senders."""

from psbench.codecs.base import Codec, Lossy
from psbench.codecs.codec_state import Channel, ServerCodecState, WorkerCodecState
from psbench.codecs.floats import Half, Plain
from psbench.codecs.quantised import QSGD, TernGrad
from psbench.codecs.signs import OneBit, Sign
from psbench.codecs.sparse import RandomK, TopK
from psbench.codecs.tensors import decode, encode, over_the_wire

__all__ = [
    "QSGD",
    "Channel",
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
