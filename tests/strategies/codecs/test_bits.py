"""Packing: nothing but the last byte is filled up, and everything comes back."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from psbench.strategies.codecs.bits import (
    numbers_of,
    pack_numbers,
    pack_planes,
    planes_of,
    unpack_numbers,
    unpack_planes,
)

widths = st.integers(1, 20)
sizes = st.integers(1, 70)


@given(width=widths, size=sizes, seed=st.integers(0, 99))
def test_numbers_come_back(width, size, seed):
    numbers = np.random.default_rng(seed).integers(0, 1 << width, size, dtype=np.uint32)
    packed = pack_numbers(numbers, width)
    assert packed.size == -(-width * size // 8)
    assert np.array_equal(unpack_numbers(packed, size, width), numbers)
    planes = pack_planes(planes_of(numbers, width))
    assert planes.size == packed.size
    assert np.array_equal(numbers_of(unpack_planes(planes, size, width)), numbers)


def test_numbers_of_no_bits_take_no_bytes():
    none = pack_numbers(np.zeros(3, np.uint32), 0)
    assert none.size == 0
    assert unpack_numbers(none, 3, 0).tolist() == [0, 0, 0]


def test_where_the_bits_lie():
    assert pack_numbers(np.array([1, 2, 3], np.uint32), 4).tolist() == [0x21, 0x03]
    low, high = np.array([1] * 8 + [1], bool), np.array([0] * 8 + [1], bool)
    assert pack_planes([low, high]).tolist() == [0xFF, 0x00, 0b1100_0000]


def test_the_smallest_type_is_taken():
    kinds = {width: numbers_of([np.ones(3, bool)] * width).dtype for width in (1, 8, 9, 16, 17)}
    assert kinds == {1: np.uint8, 8: np.uint8, 9: np.uint16, 16: np.uint16, 17: np.uint32}
