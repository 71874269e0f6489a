"""The runs and links that are measured."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import psbench as ps
from psbench.backends.dask.doctor import Diagnosis, Link, MeasuredSteps
from psbench.clusters.network import Network
from psbench.errors import BackendError, WorkerLost
from psbench.twin.probe import calibrate, measured_links
from tests.twin.known import PLAIN


def test_timed_links_are_those_of_the_machines_of_a_run(monkeypatch):
    """Both ways of each; who cannot be reached has none, and without a place for a role nothing is known."""
    ways = {("a", "b"): (10.0, 80.0), ("b", "a"): (80.0, 10.0), ("a", "c"): (20.0, 40.0), ("c", "a"): None}
    links = {
        pair: both and Link(0.01, *both, ((4096, 0.02, 0.03), (1 << 20, 0.8, 0.1)))
        for pair, both in ways.items()
    }
    steps = {each: MeasuredSteps(1e-3, 1e-3, 0.1) for each in "abc"}
    placed = {"coordinator": "c", "worker 0": "a", "worker 1": "b"}
    found = Diagnosis([*"abc"], links, {("b", "a"): links["b", "a"]}, steps, placed=placed)
    monkeypatch.setattr("psbench.backends.dask.diagnose", lambda experiment, **_: found)
    two = PLAIN.but(cluster={"workers": 2})
    measured = measured_links(two)
    assert (measured.server, measured.workers) == (2, (0, 1))
    assert [way[:4] for way in measured.ways[:2]] == [(0, 1, 0.01, 10.0), (1, 0, 0.01, 80.0)]
    assert len(measured.ways) == 6
    assert measured.ways[1].seconds == ((4096, 0.03), (1 << 20, 0.1))
    assert [way.mbit_s for way in measured.at_once] == [80.0, 10.0]
    assert measured_links(PLAIN) is None
    del links["a", "c"], links["c", "a"]
    cluster = replace(found, workers=[*"ab"]).cluster()
    assert (cluster["bandwidth_mbit_s"], cluster["bandwidth_down_mbit_s"]) == ([10.0, 80.0], [80.0, 10.0])
    assert Network(ps.Experiment(cluster=cluster).cluster.profile()).hop(1e6, [0]) == pytest.approx(0.81)


def test_a_failed_all_reduce_says_how_to_calibrate_without_it(monkeypatch):
    """Where only the servers can be reached, the other probes still tell what is known of them."""

    def run_experiment(experiment):
        if experiment.strategy.name == "all_reduce":
            raise WorkerLost("worker 1 cannot be reached from worker 0")
        return SimpleNamespace(experiment=experiment)

    monkeypatch.setattr("psbench.twin.probe.run_experiment", run_experiment)
    experiment = ps.Experiment(name="ours", strategy="ssp", cluster={"workers": 2}, backend="dask")
    with pytest.raises(BackendError, match=r"cannot be reached from worker 0; .*--no-peers"):
        calibrate(experiment, with_links=False)
    fitted = []
    monkeypatch.setattr("psbench.twin.probe.Calibration.of", lambda runs, links: fitted.append(runs))
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    calibrate(experiment, with_links=False, with_peers=False)
    assert [each.experiment.strategy.name for each in fitted[0]] == ["bsp", "asp"] * 3
