"""The way down: what a worker holds comes nearer to the model, also with codecs right on average only."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psbench import strategies
from psbench.runs.execution import run
from psbench.seeds import Streams
from psbench.strategies.codecs import (
    QSGD,
    OneBit,
    RandomK,
    ServerCodecState,
    Sign,
    TernGrad,
    TopK,
    WorkerCodecState,
)
from psbench.testing import toy_experiment

#: codecs with E ||Q(x) - x||^2 <= omega ||x||^2, and 1 + omega of vectors of 1000 entries
ON_AVERAGE = {
    "qsgd, few levels": (QSGD(levels=1, bucket=0), 1 + math.sqrt(1000)),
    "qsgd, more levels": (QSGD(levels=7, bucket=64), 1 + 8 / 7),
    "qsgd, many levels": (QSGD(levels=40, bucket=0), 1 + 1000 / 1600),
    "random_k": (RandomK(ratio=0.05, error_feedback=False), 20.0),
    "terngrad, not clipped": (TernGrad(clip=0), (1 + math.sqrt(1000)) / 2),
    "terngrad, in buckets": (TernGrad(clip=0, bucket=100), 5.5),
    "terngrad": (TernGrad(), 2.5),
    "terngrad, small": (TernGrad(clip=4, bucket=9), 2.0),
}
SIZE, DRAWS = 1000, 400


def square(vector):
    return float(np.square(vector, dtype=np.float64).sum())


@pytest.mark.parametrize(("codec", "bound"), ON_AVERAGE.values(), ids=list(ON_AVERAGE))
def test_the_rate_follows_from_the_bound_of_the_error(codec, bound):
    assert codec.shift_rate(SIZE) == pytest.approx(1 / bound)
    assert codec.shift_rate(1) == (
        1.0 if codec.name != "qsgd" else pytest.approx(1 / (1 + 1 / codec.levels**2))
    )


@pytest.mark.parametrize(
    "codec", [TopK(), RandomK(), Sign(), OneBit(), TernGrad(clip=0.5)], ids=lambda c: c.name
)
def test_what_never_overshoots_is_taken_at_its_word(codec):
    assert codec.shift_rate(SIZE) == 1


@pytest.mark.parametrize(("codec", "bound"), ON_AVERAGE.values(), ids=list(ON_AVERAGE))
def test_one_answer_contracts_by_the_rate(codec, bound):
    """E ||x - rate Q(x)||^2 <= (1 - rate) ||x||^2, within four standard errors of the mean of many draws."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(SIZE, dtype=np.float32)
    rate = codec.shift_rate(SIZE)
    shares = np.array(
        [square(x - rate * codec.decode(codec.encode(x, rng), SIZE)) / square(x) for _ in range(DRAWS)]
    )
    clipped = 1.05 if codec.name == "terngrad" and codec.clip else 1.0  # what is cut off stays where it is
    assert shares.mean() - 4 * shares.std() / math.sqrt(DRAWS) <= (1 - rate) * clipped
    if rate < 0.4:  # taken at its word it would not contract
        at_its_word = [square(x - codec.decode(codec.encode(x, rng), SIZE)) / square(x) for _ in range(50)]
        assert np.mean(at_its_word) > 1


def test_the_bound_of_terngrad_is_reached():
    """By (1, t, ..., t): its rate could not be larger."""
    x = np.full(SIZE, 1 / (1 + math.sqrt(SIZE)), dtype=np.float32)
    x[0] = 1
    assert np.abs(x).max() * np.abs(x).sum() / square(x) == pytest.approx(
        ON_AVERAGE["terngrad, not clipped"][1]
    )


@pytest.mark.by_day(8)
@pytest.mark.slow
@pytest.mark.parametrize("codec", [codec for codec, _ in ON_AVERAGE.values()], ids=list(ON_AVERAGE))
@pytest.mark.parametrize("outlier", [0.0, 30.0, 1e4])
def test_what_a_worker_holds_comes_to_the_model(codec, outlier):
    """A model that stands still, one entry of which may outweigh all others."""
    composition = strategies.bsp(codec_down=codec)
    server, worker = (end(composition, SIZE, Streams(0), *keys) for end, keys in _ENDS)
    model = np.zeros(SIZE, dtype=np.float32)
    worker.decode_model(server.encode_model(0, 0, 0, model))
    model = np.random.default_rng(1).standard_normal(SIZE, dtype=np.float32)
    model[0] += outlier
    far = [
        square(model - worker.decode_model(server.encode_model(0, v, v, model))) / square(model)
        for v in range(1, 301)
    ]
    assert max(far) < 1.1
    assert far[-1] < 0.01


_ENDS = ((ServerCodecState, (0,)), (WorkerCodecState, (0, 0)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "codec",
    [
        {"name": "qsgd", "levels": 1, "bucket": 0},
        {"name": "random_k", "ratio": 0.1, "error_feedback": False},
        {"name": "terngrad", "clip": 0},
    ],
    ids=lambda codec: codec["name"],
)
def test_a_run_that_used_to_diverge(codec, monkeypatch):
    experiment = toy_experiment(
        strategies.bsp(codec_down=codec), model={"name": "mlp", "hidden": [32]}, stop={"epochs": 8}
    )

    def losses():
        return [row["train_loss"] for row in run(experiment).log.evaluations()]

    now = losses()
    assert now[-1] < 0.9 * now[0]
    monkeypatch.setattr(
        type(experiment.strategy.communication.codec_down), "shift_rate", lambda self, size: 1.0
    )
    assert losses()[-1] > now[-1]
