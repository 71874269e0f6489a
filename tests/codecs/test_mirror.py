"""Mirrors: both ends stay equal, and what is left out is caught up with."""

import math

import numpy as np
import pytest

from psbench.codecs import QSGD, Mirror, OneBit, RandomK, Sign, TernGrad, TopK
from psbench.errors import CodecError
from psbench.seeds import Streams

CODECS = [
    *(TopK(ratio=0.2), TopK(ratio=0.2, error_feedback=False), RandomK(ratio=0.2)),
    *(Sign(), OneBit(), QSGD(levels=16)),
]


def ends(codec, start):
    return [Mirror(codec, start, Streams(0), 1) for _ in range(2)]


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_both_ends_are_equal_and_come_to_a_model_that_stays(codec):
    rng = np.random.default_rng(0)
    start, model = rng.standard_normal((2, 20), dtype=np.float32)
    server, worker = ends(codec, start)
    for step in range(120):
        moving = model + np.float32(max(0, 20 - step))
        arrived = worker.receive(server.send(moving))
        assert np.array_equal(arrived, server.mirror)
    assert np.abs(arrived - model).max() < 1e-3


def test_what_is_left_out_is_sent_next():
    server, worker = ends(TopK(ratio=0.25), np.zeros(4, np.float32))
    models = ([1, -3, 2, 0.5], [1, -3, 2, 0.5], [1, -3, 9, 0.5], [1, -3, 9, 0.5])
    arrived = [worker.receive(server.send(np.array(model, np.float32))).tolist() for model in models]
    assert arrived == [[0, -3, 0, 0], [0, -3, 2, 0], [0, -3, 9, 0], [1, -3, 9, 0]]


def test_a_mirror_goes_on_from_its_state():
    models = np.random.default_rng(0).standard_normal((6, 50), dtype=np.float32)
    first, second = ends(TernGrad(), np.zeros(50, np.float32))
    for model in models[:3]:
        first.send(model)
    state = first.state_dict()
    ahead = [first.send(model) for model in models[3:]]
    second.load_state_dict(state)
    assert np.array_equal([second.send(model) for model in models[3:]], ahead)
    assert not np.array_equal(ahead[0], ahead[1])
    with pytest.raises(CodecError, match=r"\(50,\) for vectors of 4"):
        ends(TernGrad(), np.zeros(4, np.float32))[0].load_state_dict(state)


def test_nothing_changes_by_a_model_that_cannot_be_sent():
    server, _ = ends(TopK(ratio=0.5), np.full(2, -3e38, np.float32))
    for bad in ([math.nan, 0], [math.inf, 0], [3e38, 0]):
        with pytest.raises(CodecError, match="finite"):
            server.send(np.array(bad, np.float32))
    with pytest.raises(CodecError, match="mirror is of 2 entries"):
        server.send(np.zeros(3, np.float32))
    assert server.num_sent == 0
    assert server.mirror.tolist() == [np.float32(-3e38)] * 2


def test_the_start_is_copied():
    start = np.zeros(2, np.float32)
    server, _ = ends(TopK(ratio=1), start)
    server.send(np.ones(2, np.float32))
    assert not start.any()
