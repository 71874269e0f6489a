"""Channels: nothing is lost for good, the published examples, and states that go on as if never stopped."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from psbench.errors import CodecError
from psbench.seeds import Streams
from psbench.strategies.codecs import (
    QSGD,
    Channel,
    Codec,
    Half,
    OneBit,
    Plain,
    RandomK,
    Sign,
    TernGrad,
    TopK,
)

#: codecs that send entries as they are, or rounded to fewer digits: what is missing is a float too
EXACT = [TopK(ratio=0.2), TopK(ratio=1), RandomK(ratio=0.2), Half(error_feedback=True)]
ROUNDED = [
    *(Sign(), Sign(bucket=3), OneBit(), OneBit(bucket=4)),
    *(TernGrad(error_feedback=True), QSGD(error_feedback=True), QSGD(levels=1, error_feedback=True)),
]


def channel(codec: Codec, size: int, *keys: int) -> Channel:
    return Channel(codec, size, Streams(0), *keys)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


shapes = st.tuples(st.integers(1, 6), st.integers(1, 12))
steps = arrays(np.float32, shapes, elements=st.floats(-50, 50, width=32))


# ---------------------------------------------------------------- conservation


@pytest.mark.slow
@pytest.mark.parametrize("codec", EXACT, ids=repr)
@given(inputs=steps)
def test_what_is_sent_and_what_is_remembered_are_all_there_was(codec, inputs):
    sender = channel(codec, inputs.shape[1])
    for vector in inputs:
        wanted = sender.residual + vector
        sent = sender.receive(sender.send(vector))
        assert np.array_equal(sent + sender.residual, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("codec", EXACT[:3], ids=repr)
@given(inputs=steps.map(lambda inputs: np.round(inputs * 8) / 8))
def test_the_sums_agree_exactly_at_each_step(codec, inputs):
    sender = channel(codec, inputs.shape[1])
    given_so_far, sent_so_far = 0.0, 0.0
    for vector in inputs:
        given_so_far += vector.astype(np.float64)
        sent_so_far += sender.receive(sender.send(vector)).astype(np.float64)
        assert np.array_equal(sent_so_far + sender.residual, given_so_far)


@pytest.mark.slow
@pytest.mark.parametrize("codec", EXACT + ROUNDED, ids=repr)
@given(inputs=steps)
def test_conservation_to_within_one_rounding(codec, inputs):
    sender = channel(codec, inputs.shape[1])
    for vector in inputs:
        wanted = (sender.residual + vector).astype(np.float64)
        missing = wanted - sender.receive(sender.send(vector))
        assert (np.abs(sender.residual - missing) <= 2.0**-24 * np.abs(missing)).all()


# ---------------------------------------------------------------- the published forms


def test_top_one_by_hand():
    sender = channel(TopK(ratio=0.25), 4)
    assert sender.receive(sender.send(floats(1, -3, 2, 0.5))).tolist() == [0, -3, 0, 0]
    assert sender.residual.tolist() == [1, 0, 2, 0.5]
    assert sender.receive(sender.send(floats(1, 1, -0.5, 0.5))).tolist() == [2, 0, 0, 0]
    assert sender.residual.tolist() == [0, 1, 1.5, 1]


def test_small_halves_add_up():
    sender = channel(Half(error_feedback=True), 1)
    arrived = [float(sender.receive(sender.send(floats(2.0**-26)))[0]) for _ in range(8)]
    assert sum(arrived) + sender.residual[0] == 8 * 2.0**-26
    assert max(arrived) == 2.0**-24
    forgetful = channel(Half(), 1)
    assert forgetful.residual is None
    assert forgetful.receive(forgetful.send(floats(2.0**-26))) == 0


def least_squares(size: int = 6, num_workers: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    """Noisy measurements of (1, 2, ..., size), other ones for each worker."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((num_workers, 12, size), dtype=np.float32)
    noise = rng.standard_normal((num_workers, 12), dtype=np.float32)
    return list(zip(inputs, inputs @ np.arange(1, size + 1, dtype=np.float32) + noise, strict=True))


def gradients(workload, w: np.ndarray) -> list[np.ndarray]:
    return [a.T @ (a @ w - y) / np.float32(len(y)) for a, y in workload]


def mean(vectors: list[np.ndarray]) -> np.ndarray:
    return np.sum(vectors, axis=0, dtype=np.float32) / np.float32(len(vectors))


def double_squeeze(up: Codec, down: Codec, num_steps: int, lr: float = 0.2):
    """Return the models of each step, the workers' channels and the server's."""
    workload = least_squares()
    w = np.zeros(6, np.float32)
    workers = [channel(up, 6, worker) for worker in range(len(workload))]
    server = channel(down, 6, len(workload))
    models = [w]
    for _ in range(num_steps):
        arrived = [c.receive(c.send(g)) for c, g in zip(workers, gradients(workload, w), strict=True)]
        w = w - np.float32(lr) * server.receive(server.send(mean(arrived)))
        models.append(w)
    return models, workers, server


def bsp(num_steps: int, lr: float = 0.2) -> list[np.ndarray]:
    workload, models = least_squares(), [np.zeros(6, np.float32)]
    for _ in range(num_steps):
        models.append(models[-1] - np.float32(lr) * mean(gradients(workload, models[-1])))
    return models


@pytest.mark.parametrize(
    "codec",
    [Plain(), TopK(ratio=1), TopK(ratio=1, error_feedback=False), RandomK(ratio=1, error_feedback=False)],
    ids=repr,
)
def test_double_squeeze_with_the_identity_is_bsp(codec):
    models, _, _ = double_squeeze(codec, codec, 30)
    assert np.array_equal(models, bsp(30))


def optimum() -> np.ndarray:
    inputs, outputs = zip(*least_squares(), strict=True)
    return np.linalg.lstsq(np.concatenate(inputs), np.concatenate(outputs))[0]


@pytest.mark.by_day(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "codec",
    [TopK(ratio=0.3), RandomK(ratio=0.5), Sign(), OneBit(), QSGD(levels=16, error_feedback=True)],
    ids=repr,
)
def test_double_squeeze_comes_to_the_optimum_and_conserves(codec):
    models, workers, server = double_squeeze(codec, codec, 400, lr=0.05)
    assert np.abs(models[0] - optimum()).max() > 5
    assert np.abs(models[-1] - optimum()).max() < 0.02
    # w = w_0 - lr (sum of mean gradients - E - mean e): what was not applied is in the memories
    workload = least_squares()
    total = sum(mean(gradients(workload, w)).astype(np.float64) for w in models[:-1])
    remembered = server.residual + mean([c.residual for c in workers])
    assert (total - remembered) * -0.05 == pytest.approx(models[-1], abs=1e-4)


def test_without_memory_the_largest_entries_may_hide_the_others():
    """Two workers whose large entries cancel: their top entry says nothing, for ever."""
    sides = [floats(10, 1), floats(-10, 1)]

    def moved(remembers: bool) -> np.ndarray:
        codec = TopK(ratio=0.5, error_feedback=remembers)
        senders = [channel(codec, 2, worker) for worker in range(2)]
        arrived = [c.receive(c.send(g)) for _ in range(40) for c, g in zip(senders, sides, strict=True)]
        return np.sum(arrived, axis=0) / 2

    assert moved(False).tolist() == [0, 0]
    assert moved(True)[1] >= 20


def test_rate_inside_and_outside_the_memory_differ_once_the_rate_changes():
    inside, outside = (channel(TopK(ratio=0.5), 2) for _ in range(2))
    inner, outer = [], []
    for rate in (0.5, 0.5, 0.125, 0.125):
        inner.append(inside.receive(inside.send(floats(4 * rate, rate))).tolist())
        outer.append((rate * outside.receive(outside.send(floats(4, 1)))).tolist())
    # the small entry was lost at a rate of 0.5: inside it still counts as much, so that it is sent first
    assert inner == [[2, 0], [2, 0], [0, 1.125], [1, 0]]
    assert outer == [[2, 0], [2, 0], [0.5, 0], [0.5, 0]]


# ---------------------------------------------------------------- what a sender is


@pytest.mark.parametrize("codec", [*EXACT, *ROUNDED, TernGrad(), QSGD(), Plain()], ids=repr)
def test_a_restored_channel_sends_the_same_messages(codec):
    vectors = np.random.default_rng(0).standard_normal((6, 50), dtype=np.float32)
    first, second = channel(codec, 50, 3), channel(codec, 50, 3)
    for vector in vectors[:3]:
        first.send(vector)
    residual, num_sent = first.residual, first.num_sent
    ahead = [first.send(vector) for vector in vectors[3:]]
    second.restore(residual, num_sent)  # which the first has not changed by going on
    assert np.array_equal([second.send(vector) for vector in vectors[3:]], ahead)
    first.restore(None, 0)
    afresh = channel(codec, 50, 3)
    for vector in vectors:
        assert np.array_equal(first.send(vector), afresh.send(vector))


def test_channels_draw_by_themselves():
    vector = np.random.default_rng(0).standard_normal(200, dtype=np.float32)
    one, same, other = (channel(TernGrad(), 200, worker) for worker in (0, 0, 1))
    first = one.send(vector)
    assert np.array_equal(first, same.send(vector))
    assert not np.array_equal(first, other.send(vector))
    assert not np.array_equal(first, one.send(vector))


def test_only_codecs_with_error_feedback_remember():
    published = {
        codec.name: codec.has_memory
        for codec in (Plain(), Half(), TopK(), RandomK(), TernGrad(), QSGD(), Sign(), OneBit())
    }
    assert published == {
        **dict.fromkeys(("none", "fp16", "terngrad", "qsgd"), False),
        **dict.fromkeys(("top_k", "random_k", "sign", "one_bit"), True),
    }


def test_nothing_changes_by_a_vector_that_cannot_be_sent():
    sender = channel(TopK(ratio=0.5), 2)
    sender.send(floats(1, 2))
    residual, num_sent = sender.residual.copy(), sender.num_sent
    for bad in (floats(math.nan, 1), floats(math.inf, 0)):
        with pytest.raises(CodecError, match="finite"):
            sender.send(bad)
    with pytest.raises(CodecError, match="a vector of 2 entries"):
        sender.send(floats(1, 2, 3))
    assert np.array_equal(sender.residual, residual)
    assert sender.num_sent == num_sent


def test_a_memory_that_grows_beyond_floats_is_found():
    sender = channel(TopK(ratio=0.5), 2)
    sender.send(floats(3e38, 2e38))
    with pytest.raises(CodecError, match="entry 1 of 2 is inf"):
        sender.send(floats(0, 3e38))


def test_a_residual_of_another_size_is_refused():
    with pytest.raises(CodecError, match=r"'top_k': expected a vector of 4 entries, got shape \(5,\)"):
        channel(TopK(), 4).restore(np.zeros(5, np.float32), 1)


def test_a_residual_that_decays_is_added_in_part():
    """e + q = b e_before + v; with b = 0 it is as if nothing were remembered."""
    decaying, forgetful, plain = (
        channel(TopK(ratio=0.25, **values), 4)
        for values in ({"residual_decay": 0.5}, {"residual_decay": 0.0}, {"error_feedback": False})
    )
    before = np.zeros(4, np.float32)
    for vector in np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32):
        sent = decaying.receive(decaying.send(vector))
        np.testing.assert_array_equal(decaying.residual + sent, np.float32(0.5) * before + vector)
        before = decaying.residual
        assert forgetful.send(vector).tobytes() == plain.send(vector).tobytes()
