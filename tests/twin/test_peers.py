"""What messages take where workers talk to each other is found from a probe in which they add up."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest

import psbench as ps
from psbench.twin.calibration import Calibration
from psbench.twin.codecs import mean_and_width
from psbench.twin.exchanges import Exchanges
from psbench.twin.fitted import HOP, Fit
from psbench.twin.measures import measures_of
from psbench.twin.peer_fit import adds_up, fit_peers, has_server
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


def test_sums_alone_are_fitted_as_what_passes_a_server():
    """There is nothing else to fit to; their own part would be counted twice."""
    assert Calibration.of([ps.run(PEERS.but(strategy="all_reduce"))]).peers is None


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
    plain = SERVED.but(timing_only=False, name="ours")
    assert [each.title for each in probes_of(plain, 20)] == ["bsp", "asp"]
    both = probes_of(plain, 20, with_peers=True)
    assert [each.title for each in both] == ["bsp", "asp", "all_reduce"]
    assert both[2].batch_size == SERVED.batch_size
    alone = plain.but(cluster={"workers": 1})
    assert len(probes_of(alone, 20, with_peers=True)) == 2


def test_runs_whose_vectors_pass_a_server_or_one_ring_are_told_apart():
    """A sum in groups, at servers, of shares, in jobs, or of encoded vectors tells nothing of one ring."""
    ring = {"name": "all_reduce"}
    groups = ring | {"placement": {"name": "all_reduce", "algorithm": "auto"}}
    encoded = ring | {"codec": "fp16", "codec_down": "fp16"}
    others = ["map_reduce", "d_psgd", "strategy_switch", groups, encoded]
    others += [ring | {"placement": each} for each in ("summing_servers", "sharded")]
    others += [ring | {"aggregation": "power_sgd"}]
    for strategy, expected in (
        *((each, (True, False)) for each in ("bsp", "asp")),
        ("all_reduce", (False, True)),
        *((each, (False, False)) for each in others),
    ):
        run = SimpleNamespace(experiment=ps.Experiment(strategy=strategy))
        assert (has_server(run), adds_up(run)) == expected, strategy


def sums(collective_s, up_s=1e-3, down_s=1e-3, workers=4):
    """Return exchanges of workers in turn, those of each twice as long as those of the one before."""
    count = len(collective_s)
    columns = {each.name: np.zeros(count) for each in fields(Exchanges)}
    columns["worker"] = np.arange(count) % workers
    times = 2.0 ** columns["worker"]
    columns |= {"up_s": up_s * times, "down_s": down_s * times, "collective_s": np.array(collective_s)}
    return Exchanges(**columns)


#: of two racks; messages round the ring take 3, 6, 7 and 6 ms
RACKS = {
    **{"workers": 4, "peer_latency_s": [1e-3, 2e-3, 3e-3, 4e-3], "latency_s": [1e-3, 2e-3, 9e-3, 4e-3]},
    **{"racks": [0, 0, 1, 1], "rack_latency_s": 1e-3},
}


def test_what_a_sum_takes_beyond_its_links_is_shared_by_its_messages():
    """Order and confirmation take 9 ms each, and a piece goes round in 22 ms and two hops, at most 13."""
    for beyond_s, expected_s in ((5e-4, 5e-4), (-1e-3, -1e-3), (-0.1, -8e-3), (9.9, 9.9), (20.0, 10.0)):
        whole_s = 2 * 9e-3 + 35e-3 + 6 * beyond_s
        # pushes that end no sum have 0
        took = [max(1e-3, whole_s + each) for each in (-1e-4,) * 12 + (1e-4,) * 12]
        fit_peers(found := Fit(cluster=dict(RACKS)), [sums([0.0] * 4 + took[:12]), sums(took[12:])], 0, 0.0)
        assert found.peers.beyond_s == pytest.approx(expected_s, abs=1e-6)
        hop_s = sum(max(0.0, each + expected_s / 2) for each in RACKS["peer_latency_s"]) / 2 + 5e-4
        value, low, high, source = found.fitted[HOP]
        assert value == pytest.approx(hop_s, abs=1e-6)
        _, least_s, most_s = mean_and_width(np.array(took))
        doubt_s = (most_s - least_s) / 2 / 6
        assert (value - low, high - value) == pytest.approx((doubt_s, doubt_s))
        assert source == "24 sums of the workers"
        assert [each.partition(" beyond")[0] for each in found.remarks] == [
            f"messages between workers: {found.peers.beyond_s * 1e3:.3g} ms"
        ]
        assert found.cluster == RACKS
    # sums that differ by more than they take leave a tenth of a message
    fit_peers(found := Fit(cluster=dict(RACKS)), [sums([0.0, 0.0, 1e-3, 1.0])], 0, 0.0)
    value, low, high, _ = found.fitted[HOP]
    assert (low, high) == pytest.approx((0.1 * value, 1.9 * value))
    fit_peers(none := Fit(cluster=dict(RACKS)), [sums([0.0] * 8)], 0, 0.0)
    assert (none.peers, none.fitted) == (None, {})


def test_without_timed_links_an_order_takes_as_long_as_a_message():
    kept, known = ["codecs: none", "latency to the servers: 1 ms"], "latency between workers: at most 1 ms"
    found = Fit(cluster={"workers": 4, "latency_s": 9e-3}, unknown=[kept[0], known, kept[1]])
    fit_peers(found, [sums([0.08] * 8)], 10**6, 0.0)
    assert found.fitted[HOP].value == pytest.approx(0.01)  # 6 rounds, an order and its confirmation
    assert (found.cluster["latency_s"], found.cluster["server_latency_s"]) == (0.01, 0.01)
    assert (found.peers.beyond_s, found.remarks, found.unknown) == (0.0, [], kept)


def test_reports_and_orders_are_those_of_each_worker_without_the_decision():
    """The quickest take as long both ways; who decides for longer than an order takes has next to none."""
    both = [sums([0.1] * 24, 1e-3, 3.5e-3), sums([0.1] * 8, 1e-3, 3.5e-3)]
    both[0].up_s[20:] += 4e-3
    fit_peers(found := Fit(cluster=dict(RACKS)), both, 0, 5e-4)
    reports, orders = found.peers.seconds[:4], found.peers.seconds[4:]
    for worker, (up, down) in enumerate(zip(reports, orders, strict=True)):
        ahead_s = (2.5e-3 * 2**worker - 5e-4) / 2  # by which the clock is
        usual_s = 1e-3 * 2**worker + ahead_s
        assert sorted(up) == pytest.approx([usual_s] * 7 + [usual_s + 4e-3])
        assert down == pytest.approx((usual_s,) * 8)
    fit_peers(many := Fit(cluster=dict(RACKS)), [sums([0.1] * 160)], 0, 0.0)
    assert {len(end) for end in many.peers.seconds} == {32}
    fit_peers(found := Fit(cluster=dict(RACKS)), both[1:], 0, 1.0)
    assert {second for end in found.peers.seconds for second in end} == {1e-6}
