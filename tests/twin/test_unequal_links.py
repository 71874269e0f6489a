"""Links of a known cluster are found by end, and strategies that were not fitted are predicted on them."""

import numpy as np
import pytest

import psbench as ps
from psbench.twin.calibration import Calibration
from psbench.twin.links import MeasuredLinks, Way
from psbench.twin.measures import measures_of

#: of six workers and, last, the server: Mbit/s up and down, and seconds one way
UP = [50.0, 20.0, 10.0, 5.0, 30.0, 2.0, 40.0]
DOWN = [50.0, 20.0, 10.0, 20.0, 30.0, 2.0, 40.0]
DELAY = [0.005, 0.04, 0.01, 0.02, 0.03, 0.015, 0.001]
WORKERS = 6
MACHINES = {
    **{"workers": WORKERS, "seconds_per_sample": 5e-4, "seconds_per_step": 0.015},
    "step_time": {"name": "lognormal", "sigma": 0.1},
    **{"bandwidth_mbit_s": UP[:-1], "bandwidth_down_mbit_s": DOWN[:-1], "server_bandwidth_mbit_s": UP[-1]},
    **{"latency_s": [each + DELAY[-1] for each in DELAY[:-1]], "peer_latency_s": DELAY[:-1]},
    **{"link_sharing": "equal", "link_time": {"name": "lognormal", "sigma": 0.05}},
    "first_window_bytes": 14_480,  # so that a model waits for a round trip, and a piece of a ring for none
}
MODEL = 19_240
PLAIN = ps.Experiment(
    strategy="bsp", cluster=MACHINES, batch_size=192, stop={"updates": 40}, data="digits", timing_only=True
)


def timed(seed=0):
    """Return what is measured between machines, each time by some percent off."""
    rng, both = np.random.default_rng(seed), range(WORKERS + 1)
    ways = []
    for a, b in ((a, b) for a in both for b in both if a != b):
        latency_s, mbit_s = (DELAY[a] + DELAY[b]) * rng.uniform(0.98, 1.02), min(UP[a], DOWN[b])
        model = MODEL, 3 * latency_s + 8e-6 * MODEL / mbit_s
        ways.append(Way(a, b, latency_s, mbit_s * rng.uniform(0.98, 1.02), (model,)))
    return MeasuredLinks(WORKERS, tuple(range(WORKERS)), tuple(ways))


def probes(plain):
    """Return runs of the two probes."""
    asp = plain.but(strategy="asp", batch_size=plain.batch_size // 2, stop={"updates": 40 * WORKERS})
    return [ps.run(plain), ps.run(asp)]


@pytest.fixture(scope="module")
def fitted():
    return Calibration.of(probes(PLAIN), timed())


def test_rates_and_latencies_are_found_by_end(fitted):
    cluster = fitted.cluster
    assert cluster["bandwidth_mbit_s"] == pytest.approx([min(each, 40.0) for each in UP[:-1]], rel=0.05)
    assert cluster["bandwidth_down_mbit_s"] == pytest.approx(
        [min(each, 40.0) for each in DOWN[:-1]], rel=0.05
    )
    assert cluster["latency_s"] == pytest.approx(MACHINES["latency_s"], rel=0.05, abs=5e-4)
    assert cluster["peer_latency_s"] == pytest.approx(DELAY[:-1], rel=0.05, abs=5e-4)
    waited = np.array([np.mean(end) for end in cluster["link_time"]["seconds"]]) / 3
    assert waited == pytest.approx(2 * MACHINES["latency_s"], rel=0.1, abs=1e-3)
    assert fitted.waits.up == pytest.approx([2 * each for each in MACHINES["latency_s"]], rel=0.2, abs=2e-3)
    assert fitted.waits.peers == pytest.approx([2 * each for each in DELAY[:-1]], rel=0.1, abs=2e-3)
    assert fitted.not_reproduced == ""


def test_links_are_at_least_as_quick_as_messages():
    """Worker 0, of 50 Mbit/s, was timed with that of 2 alone, as where not all links fit into the time."""
    whole = timed()
    few = [way for way in whole.ways if 0 not in (way.start, way.end) or 5 in (way.start, way.end)]
    found = Calibration.of(probes(PLAIN), whole._replace(ways=tuple(few)))
    assert found.cluster["bandwidth_mbit_s"][0] > 10
    assert found.cluster["bandwidth_mbit_s"][5] == pytest.approx(2.0, rel=0.1)


def test_a_profile_of_links_is_read_again(fitted, tmp_path):
    file = tmp_path / "profile.yaml"
    fitted.to_yaml(file)
    again = Calibration.read(file)
    assert again.waits.peers == pytest.approx(fitted.waits.peers, rel=1e-3)
    assert again.experiment_of("d_psgd").cluster.peer_pause_s == pytest.approx(
        fitted.experiment_of("d_psgd").cluster.peer_pause_s, rel=1e-3
    )
    assert again.of_workers(3).drawn(0).experiment_of("all_reduce", {"batch_size": 96}).num_workers == 3
    file.write_text(file.read_text().replace("  peers: [", "  peers: [0.1, ", 1))
    with pytest.raises(ps.DataError, match="waits: must be those of the 6 workers"):
        Calibration.read(file)


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    "strategy", ["bsp", "ssp", "backup_workers", "local_sgd", "all_reduce", "d_psgd", "ad_psgd"]
)
def test_strategies_are_predicted(fitted, strategy):
    found = ps.predict(fitted, [strategy], seeds=3).rows[0]
    truth = measures_of(ps.run(PLAIN.but(strategy=strategy, seed=9, stop={"epochs": 30})))
    assert found.update_s.mean == pytest.approx(truth.update_s, rel=0.05)
