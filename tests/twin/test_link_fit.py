"""Latencies, shared rates and rates by size are found."""

import numpy as np
import pytest

import psbench as ps
from psbench.clusters.network import Network
from psbench.twin.calibration import Calibration
from psbench.twin.fitted import AT_ONCE
from psbench.twin.link_fit import passing_s
from psbench.twin.measures import measures_of
from psbench.twin.sharing import shared_s
from psbench.twin.size_classes import size_classes
from tests.twin.known import PLAIN, TRUTH, alike


def test_latency_of_a_slow_link_is_found_though_no_message_is_alone():
    """Three workers meet at a link of 10 Mbit/s, 20 ms; what they share is no latency."""
    slow = {"workers": 3, "latency_s": 0.02, "bandwidth_mbit_s": 10, "server_bandwidth_mbit_s": 10}
    slow |= {"link_sharing": "equal", "link_time": {"name": "lognormal", "sigma": 0.05}}
    plain = PLAIN.but(cluster=TRUTH | slow | {"speed": 1.0}, batch_size=96, stop={"updates": 60})
    runs = [ps.run(plain), ps.run(plain.but(strategy="asp", batch_size=48, stop={"updates": 180}))]
    found = Calibration.of(runs, alike(0.02, 10.0, workers=3))
    ends = found.cluster["link_time"]["seconds"]
    assert np.mean([np.mean(end) for end in ends]) == pytest.approx(0.02, rel=0.05)
    predicted = ps.predict(found, [{"name": "local_sgd", "local_steps": 4}], seeds=2).rows[0].update_s.mean
    truth = measures_of(ps.run(plain.but(strategy={"name": "local_sgd", "local_steps": 4}))).update_s
    assert predicted == pytest.approx(truth, rel=0.03)


def test_the_way_back_alone_may_vary():
    """Messages to the servers take 1 ms, and answers 1 or 3 ms; the quickest of both ways count as equal."""
    workers = PLAIN.num_workers
    links = {"name": "trace", "order": "in_order", "seconds": [[1e-3]] * workers + [[1e-3, 3e-3]] * workers}
    plain = PLAIN.but(cluster=TRUTH | {"link_time": links, "service": {}}, stop={"updates": 60})
    found = Calibration.of([ps.run(plain), ps.run(plain.but(strategy="asp", stop={"updates": 240}))])
    ends = found.cluster["link_time"]["seconds"]
    for up, down in zip(ends[:workers], ends[workers:], strict=True):
        assert np.ptp(up) < 5e-4
        assert np.ptp(down) == pytest.approx(2e-3, abs=5e-4)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("mbit_s", [1e6, 100.0])
def test_more_workers_on_a_link_of_unknown_rate_are_predicted(mbit_s):
    """What messages cost each other is found from four workers, and eight under BSP and SSP are predicted."""
    links = {"link_sharing": "equal", "bandwidth_mbit_s": mbit_s, "server_bandwidth_mbit_s": mbit_s}
    plain = PLAIN.but(cluster=TRUTH | links | {"speed": 1.0, "service": {}}, stop={"updates": 100})
    asp = plain.but(strategy="asp", batch_size=64, stop={"updates": 400})
    runs = [ps.run(plain), ps.run(asp)]
    found = Calibration.of(runs)
    truth_s = 8e-6 * runs[0].meta["model_bytes"] / mbit_s
    assert found.fitted[AT_ONCE].value == pytest.approx(truth_s, rel=0.15, abs=1e-4)
    more, own = found.of_workers(8), plain.cluster.model_dump() | {"workers": 8}
    many = plain.but(cluster=own, batch_size=256, stop={"epochs": 12})
    for strategy in ("bsp", "ssp"):
        live = [measures_of(ps.run(many.but(strategy=strategy, seed=seed))).update_s for seed in (5, 6)]
        twins = [ps.run(many.but(strategy=strategy, cluster=more.cluster, seed=seed)) for seed in range(3)]
        predicted = np.mean([measures_of(run).update_s for run in twins])
        assert predicted == pytest.approx(np.mean(live), rel=0.08)


def test_equal_shares_of_a_link_are_those_of_the_simulator():
    begin = np.random.default_rng(0).uniform(0, 1, 60)
    sizes = np.full(60, 12_500)
    assert shared_s(begin, 0.05) == pytest.approx(passing_s(begin, sizes, 2.0))
    # messages that take less than the clock resolves after hours, as on a link that costs next to nothing
    assert passing_s(begin + 1e4, sizes, 1e15) == pytest.approx(np.zeros(60), abs=1e-9)


RATES = [[0.0, 2.0], [8000.0, 10.0], [100_000.0, 40.0]]


def test_rates_by_size_are_found_and_rings_predicted():
    """Messages of 4 KB get 2 Mbit/s, those of the model 10, large ones 40; a ring's pieces are of 5 KB."""
    links = {
        "latency_s": 0.004,
        "bandwidth_mbit_s": 40,
        "server_bandwidth_mbit_s": 40,
        "achieved_rates": RATES,
    }
    plain = PLAIN.but(cluster=TRUTH | links | {"link_sharing": "equal"}, stop={"updates": 60})
    alone = plain.but(cluster={"workers": 1, **links}).cluster.profile()
    sizes = (4096, 16_384, 262_144, 2_097_152)
    seconds = [(size, Network(alone).up(0, size, 0.0) + 1e-6 * (size % 7)) for size in sizes]
    measured = alike(0.004, 40.0, seconds=seconds)
    runs = [ps.run(plain), ps.run(plain.but(strategy="asp", batch_size=64, stop={"updates": 240}))]
    found = Calibration.of(runs, measured)
    assert [rate for _, rate in found.cluster["achieved_rates"]] == pytest.approx([2, 10, 40], rel=0.01)
    assert [begin for begin, _ in found.cluster["achieved_rates"]] == pytest.approx(
        [0, 8192, 65_540], rel=0.01
    )
    truth = measures_of(ps.run(plain.but(strategy="all_reduce"))).update_s
    predicted = ps.predict(found, ["all_reduce"], seeds=2).rows[0].update_s.mean
    assert predicted == pytest.approx(truth, rel=0.03)
    few = size_classes({0: [0.004, 0.006], 1000: [0.0051, 0.0049], 10**6: [0.9, 1.1]})
    assert few.rates == ((0.0, pytest.approx(8 / 0.995, rel=0.01)),)
    assert few.unknown == ("rate of messages of 1,000 bytes: at least 2.42 Mbit/s",)
    assert size_classes({19_240: [0.02, 0.03]}) is None
