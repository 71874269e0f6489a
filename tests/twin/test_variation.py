"""The variation of step times."""

import numpy as np
import pytest

from psbench.clusters.step_time import LogNormal
from psbench.twin.variation import together, variation_of


def test_rare_stalls_are_found_beside_the_others():
    """One step in a hundred takes eight times as long more; draws do not depend on how many are asked for."""
    truth = LogNormal(sigma=0.1, correlation=0.3, stalls=0.01, stall=8.0)
    series = [truth.series(0, np.random.default_rng(seed))(1000) for seed in range(4)]
    part, why = variation_of(series)
    assert (part["stalls"], part["stall"]) == (pytest.approx(0.01, rel=0.35), pytest.approx(8.0, rel=0.35))
    assert part["correlation"] == pytest.approx(0.3, abs=0.06)
    assert "stalls, of 4000 steps" in why
    assert np.mean(series) == pytest.approx(1.0, rel=0.02)
    one, parts = (truth.series(0, np.random.default_rng(1)) for _ in range(2))
    assert one(300).tolist() == [*parts(7), *parts(293)]


def test_steps_that_are_slow_together_are_named():
    """A common factor is found; workers of their own have none within the interval."""
    rng = np.random.default_rng(0)
    worker, begun = np.tile(np.arange(4), 200), np.repeat(np.arange(200.0), 4)
    own = np.exp(0.1 * rng.standard_normal(800))
    ((_, low, high),) = together(worker, begun, own)
    assert low < 0 < high
    common = np.repeat(np.exp(0.2 * rng.standard_normal(20)), 40)
    ((_, low, _),) = together(worker, begun, own * common)
    assert low > 0.5


def test_what_no_lognormal_is_stays_measured():
    """Two speeds in turn: the test rejects, and blocks of what was measured keep their order."""
    rng = np.random.default_rng(0)
    factors = np.where(np.arange(300) // 10 % 2, 1.8, 0.2) * rng.uniform(0.99, 1.01, 300)
    part, why = variation_of([factors / factors.mean()])
    assert (part["name"], "rejected" in why) == ("trace", True)
