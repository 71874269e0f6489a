"""Codecs on the wire of whole runs, in virtual time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from draws import kinds

from psbench import strategies
from psbench.core.log import Kind
from psbench.errors import ParameterError
from psbench.runs.execution import run
from psbench.strategies.codecs.base import Lossy
from psbench.testing import toy_experiment

#: every codec with all that it can send: nothing is lost, or next to nothing
FULL = [{"name": "top_k", "ratio": 1.0}, {"name": "random_k", "ratio": 1.0}]
#: parameters that fit a model of 15 entries
SMALL = {
    "chunked_top_k": {"chunk": 5, "kept": 2},
    "qsgd": {"levels": 4},
    "random_k": {"ratio": 0.25},
    "top_k": {"ratio": 0.25},
}
#: every registered codec that loses something and has one size; others: strategies/codecs/test_adaptive.py
LOSSY = [{"name": kind.name} | SMALL.get(kind.name, {}) for kind in kinds("codec") if issubclass(kind, Lossy)]
STRATEGIES = ["bsp", "asp", "ssp", "k_bsp", "k_batch_asp", "local_sgd", "osp", "hermes", "selsync"]
PAIRS = [
    (STRATEGIES[i % len(STRATEGIES)], LOSSY[i % len(LOSSY)]) for i in range(max(len(STRATEGIES), len(LOSSY)))
]


def with_codecs(name, **codecs):
    return getattr(strategies, name)(**codecs)


@pytest.mark.parametrize("codec", FULL, ids=lambda codec: codec["name"])
@pytest.mark.parametrize("name", ["bsp", "asp", "local_sgd"])
def test_a_codec_that_sends_all_is_no_codec(name, codec):
    ours = run(toy_experiment(with_codecs(name, codec=codec, codec_down=codec)))
    theirs = run(toy_experiment(name))
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=1e-4, atol=1e-5)


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "codec"), PAIRS, ids=str)
def test_codecs_and_strategies_learn_together(name, codec):
    """Every strategy and every codec once: what a codec does is independent of who pushes when."""
    experiment = toy_experiment(with_codecs(name, codec=codec, codec_down=codec), stop={"epochs": 8})
    first, again = run(experiment), run(experiment)
    assert first.log.digest() == again.log.digest()
    assert torch.equal(first.parameters, again.parameters)
    losses = [row["train_loss"] for row in first.log.evaluations()]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("codec", LOSSY, ids=lambda codec: codec["name"])
def test_the_bytes_of_a_run_are_those_of_the_codec(codec):
    done = run(toy_experiment(with_codecs("bsp", codec=codec, codec_down=codec), stop={"updates": 4}))
    made = done.experiment.strategy.communication.codec
    size = made.num_bytes(done.meta["num_parameters"])
    assert set(done.log.of_kind(Kind.PUSH)["bytes"]) == {size}
    down = done.log.of_kind(Kind.RELEASE)["bytes"]
    first = size if made.entrywise else done.meta["model_bytes"]
    assert set(down[:3]) == {first}
    assert set(down[3:]) == {size}


@pytest.mark.slow
def test_what_is_lost_is_part_of_what_is_sent_next():
    """Top-1 of 15 entries with and without memory: only the former ever sends the small entries."""
    lossy = {"name": "top_k", "ratio": 1e-9}
    keeps, forgets = (
        run(toy_experiment(with_codecs("bsp", codec=lossy | {"error_feedback": memory}), stop={"epochs": 20}))
        for memory in (True, False)
    )
    exact = run(toy_experiment("bsp", stop={"epochs": 20}))
    far = [float(torch.dist(done.parameters, exact.parameters)) for done in (keeps, forgets)]
    assert far[0] < far[1]


def test_two_servers_write_their_slices_each_by_itself():
    servers = {"name": "parameter_server", "servers": 2}
    done = run(toy_experiment(with_codecs("bsp", codec="sign", placement=servers), stop={"updates": 2}))
    each = done.experiment.strategy.communication.codec.num_bytes
    assert set(done.log.of_kind(Kind.PUSH)["bytes"]) == {each(8) + each(7)}


def test_bandwidth_is_charged_for_those_bits():
    cluster = {"workers": 2, "step_time": "constant", "latency_s": 0.0, "bandwidth_mbit_s": 0.01}
    times = [
        run(toy_experiment(s, cluster=cluster, stop={"updates": 10})).summary()["time_s"]
        for s in ("bsp", with_codecs("bsp", codec="sign", codec_down="sign"))
    ]
    assert times[1] < times[0] / 2


def test_numbers_too_large_for_a_codec_end_the_run_and_say_so():
    diverging = toy_experiment(
        with_codecs("asp", codec_down="fp16"), optimizer={"name": "sgd", "lr": 1e6}, stop={"epochs": 20}
    )
    done = run(diverging)
    assert done.meta["status"] == "diverged"
    assert np.isfinite(done.log.of_kind(Kind.PUSH)["loss"][0])


def test_the_first_model_of_another_composition_travels_whole():
    """Nobody knows what the codec of the one before has left a worker with."""
    down = with_codecs("bsp", codec_down={"name": "top_k", "ratio": 0.1})
    rule = {"name": "after", "fraction": 0.5}
    strategy = {"name": "strategy_switch", "first": "asp", "second": down.spec(), "rule": rule}
    log = run(toy_experiment(strategy, stop={"epochs": 4})).log
    (row,) = np.flatnonzero(log.rows()["kind"] == Kind.HANDOVER)
    rows = log.rows()[row:]
    sent = rows[rows["kind"] == Kind.RELEASE]["bytes"].tolist()
    whole, encoded = 4 * 15, down.communication.codec_down.num_bytes(15)
    assert sent[:3] == [whole] * 3
    assert set(sent[3:]) == {encoded}
    assert encoded < whole


@pytest.mark.parametrize("name", ["all_reduce", "map_reduce"])
def test_bits_that_belong_together_cannot_be_added_up_on_their_way(name):
    with pytest.raises(ParameterError, match=r"sums float vectors in transit|return 32-bit floats"):
        with_codecs(name, codec="sign")
