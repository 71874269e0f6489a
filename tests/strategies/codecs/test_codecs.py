"""Codecs: numbers worked by hand, what is kept of a vector, how long it is, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from psbench.core.part import REGISTRY, make_part
from psbench.errors import CodecError, ParameterError
from psbench.strategies.codecs import (
    E3M0,
    QSGD,
    ChunkedTopK,
    Codec,
    Half,
    MQGrad,
    OneBit,
    Plain,
    RandomK,
    SendShare,
    Sign,
    TernGrad,
    TopK,
)
from psbench.strategies.codecs.sparse import index_bits, largest

EXAMPLE = np.array([0.5, -1, 0.25, 0], dtype=np.float32)
NAMES = sorted(REGISTRY["codec"])
VARIANTS = [
    *(make_part("codec", name) for name in NAMES),
    *(TopK(ratio=0.3), TopK(ratio=1), RandomK(ratio=0.3, error_feedback=False), RandomK(ratio=1)),
    *(
        TernGrad(clip=0),
        TernGrad(bucket=3),
        QSGD(levels=1),
        QSGD(levels=4, bucket=0),
        QSGD(levels=300, bucket=5),
    ),
    *(QSGD(levels=255), Sign(bucket=3), OneBit(bucket=3), OneBit(bucket=16), E3M0(bucket=3)),
    *(
        ChunkedTopK(chunk=4, kept=2),
        ChunkedTopK(chunk=7, kept=3, value_bits=32),
        ChunkedTopK(chunk=1, kept=1),
    ),
]
DRAWS = 100_000

each = pytest.mark.parametrize("codec", VARIANTS, ids=repr)


def vectors(limit: float = 1e30) -> st.SearchStrategy:
    """Vectors of ordinary and of extreme entries, zeros among them."""
    limit = float(np.float32(limit))
    entries = st.one_of(st.just(0.0), st.floats(-4, 4, width=32), st.floats(-limit, limit, width=32))
    return arrays(np.float32, st.integers(1, 40), elements=entries)


def there_and_back(codec: Codec, vector: np.ndarray, seed: int = 0) -> np.ndarray:
    return codec.decode(codec.encode(vector, np.random.default_rng(seed)), vector.size)


def error(codec: Codec, vector: np.ndarray) -> float:
    return float(np.square(vector - there_and_back(codec, vector), dtype=np.float64).sum())


def square(vector: np.ndarray) -> float:
    return float(np.square(vector, dtype=np.float64).sum())


# ---------------------------------------------------------------- how long it is


def test_every_codec_is_there_and_says_where_it_is_from():
    assert NAMES == [
        "chunked_top_k",
        "e3m0",
        "fp16",
        "mq_grad",
        "none",
        "one_bit",
        "qsgd",
        "random_k",
        "send_share",
        "sign",
        "terngrad",
        "top_k",
    ]
    for codec in VARIANTS:
        assert codec.source
        assert make_part("codec", codec.model_dump()) == codec


#: worked out by hand: codecs, and the bits of a thousand entries
BITS = (
    (Plain(), 32_000),
    (Half(), 16_000),
    (TopK(ratio=0.01), 420),
    (RandomK(ratio=0.01), 384),
    (TernGrad(), 2032),
    (QSGD(levels=4, bucket=0), 4032),
    (SendShare(), 8 * 1000 + 2 * 32),  # begins with the finest setting, 127 levels in buckets of 512
    (MQGrad(), 8 * 1000 + 2 * 32),
    (Sign(), 1032),
    (OneBit(), 1064),
    (E3M0(), 4128),
    (ChunkedTopK(), 128 + 64 * 14),
    (ChunkedTopK(chunk=300, kept=10, value_bits=32), 40 * 41),
)


def test_the_bits_of_every_codec_are_worked_out():
    missing = {*NAMES} - {codec.name for codec, _ in BITS}
    assert not missing, f"add {', '.join(sorted(missing))} to `BITS` in this file"


@pytest.mark.parametrize(("codec", "bits"), BITS)
def test_bits_of_a_thousand_entries(codec, bits):
    assert codec.num_bits(1000) == bits
    vector = np.random.default_rng(0).standard_normal(1000, dtype=np.float32)
    assert len(codec.encode(vector, np.random.default_rng(1))) == -(-bits // 8)


def test_top_k_is_so_many_times_smaller():
    assert TopK(ratio=0.01).num_kept(109_386) == 1094
    assert TopK(ratio=0.01).num_bits(109_386) == 53_606
    assert round(32 * 109_386 / 53_606, 1) == 65.3
    assert round(32_000 / TopK(ratio=0.01).num_bits(1000), 1) == 76.2


@pytest.mark.by_day(10)
@pytest.mark.slow
@each
@given(vector=vectors(), seed=st.integers(0, 9))
def test_the_length_is_as_promised_and_known_beforehand(codec, vector, seed):
    if codec.name == "fp16":
        vector = np.clip(vector, -65504, 65504)
    packed = codec.encode(vector, np.random.default_rng(seed))
    assert packed.dtype == np.uint8
    assert packed.shape == (codec.num_bytes(vector.size),) == (math.ceil(codec.num_bits(vector.size) / 8),)
    arrived = codec.decode(packed, vector.size)
    assert arrived.dtype == np.float32
    assert arrived.shape == vector.shape
    assert np.isfinite(arrived).all()


def test_bits_with_buckets():
    assert QSGD(levels=4, bucket=512).num_bits(1025) == 4 * 1025 + 3 * 32
    assert TernGrad(bucket=500).num_bits(1000) == 2064
    assert OneBit(bucket=10).num_bits(95) == 95 + 10 * 64
    assert [QSGD(levels=s).bits_an_entry for s in (1, 3, 4, 7, 8, 65535)] == [2, 3, 4, 4, 5, 17]


def test_how_many_entries_and_index_bits():
    assert [TopK(ratio=0.1).num_kept(size) for size in (1, 9, 10, 11, 30)] == [1, 1, 1, 2, 3]
    assert [TopK(ratio=r / 100).num_kept(100) for r in range(1, 101)] == list(range(1, 101))
    assert [index_bits(size) for size in (1, 2, 3, 4, 5, 1024, 1025)] == [0, 1, 2, 2, 3, 10, 11]
    with pytest.raises(ParameterError, match="ratio"):
        TopK(ratio=0)


# ---------------------------------------------------------------- what is kept


@pytest.mark.slow
@given(vector=vectors(3e38))
def test_nothing_is_lost_where_everything_is_sent(vector):
    for codec in (Plain(), TopK(ratio=1), RandomK(ratio=1), RandomK(ratio=1, error_feedback=False)):
        assert np.array_equal(there_and_back(codec, vector), vector)


@each
def test_zeros_arrive_as_zeros(codec):
    for size in (1, 2, 7, 8, 9, 600):
        assert not there_and_back(codec, np.zeros(size, np.float32)).any()


@each
def test_a_single_entry_arrives(codec):
    for value in (-3.0, 0.25):
        vector = np.array([value], dtype=np.float32)
        assert there_and_back(codec, vector) == pytest.approx(vector)


@each
def test_the_vector_is_not_changed_and_may_have_gaps(codec):
    wide = np.random.default_rng(0).standard_normal(60, dtype=np.float32)
    before = wide.copy()
    gaps = codec.encode(wide[::2], np.random.default_rng(1))
    assert np.array_equal(gaps, codec.encode(wide[::2].copy(), np.random.default_rng(1)))
    assert np.array_equal(wide, before)


@each
def test_what_arrives_is_the_receivers_own(codec):
    packed = codec.encode(EXAMPLE, np.random.default_rng(0))
    before = packed.copy()
    codec.decode(packed, 4)[:] = 7
    assert np.array_equal(packed, before)
    frozen = np.frombuffer(b"?" + packed.tobytes(), np.uint8)[1:]  # as a letter holds it: not aligned
    assert np.array_equal(codec.decode(frozen, 4), codec.decode(packed, 4))


@pytest.mark.slow
@given(vector=vectors())
def test_top_k_keeps_the_largest_and_of_equal_ones_the_first(vector):
    for ratio in (0.01, 0.3, 0.9):
        kept = TopK(ratio=ratio).num_kept(vector.size)
        wanted = np.sort(np.argsort(-np.abs(vector), kind="stable")[:kept])
        assert np.array_equal(largest(vector, kept), wanted)


def test_ties():
    equal = np.array([1, -1, 1, -1], dtype=np.float32)
    assert there_and_back(TopK(ratio=0.5), equal).tolist() == [1, -1, 0, 0]
    long = np.random.default_rng(0).integers(-9, 10, 50_000).astype(np.float32)
    wanted = np.sort(np.argsort(-np.abs(long), kind="stable")[:7000])
    assert np.array_equal(largest(long, 7000), wanted)


@pytest.mark.slow
@given(vector=vectors())
def test_contraction_of_top_k(vector):
    codec = TopK(ratio=0.2)
    share = 1 - codec.num_kept(vector.size) / vector.size
    assert error(codec, vector) <= share * square(vector) * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("remembers", [True, False])
def test_the_error_of_random_k_in_the_mean(remembers):
    codec, rng = RandomK(ratio=0.25, error_feedback=remembers), np.random.default_rng(0)
    vector = rng.standard_normal(8, dtype=np.float32)
    errors = np.array([square(vector - codec.decode(codec.encode(vector, rng), 8)) for _ in range(5000)])
    wanted = (1 - 2 / 8 if remembers else 8 / 2 - 1) * square(vector)
    assert abs(errors.mean() - wanted) < 4 * errors.std() / math.sqrt(len(errors))


@pytest.mark.slow
@given(vector=arrays(np.float32, st.integers(1, 40), elements=st.floats(-100, 100, width=32)))
def test_the_error_of_signs_is_known(vector):
    wanted = square(vector) - float(np.abs(vector).sum(dtype=np.float64)) ** 2 / vector.size
    assert error(Sign(), vector) == pytest.approx(wanted, rel=1e-4, abs=1e-5 * (1 + square(vector)))
    assert error(OneBit(), vector) <= error(Sign(), vector) * (1 + 1e-4) + 1e-4


def test_sign_and_one_bit_by_hand():
    packed = Sign().encode(EXAMPLE, np.random.default_rng(0))
    assert packed[:4].view("<f4")[0] == np.float32(0.4375)
    assert packed[4:].tolist() == [0b0100_0000]
    assert there_and_back(Sign(), EXAMPLE).tolist() == [0.4375, -0.4375, 0.4375, 0.4375]
    assert there_and_back(OneBit(), EXAMPLE).tolist() == [0.25, -1, 0.25, 0.25]
    assert there_and_back(OneBit(), np.array([-1, -3], dtype=np.float32)).tolist() == [-2, -2]
    two = np.array([1, -3, -5, 2], dtype=np.float32)
    assert there_and_back(OneBit(bucket=2), two).tolist() == [1, -3, -5, 2]
    assert there_and_back(Sign(bucket=3), two).tolist() == [3, -3, -3, 2]


def test_halves_round_to_nearest():
    values = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65504, -65504, 2**-24, 2**-26, 6.1e-5], dtype=np.float32)
    arrived = there_and_back(Half(), values)
    assert arrived[:6].tolist() == [1, 1 + 2**-9, 65504, -65504, 2**-24, 0]
    assert np.array_equal(arrived, values.astype(np.float16).astype(np.float32))


@pytest.mark.slow
@given(arrays(np.float32, st.integers(1, 40), elements=st.floats(-65504, 65504, width=32)))
def test_halves_keep_eleven_binary_digits(vector):
    arrived = there_and_back(Half(), vector)
    assert (np.abs(arrived - vector) <= np.maximum(np.abs(vector) * 2.0**-11, 2.0**-25)).all()
    # subnormals lose more
    assert there_and_back(Half(), np.array([1.3e-6], np.float32)) != pytest.approx(1.3e-6, rel=2**-11)


# ---------------------------------------------------------------- chance


def many(codec: Codec, vector: np.ndarray) -> np.ndarray:
    """Encode a vector many times over, as one long vector whose pieces are drawn independently."""
    return there_and_back(codec, np.tile(vector, DRAWS)).reshape(DRAWS, vector.size)


@pytest.mark.parametrize(
    "codec", [TernGrad(clip=0), QSGD(levels=4, bucket=8), QSGD(levels=1, bucket=8)], ids=repr
)
def test_the_mean_is_what_was_sent(codec):
    assert codec.unbiased
    vector = np.random.default_rng(5).standard_normal(8, dtype=np.float32)
    drawn = many(codec, vector)
    standard_error = drawn.std(axis=0, dtype=np.float64) / math.sqrt(DRAWS)
    assert (np.abs(drawn.mean(axis=0, dtype=np.float64) - vector) <= 4 * standard_error + 1e-6).all()


def test_the_mean_of_random_k_is_what_was_sent():
    codec = RandomK(ratio=0.25, error_feedback=False)
    assert codec.unbiased
    assert not RandomK().unbiased
    drawn = many(codec, EXAMPLE)  # a quarter of all entries is drawn: each with probability 1/4
    standard_error = drawn.std(axis=0, dtype=np.float64) / math.sqrt(DRAWS)
    assert (np.abs(drawn.mean(axis=0, dtype=np.float64) - EXAMPLE) <= 4 * standard_error).all()
    assert sorted(set(drawn[:, 1].tolist())) == [-4, 0]


def test_terngrad_by_hand():
    drawn = many(TernGrad(clip=0), EXAMPLE)
    assert set(np.unique(drawn)) == {-1, 0, 1}
    shares = (drawn != 0).mean(axis=0)
    assert shares[1] == 1
    assert shares[3] == 0
    for share, wanted in ((shares[0], 0.5), (shares[2], 0.25)):
        assert abs(share - wanted) < 4 * math.sqrt(wanted * (1 - wanted) / DRAWS)
    assert np.array_equal(np.sign(drawn[drawn != 0]), np.sign(np.tile(EXAMPLE, DRAWS)[drawn.ravel() != 0]))


def test_terngrad_clips_outliers():
    vector = np.full(1000, 0.1, dtype=np.float32)
    vector[7] = -100
    limit = 2.5 * math.sqrt(square(vector) / 1000)
    assert np.abs(there_and_back(TernGrad(), vector)).max() == pytest.approx(limit)
    assert not TernGrad().unbiased
    assert there_and_back(TernGrad(clip=0), vector)[7] == -100
    # no vector of six entries has one beyond 2.5 sigma
    assert np.abs(there_and_back(TernGrad(), vector[5:11])).max() == 100


def test_qsgd_by_hand():
    norm = math.sqrt(1.3125)
    assert norm == pytest.approx(1.14564, abs=1e-5)
    levels = np.abs(many(QSGD(levels=4, bucket=4), EXAMPLE)) * 4 / norm
    assert np.abs(levels - levels.round()).max() < 1e-5
    levels = levels.round()
    positions = (1.7457, 3.4915, 0.8729, 0)
    for column, position in zip(levels.T, positions, strict=True):
        assert set(column) <= {math.floor(position), math.ceil(position)}
        assert abs(column.mean() - position) <= 4 * column.std() / math.sqrt(DRAWS) + 1e-4


def test_no_level_is_above_the_last():
    ones = np.ones(20_000, dtype=np.float32)
    for levels in (1, 7, 255, 65535):
        assert np.array_equal(there_and_back(QSGD(levels=levels, bucket=1), ones), ones)


@pytest.mark.parametrize("levels", [1, 4, 7, 40])
def test_the_error_of_qsgd_and_of_terngrad_is_within_their_bounds(levels):
    vector = np.random.default_rng(2).standard_normal(16, dtype=np.float32)
    norm = math.sqrt(square(vector))
    errors = np.square(many(QSGD(levels=levels, bucket=16), vector) - vector).sum(axis=1)
    above = np.abs(vector) * levels / norm % 1
    slack = 4 * errors.std() / math.sqrt(DRAWS)
    assert abs(errors.mean() - (norm / levels) ** 2 * (above * (1 - above)).sum()) < slack
    assert errors.mean() <= min(16 / levels**2, 4 / levels) * norm**2 + slack
    ternary = np.square(many(TernGrad(clip=0), vector) - vector).sum(axis=1)
    wanted = np.abs(vector).max() * np.abs(vector).sum() - norm**2
    assert abs(ternary.mean() - wanted) < 4 * ternary.std() / math.sqrt(DRAWS)


def test_the_levels_of_qsgd_hold_no_more_than_the_papers_bound():
    size, levels = 1000, 32  # s = sqrt(d)
    bound = 2.8 * size + 32
    assert bound == 2832
    for seed in range(5):
        vector = np.random.default_rng(seed).standard_normal(size, dtype=np.float32)
        arrived = there_and_back(QSGD(levels=levels, bucket=0), vector, seed)
        _, counts = np.unique(arrived, return_counts=True)
        entropy = -(counts / size * np.log2(counts / size)).sum()
        assert 0.3 * bound < size * entropy + 32 <= bound


@pytest.mark.parametrize("codec", [RandomK(), TernGrad(), QSGD()], ids=repr)
def test_chance_comes_from_the_generator_alone(codec):
    vector = np.random.default_rng(3).standard_normal(300, dtype=np.float32)
    before = np.random.get_state()[1].tolist()
    first, again, other = (codec.encode(vector, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.random.get_state()[1].tolist() == before


def test_buckets_are_scaled_by_themselves():
    vector = np.array([1, 1, 1, 100, 100, 100, 1e-4], dtype=np.float32)
    for codec in (TernGrad(bucket=3, clip=0), Sign(bucket=3), OneBit(bucket=3)):
        assert there_and_back(codec, vector) == pytest.approx(vector)


# ---------------------------------------------------------------- what is refused


@each
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_refused(codec, bad):
    vector = np.ones(1000, dtype=np.float32)
    vector[[417, 900]] = bad
    with pytest.raises(CodecError, match=rf"{codec.name}.*entry 417 of 1,000 is {bad}"):
        codec.encode(vector, np.random.default_rng(0))


@each
def test_what_is_no_vector_of_floats_is_refused(codec):
    for bad in (np.zeros(3), np.zeros((2, 2), np.float32), np.zeros(0, np.float32), np.zeros(3, np.int32)):
        with pytest.raises(CodecError, match="expected a vector of 32-bit floats"):
            codec.encode(bad, np.random.default_rng(0))


@each
def test_what_is_cut_short_is_refused(codec):
    packed = codec.encode(np.ones(100, np.float32), np.random.default_rng(0))
    for bad in (packed[:-1], np.append(packed, packed[:1]), packed.astype(np.int32)):
        with pytest.raises(CodecError, match="100 entries take"):
            codec.decode(bad, 100)


def test_an_index_beyond_the_end_is_refused():
    codec = TopK(ratio=0.2)
    packed = codec.encode(np.array([0, 0, 0, 0, 1], np.float32), np.random.default_rng(0))
    packed[4] |= 0b111
    with pytest.raises(CodecError, match="index 7, but the vector has 5 entries"):
        codec.decode(packed, 5)


@pytest.mark.parametrize("bad", [65505.0, -65510.0, 1e30])
def test_halves_too_large_are_refused(bad):
    with pytest.raises(CodecError, match=r"entry 1 of 3 is .*16-bit float is 65504"):
        Half().encode(np.array([65504, bad, -65504], dtype=np.float32), np.random.default_rng(0))


def test_scales_too_large_are_refused():
    vector = np.full(1000, 3e38, dtype=np.float32)
    with pytest.raises(CodecError, match="norm is too large"):
        QSGD().encode(vector, np.random.default_rng(0))
    with pytest.raises(CodecError, match="too large for a 32-bit float"):
        RandomK(error_feedback=False).encode(vector, np.random.default_rng(0))
    for codec in (TernGrad(), Sign(), OneBit()):
        assert there_and_back(codec, vector) == pytest.approx(vector, rel=1e-6)


def test_the_smallest_floats_do_no_harm():
    vector = np.full(600, 1e-45, dtype=np.float32)
    for codec in VARIANTS:
        assert np.isfinite(there_and_back(codec, vector)).all()


def test_exponents_are_within_the_root_of_2_and_idempotent():
    vector = np.random.default_rng(0).standard_normal(1000, dtype=np.float32)
    for codec in (E3M0(), E3M0(bucket=7), E3M0(bucket=0)):
        arrived = there_and_back(codec, vector)
        assert np.array_equal(there_and_back(codec, arrived), arrived)
        ratio = arrived[arrived != 0] / vector[arrived != 0]
        assert ratio.min() * (1 + 1e-3) >= 2**-0.5
        assert ratio.max() <= 2**0.5 * (1 + 1e-3)
        assert np.abs(vector[arrived == 0]).max() < np.abs(vector).max() * 2**-6.5 * (1 + 1e-3)


def test_of_each_chunk_the_largest_arrive_as_the_mean_of_their_bin():
    vector = np.random.default_rng(3).standard_normal(1000, dtype=np.float32)
    plain = there_and_back(ChunkedTopK(chunk=100, kept=7, value_bits=32), vector)
    for start in range(0, 1000, 100):
        own, sent = np.abs(vector[start : start + 100]), plain[start : start + 100] != 0
        assert sent.sum() == 7
        assert own[sent].min() >= own[~sent].max()
    assert np.array_equal(plain[plain != 0], vector[plain != 0])
    coarse = there_and_back(ChunkedTopK(chunk=100, kept=7, value_bits=2), vector)
    assert len(np.unique(coarse[plain != 0])) <= 4
    for value in np.unique(coarse[plain != 0]):
        assert value == pytest.approx(vector[(coarse == value) & (plain != 0)].mean(), rel=1e-5)


def test_one_chunk_of_all_is_top_k_and_all_of_it_is_the_vector():
    vector = np.random.default_rng(4).standard_normal(50, dtype=np.float32)
    one = ChunkedTopK(chunk=50, kept=5, value_bits=32)
    assert np.array_equal(there_and_back(one, vector), there_and_back(TopK(ratio=0.1), vector))
    assert np.array_equal(there_and_back(ChunkedTopK(chunk=8, kept=8, value_bits=32), vector), vector)
    with pytest.raises(ParameterError, match="use 1 to 8, or 32"):
        ChunkedTopK(value_bits=9)
