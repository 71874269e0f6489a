"""Numbers that are whole up to the rounding of floats are rounded as their exact values are."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psbench.core import ClusterView, Push
from psbench.core.rounding import ceil, floor
from psbench.core.view import Status, WorkerView
from psbench.strategies.communication import DynamicLocalSGD, RegionalSGD
from psbench.strategies.communication.selsync import injected_samples
from psbench.strategies.switching.after import After

PERCENT = st.integers(1, 100)


@given(PERCENT, st.integers(1, 10_000))
def test_shares_in_percent_of_a_number(percent, number):
    exact = Fraction(percent, 100) * number
    assert floor(percent / 100 * number) == math.floor(exact)
    assert ceil(percent / 100 * number) == math.ceil(exact)


def ordered(part, seconds):
    """Return the steps that workers are ordered whose steps take so many seconds, after pushes of three."""
    view, found = ClusterView(len(seconds), 1, 1), []
    for worker, own in enumerate(seconds):
        view.workers[worker] = WorkerView(worker, status=Status.PUSHED)
        stats = {"compute_s": own + own + own}
        part.on_push(Push(worker, worker, 1, 0, samples=4, steps=3, stats=stats), view)
    for worker in range(len(seconds)):
        found.append(part.on_release(worker, view)["local_steps"])
    return found


@pytest.mark.parametrize("step_s", [1.0, 0.1, 0.3, 0.7, 0.0123])
@pytest.mark.parametrize("steps", [10, 30, 32])
def test_workers_take_the_steps_of_the_exact_ratio_of_their_speeds(step_s, steps):
    """Speeds of .9, .7, .3 and .6 of the fastest take 9, 7, 3 and 6 steps for its 10, to both sides."""
    speeds = [Fraction(each, 100) for each in (100, 90, 70, 30, 60, 55, 1)]
    seconds = [step_s / float(speed) for speed in speeds]
    exact = [speed * steps for speed in speeds]
    assert ordered(DynamicLocalSGD(local_steps=steps), seconds) == [
        max(1, math.floor(each)) for each in exact
    ]
    assert ordered(RegionalSGD(local_steps=steps), seconds) == [math.ceil(each) for each in exact]


@given(st.integers(1, 256), PERCENT, st.integers(1, 16))
def test_samples_that_are_shared(batch, percent, sharing):
    """SelSync: floor(beta b'), b' = b / (1 + beta n)."""
    beta = Fraction(percent, 100)
    found = injected_samples(batch, percent / 100, sharing)
    assert found == math.floor(beta * batch / (1 + beta * sharing))


@given(st.integers(1, 999), st.integers(2, 1000))
def test_the_epoch_of_a_switch_is_the_nearest_whole_one(permille, epochs):
    exact = Fraction(permille, 1000) * epochs
    assert After(fraction=permille / 1000, whole_epochs=True)._due(epochs) == math.floor(
        exact + Fraction(1, 2)
    )
