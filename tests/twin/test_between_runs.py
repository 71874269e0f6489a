"""What runs differ by from their twins is in bands, and a fit that does not repeat its probes is refused."""

import re

import numpy as np
import pytest
from scipy import stats

import psbench as ps
from psbench.cli import main
from psbench.twin import between_runs
from psbench.twin.calibration import Calibration
from psbench.twin.exchanges import last_version
from psbench.twin.fitted import SPREAD
from psbench.twin.measures import measures_of
from psbench.twin.size_classes import Z90
from tests.twin.known import ASP, PLAIN, TRUTH, steady


def test_what_differs_from_one_run_to_the_next_is_in_bands(measured):
    """Four runs, two a tenth slower and two a tenth quicker; some of it is in how steps vary."""
    runs = [steady(4, [factor * each for each in TRUTH["speed"]]) for factor in (0.9, 1.1, 0.9, 1.1)]
    found = Calibration.of(runs)
    seconds = np.log([last_version(run.log)[1] for run in runs])
    student = stats.t.ppf(0.95, 3) / stats.norm.ppf(0.95)
    assert 0.6 < found.between_runs / (student * seconds.std(ddof=1)) < 1.05
    band = ps.predict(found, ["bsp"], seeds=3).rows[0].update_s
    assert all(measures_of(run).update_s in band for run in runs)
    assert any("(3 free)" in each for each in found.remarks)
    assert any("each probe was run once" in each for each in measured.unknown)
    drawn = [np.log(found.drawn(seed).cluster["speed"]).mean() for seed in range(100)]
    assert np.std(drawn) == pytest.approx(found.between_runs, rel=0.15)
    # levels are spread evenly: of five seeds and of ten the mean is near that of all
    assert all(abs(np.mean(drawn[:few]) - np.mean(drawn)) < 0.25 * np.std(drawn) for few in (5, 6, 10))


def test_the_luck_of_twins_is_taken_out_of_the_deviation_between_runs():
    """Five runs of two kinds of probe: three are free, and the fit is off by two means, .2 / 3 and .15."""
    probes = [
        between_runs.BesideTwins([None] * len(apart), np.array(apart), variance, None)
        for apart, variance in (((0.1, -0.1, 0.2), 1e-3), ((0.0, 0.3), 2e-3))
    ]
    of_three, of_two = (stats.t.ppf(0.95, free) / stats.norm.ppf(0.95) for free in (3, 2))
    within, lack = (0.06 - 0.2**2 / 3 + 0.045) / 3, ((0.2 / 3) ** 2 + 0.15**2) / 2
    expected = np.sqrt(of_three**2 * within + of_two**2 * lack - (3 * 1e-3 + 2 * 2e-3) / 5)
    assert between_runs.between_runs(probes) == (pytest.approx(expected), 3)
    # by how much two are off that were left out of the fit counts in the place of these means
    left_out = [between_runs.BesideTwins([None], np.array([apart]), 0.0, None) for apart in (0.4, -0.2)]
    expected = np.sqrt(of_three**2 * within + of_two**2 * (0.4**2 + 0.2**2) / 2 - (3e-3 + 4e-3) / 5)
    assert between_runs.between_runs(probes, left_out) == (pytest.approx(expected), 3)
    once = between_runs.BesideTwins([None], np.array([0.5]), 0.0, None)
    assert between_runs.between_runs([once, once]) == (0.0, 0)


def test_what_probes_are_off_by_that_were_left_out_of_the_fit_is_in_bands(measured):
    """Messages of ASP take 20 ms and those of BSP 1 ms: neither tells the other, and bands say so."""
    slow = {"cluster": TRUTH | {"latency_s": 0.02, "link_time": None}, "batch_size": PLAIN.batch_size}
    # alike but for the strategy: also in what they are called, and in their updates
    kinds = [each.but(name="ours", stop={"updates": 60}) for each in (PLAIN, ASP.but(**slow))]
    found = Calibration.of([ps.run(each.but(seed=seed)) for seed in (0, 1) for each in kinds])
    told = [each for each in found.remarks if "without its own messages" in each]
    assert [each.split()[1] for each in told] == ["bsp", "asp"]
    assert found.between_runs > 0.3
    assert "without its own messages" not in "".join(measured.remarks)  # each of its probes was run once


def test_what_a_fit_errs_by_for_other_workers_is_drawn_for_more(measured):
    """Two workers are a tenth quicker than four of the same kind: eight may be as much off, sixteen twice."""
    four, two = steady(4, [1.0] * 4), steady(2, [1.1, 1.1])
    found = Calibration.of([four, four], others=[two])
    seconds = [last_version(run.log)[1] for run in (four, two)]
    assert found.between_sizes == pytest.approx(np.log(seconds[0] / seconds[1]), rel=0.05)
    for workers, doublings in ((4, 0), (8, 1), (16, 2)):
        own = found.of_workers(workers)
        levels = [np.log(own.drawn(seed).cluster["speed"]).mean() for seed in range(100)]
        expected = np.hypot(found.between_runs, found.between_sizes * doublings)
        assert np.std(levels) == pytest.approx(expected, rel=0.15, abs=1e-3)
    sigma = [measured.drawn(seed).cluster["step_time"]["sigma"] for seed in range(100)]
    value, low, high, _ = measured.fitted[SPREAD]
    assert np.std(sigma) / np.mean(sigma) == pytest.approx((high - low) / (2 * Z90 * value), rel=0.15)


def test_a_profile_that_does_not_reproduce_its_probes_is_refused(measured, tmp_path, monkeypatch, capsys):
    """The fitted steps are spoilt: that is said, or else what explains more, unequal links or repeats."""
    short = PLAIN.but(stop={"updates": 40})
    links = TRUTH | {"latency_s": [0.02, 0.02, 0.02, 0.3], "link_time": None}
    plain, unequal = ps.run(short), ps.run(short.but(cluster=links))
    assert measured.not_reproduced == ""
    real = between_runs._twin

    def slow(experiment, cluster, number):
        return real(experiment, {**cluster, "seconds_per_step": 1.0}, number)

    monkeypatch.setattr(between_runs, "_twin", slow)
    found = Calibration.of([plain])
    assert found.not_reproduced.startswith(
        "the profile does not reproduce its own probes: bsp with batches of 128"
    )
    assert re.search(r"takes \+\d+.% on the fitted .* fitted steps are \+\d+.%", found.not_reproduced)
    assert "unequal links: messages of worker 3 take" in Calibration.of([unequal]).not_reproduced
    # a twin 1.5 and 4.5 times as slow as two repeats is off; 1.1 and 2.5 times may be by luck
    for logs, why in (
        ((-0.4, -1.5), "other work on the machines, as its repeats differ by"),
        ((-0.1, -0.9), ""),
    ):
        repeats = between_runs.BesideTwins([plain, plain], np.array(logs), 0.01, plain)
        said = between_runs.not_reproduced([repeats], measured.fitted)
        assert (why in said, bool(said)) == (True, bool(why))
    found.to_yaml(tmp_path / "profile.yaml")
    with pytest.raises(ps.SpecError, match=r"does not reproduce its own probes: .* calibrate again"):
        ps.predict(tmp_path / "profile.yaml", ["bsp"])
    monkeypatch.setattr("psbench.twin.probe.calibrate", lambda *_, **__: found)
    assert main(["calibrate", "--out", str(tmp_path / "new.yaml")]) == 1
    assert "psbench predict refuses it: the profile does not reproduce" in capsys.readouterr().err
