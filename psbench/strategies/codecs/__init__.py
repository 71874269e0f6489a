"""Codecs: vectors of floats as packed bits, and the error feedback of their senders."""

from psbench.strategies.codecs.adaptive import Adaptive as Adaptive
from psbench.strategies.codecs.adaptive import MQGrad as MQGrad
from psbench.strategies.codecs.adaptive import SendShare as SendShare
from psbench.strategies.codecs.base import Codec as Codec
from psbench.strategies.codecs.base import Lossy as Lossy
from psbench.strategies.codecs.chunked import ChunkedTopK as ChunkedTopK
from psbench.strategies.codecs.codec_state import Channel as Channel
from psbench.strategies.codecs.codec_state import ServerCodecState as ServerCodecState
from psbench.strategies.codecs.codec_state import WorkerCodecState as WorkerCodecState
from psbench.strategies.codecs.exponent import E3M0 as E3M0
from psbench.strategies.codecs.floats import Half as Half
from psbench.strategies.codecs.floats import Plain as Plain
from psbench.strategies.codecs.quantised import QSGD as QSGD
from psbench.strategies.codecs.quantised import TernGrad as TernGrad
from psbench.strategies.codecs.signs import OneBit as OneBit
from psbench.strategies.codecs.signs import Sign as Sign
from psbench.strategies.codecs.sparse import RandomK as RandomK
from psbench.strategies.codecs.sparse import TopK as TopK
from psbench.strategies.codecs.tensors import decode as decode
from psbench.strategies.codecs.tensors import encode as encode
from psbench.strategies.codecs.tensors import over_the_wire as over_the_wire
