"""Two racks with a thin line between them are found, and strategies are predicted on them."""

import pytest

import psbench as ps
from psbench.twin.calibration import Calibration
from psbench.twin.links import MeasuredLinks, Way
from psbench.twin.measures import measures_of

#: the rack of each worker; the server is machine 6, in rack 0
RACKS, LINE, OWN = [0, 0, 0, 1, 1, 1], 10.0, 100.0
MACHINES = {
    **{"workers": 6, "seconds_per_sample": 5e-4, "seconds_per_step": 0.015, "link_sharing": "equal"},
    **{"step_time": {"name": "lognormal", "sigma": 0.1}, "racks": RACKS, "rack_bandwidth_mbit_s": LINE},
    "rack_latency_s": 0.003,
    **{"bandwidth_mbit_s": OWN, "server_bandwidth_mbit_s": OWN, "peer_latency_s": 0.001},
    **{"latency_s": [0.002] * 3 + [0.005] * 3, "link_time": {"name": "lognormal", "sigma": 0.05}},
}
PLAIN = ps.Experiment(
    strategy="bsp", cluster=MACHINES, batch_size=192, stop={"updates": 40}, data="digits", timing_only=True
)


def timed():
    """Return what is measured between machines, alone and at once."""
    of = [*RACKS, 0]
    pairs = [(a, b) for a in range(7) for b in range(7) if a != b]
    far = {pair: of[pair[0]] != of[pair[1]] for pair in pairs}
    ways = [Way(*pair, 0.005 if across else 0.002, LINE if across else OWN) for pair, across in far.items()]
    at_once = [Way(each, 6, 0.01, LINE / 3 if of[each] else 30.0) for each in range(6)]
    return MeasuredLinks(6, tuple(range(6)), tuple(ways), tuple(at_once))


def fit(plain):
    asp = plain.but(strategy="asp", batch_size=96, stop={"updates": 240})
    return Calibration.of([ps.run(plain), ps.run(asp)], timed())


@pytest.fixture(scope="module")
def fitted():
    return fit(PLAIN)


def test_a_line_is_found(fitted):
    cluster = fitted.cluster
    assert list(cluster["racks"]) == RACKS
    assert cluster["rack_bandwidth_mbit_s"] == pytest.approx(LINE)
    assert cluster["rack_latency_s"] == pytest.approx(0.003, rel=0.05)
    assert cluster["bandwidth_mbit_s"] == pytest.approx([OWN] * 6)
    assert cluster["latency_s"] == pytest.approx(MACHINES["latency_s"], abs=5e-4)
    assert fitted.not_reproduced == ""


@pytest.mark.by_day(2)
@pytest.mark.parametrize("strategy", ["asp", "backup_workers", "local_sgd", "all_reduce"])
def test_strategies_are_predicted(fitted, strategy):
    found = ps.predict(fitted, [strategy], seeds=3).rows[0]
    truth = measures_of(ps.run(PLAIN.but(strategy=strategy, seed=9, stop={"epochs": 30})))
    assert found.update_s.mean == pytest.approx(truth.update_s, rel=0.05)


@pytest.mark.nightly
def test_lines_that_pass_messages_in_turn_are_found():
    """With equal shares a barrier's first answer is as late as its last, and backup workers wait for it."""
    plain = PLAIN.but(cluster=MACHINES | {"link_sharing": "in_turn"})
    found = fit(plain)
    assert found.cluster["link_sharing"] == "in_turn"
    predicted = ps.predict(found, ["backup_workers"], seeds=3).rows[0]
    truth = measures_of(ps.run(plain.but(strategy="backup_workers", seed=9, stop={"epochs": 30})))
    assert predicted.update_s.mean == pytest.approx(truth.update_s, rel=0.05)
