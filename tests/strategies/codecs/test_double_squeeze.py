"""DoubleSqueeze: codecs with memory both ways."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from psbench import strategies
from psbench.core.log import Kind
from psbench.core.strategy import Strategy
from psbench.experiment import Experiment
from psbench.runs.execution import run
from psbench.seeds import Streams
from psbench.strategies.codecs import OneBit, ServerCodecState, TopK, WorkerCodecState
from psbench.testing import toy_experiment


def test_without_a_codec_it_is_bsp_bit_for_bit():
    exact = run(toy_experiment(strategies.double_squeeze(codec="none", codec_down="none")))
    bsp = run(toy_experiment("bsp"))
    assert exact.log.digest() == bsp.log.digest()
    assert torch.equal(exact.parameters, bsp.parameters)


def test_with_one_bit_it_is_not_bsp():
    squeezed, bsp = run(toy_experiment("double_squeeze")), run(toy_experiment("bsp"))
    assert not torch.equal(squeezed.parameters, bsp.parameters)


def test_both_codecs_are_one_bit_with_memory_wherever_defaults_are_read():
    entry = strategies.double_squeeze
    made = entry()
    shown = inspect.signature(entry).parameters
    for name in ("codec", "codec_down"):
        assert getattr(made.communication, name) == OneBit(bucket=64, error_feedback=True)
        assert shown[name].default == entry.parameters[name].get_default(call_default_factory=True)
        assert shown[name].default == OneBit(bucket=64, error_feedback=True)
    assert strategies.bsp().communication.codec.name == "none"


@pytest.mark.parametrize("codec", [OneBit(), TopK(ratio=0.3, error_feedback=True)], ids=lambda c: c.name)
def test_what_workers_hold_goes_the_way_of_the_paper_s_algorithm(codec):
    """Alg. 1 by hand: v = mean of what arrives + E, w <- w - lr Q(v), E <- v - Q(v)."""
    workers, size, lr = 3, 20, 0.5
    rng = np.random.default_rng(0)
    composition: Strategy = strategies.double_squeeze(codec=codec, codec_down=codec)
    streams = Streams(0)
    server = ServerCodecState(composition, size, streams, 0)
    ends = [WorkerCodecState(composition, size, streams, worker, 0) for worker in range(workers)]
    model = rng.normal(size=size).astype(np.float32)

    w = model.astype(np.float64)
    server_memory, memories = np.zeros(size), np.zeros((workers, size))

    def q(vector):
        # its own chance would be needed for a codec that draws; these two do not
        packed = codec.encode(vector.astype(np.float32), np.random.default_rng(0))
        return codec.decode(packed, size).astype(np.float64)

    for version in range(30):
        held = [
            end.decode_model(server.encode_model(i, version, version, model)) for i, end in enumerate(ends)
        ]
        for own in held:
            np.testing.assert_allclose(own, w, rtol=1e-3, atol=1e-4)
        gradients = rng.normal(size=(workers, size)).astype(np.float32)
        arrived = [
            server.decode_push(i, version, end.encode_push(g))
            for i, (end, g) in enumerate(zip(ends, gradients, strict=True))
        ]
        model = model - lr * np.mean(arrived, axis=0, dtype=np.float32)

        wanted = memories + gradients
        sent = np.array([q(row) for row in wanted])
        memories = wanted - sent
        v = sent.mean(axis=0) + server_memory
        server_memory = v - q(v)
        w = w - lr * q(v)


@pytest.mark.slow
def test_it_learns_digits_with_a_fifteenth_of_the_bytes():
    spec = Experiment(strategy="bsp", cluster={"workers": 4}, stop={"epochs": 10})
    squeezed, exact = run(spec.but(strategy="double_squeeze")), run(spec)
    assert squeezed.summary()["final"]["val_accuracy"] > 0.9
    up = [int(done.log.of_kind(Kind.PUSH)["bytes"].sum()) for done in (squeezed, exact)]
    assert up[1] / up[0] > 15
    assert squeezed.summary()["bytes"]["down"] < exact.summary()["bytes"]["down"] / 12
