"""The model behind the benchmark of overlap, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.overlap import Layer, in_turn, overlapped

WHOLE = float("inf")


@pytest.mark.parametrize("order", ["fifo", "front"])
def test_a_model_of_one_layer_gains_nothing(order):
    layer = [Layer(1.0, 2.0, 10)]
    assert overlapped(layer, 0.5, order, WHOLE) == in_turn(layer, 0.5) == 13.0


@pytest.mark.parametrize("order", ["fifo", "front"])
def test_a_fast_link_leaves_the_first_layer_s_way_there_and_back(order):
    """Nothing waits for the link: L f + L b and the last gradient's two transfers."""
    layers = [Layer(1.0, 2.0, 1)] * 4
    assert overlapped(layers, 0.5, order, WHOLE) == 4 * 3.0 + 2 * 0.5


def test_over_a_slow_link_the_first_layer_waits_unless_it_goes_first():
    """FIFO: b + (L + 1) u, then the forward pass; front first: what is behind it comes later."""
    layers = [Layer(0.5, 1.0, 1)] * 4
    assert overlapped(layers, 3.0, "fifo", WHOLE) == 1.0 + 5 * 3.0 + 4 * 0.5
    # the last layer's gradient has the link until 4, then the first layer's (ready at 4) until 7; the
    # second's until 10, the third's until 13; answers until 7, 10, 13, 16; the last layer's is there since 7
    assert overlapped(layers, 3.0, "front", WHOLE) == 16.0 + 2 * 0.5


def test_answers_to_whole_pushes_hide_behind_one_pass_each():
    """b, then the push until all is there; the first layer's answer, the rest behind the forward pass."""
    layers = [Layer(0.5, 1.0, 1)] * 4
    assert overlapped(layers, 3.0, "front", WHOLE, whole=True) == 1.0 + 12.0 + 12.0 + 0.5


def test_a_free_network_leaves_the_computing():
    layers = [Layer(0.5, 1.0, 7), Layer(0.25, 3.0, 9)]
    assert overlapped(layers, 0.0, "front") == in_turn(layers, 0.0) == 4.75


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("order", ["fifo", "front"])
def test_no_schedule_beats_its_bounds(seed, order):
    """An iteration takes its computing at least, and each way of the link, and at most both in turn."""
    rng = np.random.default_rng(seed)
    layers = [Layer(*rng.random(2), int(rng.integers(1, 300))) for _ in range(rng.integers(1, 9))]
    entry_s = 10 ** rng.uniform(-5, -1)
    one_way = entry_s * sum(layer.entries for layer in layers)
    plain = in_turn(layers, entry_s)
    took = overlapped(layers, entry_s, order, slice_entries=50)
    assert max(in_turn(layers, 0.0), one_way) <= took + 1e-9
    assert took <= plain + 1e-9
