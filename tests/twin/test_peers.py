"""What messages take where workers talk to each other is found from a probe in which they add up."""

import pytest

import psbench as ps
from psbench.twin.calibration import Calibration
from psbench.twin.measures import measures_of
from psbench.twin.probe import probes_of
from tests.twin.known import PLAIN, TRUTH, alike

#: a message between workers takes 3 ms longer than its link was timed with, and an order .5 ms
BEYOND_S, ORDER_S = 3e-3, 5e-4
LINKS = {
    **{"latency_s": 2e-3, "peer_latency_s": 1e-3, "bandwidth_mbit_s": 40.0, "server_bandwidth_mbit_s": 40.0},
    **{"link_sharing": "equal", "link_time": {"name": "lognormal", "sigma": 0.05}, "speed": 1.0},
    "step_time": {"name": "lognormal", "sigma": 0.05},
}
SERVED = PLAIN.but(cluster=TRUTH | LINKS | {"service": {}}, stop={"updates": 60})
BUSY = {"peer_message_s": BEYOND_S / 2, "latency_s": 2e-3 + ORDER_S}
PEERS = SERVED.but(cluster=SERVED.cluster.model_dump() | BUSY)
PROBES = [SERVED, SERVED.but(strategy="asp", batch_size=64, stop={"updates": 240})]


def fit(links, strategies=("all_reduce",)):
    runs = [ps.run(each) for each in (*PROBES, *(PEERS.but(strategy=each) for each in strategies))]
    return Calibration.of(runs, links)


@pytest.fixture(scope="module")
def fitted():
    return fit(alike(2e-3, 40.0))


def test_what_a_message_between_workers_takes_is_found(fitted):
    """A sum has six messages, an order and its confirmation, whose own part the six share."""
    assert fitted.peers.beyond_s == pytest.approx(BEYOND_S + 2 * ORDER_S / 6, rel=0.05)
    reports, orders = (fitted.peers.seconds[way : way + 4] for way in (0, 4))
    for each in (*reports, *orders):
        assert sum(each) / len(each) == pytest.approx(2e-3 + ORDER_S, rel=0.05)
    assert fitted.fitted["latency between workers, s"].value == pytest.approx(2e-3 + BEYOND_S, rel=0.1)
    without = fit(alike(2e-3, 40.0), ())
    assert without.peers is None
    # what has a server is predicted as without the probe
    assert without.cluster["server_bandwidth_mbit_s"] == fitted.cluster["server_bandwidth_mbit_s"]
    assert without.cluster["link_time"] == fitted.cluster["link_time"]


@pytest.mark.parametrize("strategy", ["all_reduce", "d_psgd"])
def test_strategies_whose_workers_talk_to_each_other_are_predicted(fitted, strategy):
    """And without the probe All-Reduce would be off by a third."""
    found = ps.predict(fitted, [strategy], seeds=3).rows[0]
    truth = measures_of(ps.run(PEERS.but(strategy=strategy, seed=9, stop={"epochs": 30})))
    assert found.update_s.mean == pytest.approx(truth.update_s, rel=0.05)


def test_without_timed_links_the_latency_between_workers_is_measured():
    found = fit(None)
    assert found.fitted["latency between workers, s"].source == "58 sums of the workers"
    assert not any(each.startswith("latency between workers") for each in found.unknown)
    row = ps.predict(found, ["all_reduce"], seeds=2).rows[0]
    truth = measures_of(ps.run(PEERS.but(strategy="all_reduce", seed=9, stop={"epochs": 30})))
    assert row.update_s.mean == pytest.approx(truth.update_s, rel=0.05)


def test_a_profile_with_peers_is_read_again(fitted, tmp_path):
    file = tmp_path / "profile.yaml"
    fitted.to_yaml(file)
    again = Calibration.read(file)
    assert again.peers == fitted.peers
    three = again.of_workers(3).drawn(0)
    assert len(three.peers.seconds) == 6
    assert three.experiment_of("all_reduce", {"batch_size": 96}).num_workers == 3
    levels = {fitted.drawn(seed).peers.beyond_s for seed in range(3)}
    assert len(levels) == 3
    file.write_text(file.read_text().replace("beyond_s: ", "beyond: "))
    with pytest.raises(ps.DataError, match=r"peers\.beyond_s: is required"):
        Calibration.read(file)


def test_an_all_reduce_is_one_of_the_probes_where_it_is_wanted():
    plain = SERVED.but(timing_only=False)
    assert [each.title for each in probes_of(plain, 20)] == ["bsp", "asp"]
    both = probes_of(plain, 20, with_peers=True)
    assert [each.title for each in both] == ["bsp", "asp", "all_reduce"]
    assert both[2].batch_size == SERVED.batch_size
    alone = plain.but(cluster={"workers": 1})
    assert len(probes_of(alone, 20, with_peers=True)) == 2
