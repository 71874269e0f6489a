"""A known cluster is found again from runs on it, and strategies that were not fitted are predicted."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from widgets.direct import violations
from widgets.jupyter import FLAGS, browser_path

import psbench as ps
from psbench.backends.dask.doctor import Diagnosis, Link, MeasuredSteps
from psbench.backends.stamps import ANSWER_COLUMNS, PUSH_COLUMNS, WORKER_COLUMNS, CoordinatorStamps
from psbench.cli import main
from psbench.clusters.network import Network
from psbench.clusters.step_time import LogNormal
from psbench.core.log import EventLog, Kind
from psbench.results.run import Run
from psbench.testing import toy_experiment
from psbench.twin import between_runs
from psbench.twin.calibration import Calibration
from psbench.twin.codecs import Coding, with_codec
from psbench.twin.exchanges import exchanges_of, last_version
from psbench.twin.fitted import AT_ONCE, RUN_TO_RUN, SPREAD
from psbench.twin.link_fit import passing_s
from psbench.twin.links import MeasuredLinks, Way
from psbench.twin.measures import Band, Measures, measures_of
from psbench.twin.pictures import quantiles, write_report
from psbench.twin.prediction_page import prediction_table, write_prediction
from psbench.twin.predictions import Predicted, Predictions
from psbench.twin.probe import measured_links
from psbench.twin.recording import LEFT_OUT, Recorded, Sizes, record
from psbench.twin.replayed import played_again
from psbench.twin.sharing import shared_s
from psbench.twin.size_classes import Z90, size_classes
from psbench.twin.stamped import stamps_of, with_cpu_times
from psbench.twin.validation import validate
from psbench.twin.variation import together, variation_of

#: as a live cluster is: messages with latencies that vary, and a server that takes time
TRUTH = {
    **{"workers": 4, "speed": [1, 1, 0.8, 0.5], "seconds_per_sample": 2e-4, "seconds_per_step": 5e-3},
    "step_time": {"name": "lognormal", "sigma": 0.2, "correlation": 0.5, "shift": 0.3},
    **{"latency_s": 1e-3, "link_time": {"name": "lognormal", "sigma": 0.3}, "bandwidth_mbit_s": 1e6},
    **{"server_bandwidth_mbit_s": 1e6, "service": {"message_s": 1e-4, "decision_s": 1e-4}},
}
PLAIN = ps.Experiment(
    strategy="bsp", cluster=TRUTH, batch_size=128, stop={"updates": 300}, data="digits", timing_only=True
)
ASP = PLAIN.but(strategy="asp", batch_size=64, stop={"updates": 1200})


@pytest.fixture(scope="module")
def measured():
    """The two probes, in virtual time in the place of live ones, with what a coordinator would report."""
    runs = [ps.run(PLAIN), ps.run(ASP)]
    for run, pushes in zip(runs, (1200, 1200), strict=True):
        run.meta["coordinator"] = {"pushes": pushes, "serving_s": 2e-4 * pushes, "handled_s": 3e-4 * pushes}
    return Calibration.of(runs)


def test_a_known_cluster_is_found_again(measured):
    cluster, step = measured.cluster, measured.cluster["step_time"]
    assert np.array(cluster["speed"]) == pytest.approx(np.array(TRUTH["speed"]), rel=0.05)
    assert (
        pytest.approx(cluster["seconds_per_step"] + 32 * cluster["seconds_per_sample"], rel=0.03)
        == 5e-3 + 32 * 2e-4
    )
    assert cluster["seconds_per_sample"] == pytest.approx(2e-4, rel=0.15)
    assert step["correlation"] == pytest.approx(0.5, abs=0.1)
    assert (1 - step["shift"]) * step["sigma"] == pytest.approx(0.7 * 0.2, rel=0.15)
    assert cluster["service"] == {"message_s": pytest.approx(1e-4), "decision_s": pytest.approx(1e-4)}
    assert cluster["latency_s"] == pytest.approx(1e-3, rel=0.15)
    assert any("bandwidth" in each for each in measured.unknown)
    assert all(each.value > 0 and each.low <= each.value <= each.high for each in measured.fitted.values())
    steps = [measured.fitted[f"step of worker {worker}, s"] for worker in range(4)]
    slower = np.array([steps[0].value / each.value for each in steps])
    assert slower == pytest.approx(np.array(TRUTH["speed"]), rel=0.1)  # all told at one batch
    speed = measured.of_workers(8).drawn(3).cluster["speed"]
    assert speed[:4] == speed[4:] != cluster["speed"]  # one doubt of one machine


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


def steady(workers, speed, updates=20):
    """Return a run whose steps and messages do not vary."""
    cluster = TRUTH | {"step_time": "constant", "link_time": "constant", "service": {}}
    cluster |= {"workers": workers, "speed": list(speed)}
    return ps.run(PLAIN.but(cluster=cluster, batch_size=32 * workers, stop={"updates": updates}))


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
    once = between_runs.BesideTwins([None], np.array([0.5]), 0.0, None)
    assert between_runs.between_runs([once, once]) == (0.0, 0)


def test_what_each_worker_differs_by_from_run_to_run_is_drawn():
    """Six runs, in each of which every worker is quicker or slower by some 5 % of its own."""
    factors = np.exp(0.05 * np.random.default_rng(3).standard_normal((6, 4)))
    found = Calibration.of([steady(4, each) for each in factors])
    logs = np.log(factors)
    apart = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    student = stats.t.ppf(0.95, 15) / stats.norm.ppf(0.95)
    expected = student * np.sqrt((apart**2).sum() / 15)
    assert found.fitted[RUN_TO_RUN].value == pytest.approx(expected, rel=0.01)
    eight = found.of_workers(8)
    drawn = np.log([eight.drawn(seed).cluster["speed"] for seed in range(100)])
    assert (drawn[:, :4] - drawn[:, 4:]).std() == pytest.approx(2**0.5 * expected, rel=0.15)


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


@pytest.mark.by_day(1)
@pytest.mark.parametrize("strategy", ["ssp", "k_bsp", "local_sgd", "all_reduce"])
def test_a_strategy_that_was_not_fitted_is_predicted(measured, strategy):
    """Within 5 % of the known cluster, and its idle share within 3 points.

    Each seed draws every number, the latency between workers, which was not measured, from a wide interval.
    """
    found = ps.predict(measured, [strategy], seeds=8 if strategy == "all_reduce" else 2).rows[0]
    truth = measures_of(ps.run(PLAIN.but(strategy=strategy, seed=9, stop={"epochs": 30})))
    assert found.update_s.mean == pytest.approx(truth.update_s, rel=0.05)
    assert np.mean([each.idle for each in found.runs]) == pytest.approx(truth.idle, abs=0.03)


@pytest.mark.parametrize("strategy", ["bsp", "asp", "k_bsp", "all_reduce", LEFT_OUT["Strategy-Switch"]])
def test_a_run_with_its_own_times_takes_as_long(strategy):
    """Servers take none here, as their queues are in a run's own times.

    Pushes pass a slow link, and what workers of a ring say to the coordinator does not: after a switch from
    one to the other messages take what they took there, and not again what the run's first ones took.
    """
    slow = {"latency_s": 0.02, "bandwidth_mbit_s": 10, "server_bandwidth_mbit_s": 10, "link_sharing": "equal"}
    cluster = {**TRUTH, **slow, "service": {}}
    run = ps.run(PLAIN.but(strategy=strategy, cluster=cluster, stop={"epochs": 8, "updates": 80}))
    again, (updates, seconds) = played_again(run), last_version(run.log)
    assert last_version(again.log) == (updates, pytest.approx(seconds, rel=1e-3))


def test_the_samples_of_an_exchange_are_those_of_one_step():
    run = ps.run(toy_experiment({"name": "local_sgd", "local_steps": 3}, stop={"updates": 4}))
    found = exchanges_of(run.log)
    assert ({*found.samples}, {*found.steps}) == ({run.experiment.batch_size // 3}, {3})
    assert (found.samples * found.steps == run.log.of_kind(Kind.PUSH)["samples"]).all()


def test_clocks_that_differ_are_set_by_the_quickest_messages():
    """A worker whose clock is 20 ms ahead seems to send 20 ms faster, and to hear 20 ms later."""
    run = ps.run(PLAIN.but(strategy="asp", stop={"updates": 200}))
    straight, columns = exchanges_of(run.log), run.log.columns()
    ahead = (columns["worker"] == 1) & (columns["send_s"] > 0)
    columns["send_s"][ahead] += 0.02  # of the step, so that the sum stays
    columns["compute_s"][ahead] -= 0.0
    turned = exchanges_of(EventLog.from_columns(columns, run.log.texts))
    own = straight.worker == 1
    assert turned.up_s[own] == pytest.approx(straight.up_s[own], abs=5e-4)


def alike(latency_s, mbit_s, workers=4, seconds=()):
    """Return timed links between workers and a server that are all alike."""
    machines = range(workers + 1)
    ways = [Way(a, b, latency_s, mbit_s, tuple(seconds)) for a in machines for b in machines if a != b]
    return MeasuredLinks(workers, tuple(range(workers)), tuple(ways))


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


def test_a_profile_is_a_page_that_is_read_again(measured, tmp_path):
    file = tmp_path / "profile.yaml"
    measured.to_yaml(file)
    text = file.read_text()
    again = Calibration.read(file)
    assert again.cluster == json.loads(json.dumps(measured.cluster))
    assert (again.samples, again.workers) == ((16, 32), 4)
    assert len(text.splitlines()) < 180
    for change, problem in {
        text.replace("psbench_profile: 1", "psbench_profile: 7"): "version 7",
        text.replace("psbench_profile: 1\n", ""): "is not a profile",
        text[: text.index("experiment:")]: "experiment: is required",
        text.replace("value: ", "valu: ", 1): "fitted.*value: is required",
        text.replace("fitted:\n", "fitted: 3\nthose:\n", 1): "fitted: must be a mapping, got 3",
        text.replace("workers: 4", "workers: 5", 1): "must have the 5 workers",
        text.replace("  link_time:", "  links:", 1): "cluster.link_time: is required",
        text.replace("[16, 32]", "[16, many]", 1): "samples_of_a_worker.1: must be a whole number",
        text[: text.index("experiment:")] + "experiment: x\n": "experiment: must be a mapping, got 'x'",
        text[: text.index("experiment:")] + "experiment: {batch_size: many}\n": "batch_size",
        text.replace("speed: [", "speed: [fast, ", 1): "cluster.speed.0: must be a number, got 'fast'",
        text.replace("between_runs: 0.0", "between_runs: -1.0", 1): "between_runs: must be greater",
    }.items():
        assert change != text, problem
        file.write_text(change)
        with pytest.raises(ps.PsbenchError, match=f"{re.escape(str(file))}: .*{problem}"):
            Calibration.read(file)


def test_a_profile_is_written_where_a_text_says(measured, tmp_path, monkeypatch):
    """As `to_yaml` of an experiment does; the path was tried with minutes of measuring behind it."""
    monkeypatch.chdir(tmp_path)
    assert measured.to_yaml("x.yaml") == measured.to_yaml() == (tmp_path / "x.yaml").read_text()


def test_a_profile_that_cannot_be_written_is_printed(measured, tmp_path, monkeypatch, capsys):
    """The disk may be full after minutes of measuring, though it was not before."""
    out = tmp_path / "there" / "profile.yaml"
    out.parent.mkdir()

    def measure(*_, **__):
        out.mkdir()
        return measured

    monkeypatch.setattr("psbench.twin.probe.calibrate", measure)
    assert main(["calibrate", "--out", str(out)]) == 2
    said = capsys.readouterr()
    (tmp_path / "printed.yaml").write_text(said.out)
    assert Calibration.read(tmp_path / "printed.yaml").workers == measured.workers
    assert "is not a regular file" in said.err


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


def test_a_band_that_begins_at_0_is_no_prediction(measured):
    """Two seeds far apart: the interval of a normal would contain negative times."""
    wide, narrow = Band.of([1.0, 2.0]), Band.of([1.0, 1.01])
    assert (wide.low, wide.is_prediction, narrow.is_prediction) == (0.0, False, True)
    found = ps.predict(measured, ["bsp", "all_reduce"], seeds=2)
    rows = [replace(found.rows[0], epoch_s=wide), replace(found.rows[1], epoch_s=narrow)]
    vague = replace(found, rows=rows)
    assert f"no prediction for {rows[0].title}: its band begins at 0" in str(vague)
    assert vague.best() == (rows[1].title, [])
    assert re.search(r"median width \d+.% of the mean", str(found))


def test_energy_and_cost_of_an_epoch_are_predicted(measured, tmp_path):
    """They are those of a run on the true cluster, in the bands; no time depends on them."""
    costs = {"busy_watts": 100.0, "idle_watts": 40.0, "price_per_hour": 3.6}
    settings = {f"cluster.costs.{name}": value for name, value in costs.items()}
    predicted = ps.predict(measured, ["bsp"], seeds=2, settings=settings)
    (row,) = predicted.rows
    true = ps.run(PLAIN.but(cluster=TRUTH | {"costs": costs}, stop={"updates": 100}))
    found = measures_of(true)
    size = true.meta["dataset_size"]
    assert size * found.joules == pytest.approx(row.epoch_joules.mean, rel=0.05)
    assert size * found.cost == pytest.approx(row.epoch_cost.mean, rel=0.05)
    assert "J an epoch" in str(predicted)
    assert str(row.epoch_cost) in predicted.write(tmp_path / "page.html").read_text()
    assert "J an epoch" not in str(replace(predicted, rows=[replace(row, epoch_joules=None)]))


@pytest.mark.parametrize(
    ("strategy", "settings", "reason"),
    [
        ("bsp", {"cluster.workers": 5}, "4 workers were measured, not 5"),
        ("bsp", {"batch_size": 1024}, "batch of 256 samples was not measured; only 16 to 32"),
        ("bsp", {"model.name": "cnn"}, "model.name was not measured"),
        ("d_psgd", {}, "exchanges under 'gossip' were not measured; calibrate with links"),
        ("double_squeeze", {}, r"the time of codec one_bit\(.*bucket=64\) was not measured"),
    ],
)
def test_what_was_not_measured_is_refused(measured, strategy, settings, reason):
    with pytest.raises(ps.SpecError, match=reason):
        ps.predict(measured, [strategy], settings=settings)


def test_ranking_and_curve(measured, tmp_path):
    """ASP is quickest; a strategy and itself are not told apart; a curve keeps its order and is drawn."""
    found = ps.predict(measured, ["bsp", "asp", {"name": "ssp", "staleness_bound": 0}], seeds=2)
    assert found.rows[0].name == "asp"
    assert [{"bsp", "ssp"}] == [set(tie) for tie in found.ties()]
    curve = ps.predict(measured, ["ssp"], seeds=2, over=("strategy.staleness_bound", [0, 8]))
    short = ps.predict(measured, ["ssp"], seeds=2, batches=100).rows[0]
    pushes = [len(row.runs[0].staleness) for row in (short, curve.rows[0])]
    assert pushes[0] / pushes[1] == pytest.approx(100 / 400, rel=0.1)
    assert [row.setting for row in curve.rows] == ["staleness_bound=0", "staleness_bound=8"]
    assert curve.best() == ("ssp staleness_bound=8", ["ssp staleness_bound=0"])  # of two seeds
    assert str(curve).endswith("fastest: ssp staleness_bound=8\nnot distinguishable: ssp staleness_bound=0")
    ends = [[row.epoch_s.mean, row.epoch_s.low, row.epoch_s.high] for row in curve.rows]
    table = prediction_table(curve)
    assert table[["value", "low", "high"]].to_numpy() == pytest.approx(np.maximum(ends, 0.0))
    assert (list(table["x"]), list(table["label"])) == ([0, 8], ["ssp", "ssp"])
    assert "<svg" in curve.write(tmp_path / "bound.svg").read_text()
    text = curve.write(tmp_path / "bound.html").read_text()
    assert all(word in text for word in ("staleness_bound=8", "Fastest: ssp", "90 %", '"low"'))
    assert found.chart().to_dict()["vconcat"][0]["height"] == 3 * 34  # a row for each strategy
    with pytest.raises(ps.SpecError, match=r"must end in \.html, \.svg"):
        curve.write(tmp_path / "bound.doc")
    assert "not distinguishable: ssp" in str(found) or "not distinguishable: bsp" in str(found)


def test_a_target_is_trained_for_and_one_that_is_not_reached_is_said(measured):
    """Seconds to it are those of a run on the machines, and what does not reach it says so."""
    trained = replace(measured, experiment={**measured.experiment, "timing_only": False})
    short = {"stop.epochs": 3}
    found = ps.predict(trained, ["bsp", "asp"], seeds=2, target=0.6, settings=short)
    assert all(row.target_s is not None for row in found.rows)
    assert found.rows[0].target_s.mean <= found.rows[1].target_s.mean
    run = ps.run(PLAIN.but(strategy="asp", timing_only=False, stop={"epochs": 3, "target_accuracy": 0.6}))
    asp = next(row for row in found.rows if row.name == "asp")
    assert asp.target_s.mean == pytest.approx(ps.metrics.time_to_target(run.log, 0.6), rel=0.5)
    never = ps.predict(trained, ["asp"], seeds=2, target=0.9999, settings=short)
    assert never.rows[0].target_s is None
    assert "not reached" in str(never)


def test_recorded_runs_are_judged_again_and_drawn(tmp_path, monkeypatch):
    """Other seeds of the known cluster in the place of live runs: right within the noise, and drawn."""
    runs = [ps.run(PLAIN.but(stop={"updates": 60})), ps.run(ASP.but(stop={"updates": 240}))]
    for run in runs:
        run.meta["coordinator"] = {"pushes": 240, "serving_s": 0.048, "handled_s": 0.072}
    live = [ps.run(PLAIN.but(strategy="k_bsp", seed=seed, stop={"epochs": 6})) for seed in (5, 6)]
    links = alike(1e-3, 1e6, seconds=[(10**6, 9e-3)])
    Recorded({"fit": runs, "live/k-sync": live}, load=0.5, links=links).save(tmp_path)
    assert Recorded.read(tmp_path).links == links
    played = []
    monkeypatch.setattr(
        "psbench.twin.validation.run_experiment", lambda twin: played.append(ps.run(twin)) or played[-1]
    )
    found = validate(Recorded({"fit": runs, "live/k-sync": live}), seeds=2)
    (cell,) = found.cells
    assert (cell.part, cell.repeats, cell.bytes_equal) == ("c", 2, True)
    assert abs(cell.error) < found.allowed(cell) < 0.2
    assert abs(found.replays["k-sync"]) < 0.01
    one, two = (measures_of(each).update_s for each in played)
    assert cell.predicted_s == pytest.approx((one + two) / 2)
    half = 6.3138 * abs(one - two) * 0.75**0.5  # of t with one degree of freedom, from a table: 95 %
    assert cell.band_width * cell.predicted_s == pytest.approx(2 * half, rel=1e-4)
    text = write_report(found, tmp_path / "report.html").read_text()
    assert all(word in text for word in ("live 0", "twin 0", "quantiles", "k-sync", "noise floor"))
    headings = re.findall(r"<h[12]>(.*?)</h", text.partition("<script")[0])
    assert len(set(headings)) == len(headings) == 5
    again = quantiles(live[0], live[0])
    assert (again["live_s"] == again["twin_s"]).all()
    facts = json.loads((tmp_path / "twin.json").read_text())
    for change, problem in {
        '{"version": 7, "runs": {}}': "version: must be 1, got 7",
        "3": "must be a mapping, got 3",
        "{": "is not JSON",
        json.dumps(facts | {"runs": {"fit": 10**8}}): "runs.fit: declares 100000000 runs, but .* has 2",
        json.dumps(
            facts | {"runs": {"fit": 2, "fit of 2": 1}}
        ): "runs.fit of 2: declares 1 runs, but .* has 0",
        json.dumps(facts | {"runs": {"fit": -1}}): "runs.fit: must be greater than 0, got -1",
        json.dumps(facts | {"runs": {"live/k-sync": 2}}): "runs: has no runs called fit",
        json.dumps(facts | {"runs": [2]}): "runs: must be a mapping",
        json.dumps(facts | {"links": [1, 2, {"x": 3}]}): "links.*: must be",
        json.dumps(facts | {"load": "much"}): "load: must be a number, got 'much'",
    }.items():
        (tmp_path / "twin.json").write_text(change)
        with pytest.raises(ps.DataError, match=f"{tmp_path / 'twin.json'}: {problem}"):
            Recorded.read(tmp_path)


def test_live_runs_are_kept_as_they_come(monkeypatch, tmp_path):
    """What fails after an hour, or Ctrl-C, leaves the runs before it."""
    runs = iter([ps.run(PLAIN), ps.run(ASP), ps.DataError("no push"), KeyboardInterrupt()])

    def run(_):
        found = next(runs)
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr("psbench.twin.recording.run_experiment", run)
    with pytest.raises(KeyboardInterrupt):
        record(sizes=Sizes(scaled=()), folder=str(tmp_path))
    found = Recorded.read(str(tmp_path))
    assert {name: len(kept) for name, kept in found.runs.items()} == {"fit": 2}


def test_live_runs_have_seeds_of_their_own(monkeypatch):
    """Strategies that share a seed share the luck of emulated machines, and their errors are one."""
    seen = []
    monkeypatch.setattr("psbench.twin.recording.run_experiment", lambda each: seen.append(each.seed))
    record(sizes=Sizes(batches=20))
    assert len(seen) == len(set(seen)) > 30


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


def test_logs_that_cannot_be_measured_are_refused():
    run = ps.run(PLAIN.but(stop={"updates": 4}))
    columns = run.log.columns()
    columns["time_s"][5] = 9.0
    with pytest.raises(ps.DataError, match="goes back in time"):
        exchanges_of(EventLog.from_columns(columns, run.log.texts))
    with pytest.raises(ps.DataError, match="no push"):
        exchanges_of(EventLog())
    other = Run(run.experiment, run.log, run.meta | {"num_workers": 7})
    with pytest.raises(ps.SpecError, match="4 and 7 workers"):
        Calibration.of([run, other])


def stamped(run, alone_s, behind_s=0.0):
    """Return a simulated run with the stamps that a live one would have, its steps of so much CPU time."""
    pushes, workers, arrivals = run.log.of_kind(Kind.PUSH), {}, []
    columns = (pushes[name].tolist() for name in ("worker", "time_s", "compute_s", "send_s"))
    for worker, arrived, compute, send in zip(*columns, strict=True):
        clocks = [(0.0, 1e-4), (behind_s, 1e-4)]
        own = workers.setdefault(f"worker {worker}", {"rows": [], "clocks": clocks})["rows"]
        begun, sent = arrived - send - compute, arrived - send
        arrivals.append((worker, len(own), *[0.0] * 5, len(arrivals)))
        cpu = alone_s * (1 + 1e-6 * len(arrivals))  # so that each is known again
        own.append((len(own), 1, begun, begun, sent, sent, cpu, compute, 0.0))
    names = {"push": PUSH_COLUMNS, "answer": ANSWER_COLUMNS, "worker": WORKER_COLUMNS}
    run.meta["stamps"] = {"columns": names, "pushes": arrivals, "answers": [], "workers": workers}
    return run


@pytest.fixture(scope="module")
def crowded():
    """The probes of four workers on two cores, with stamps, and the experiment."""
    cluster = TRUTH | {"speed": 1.0, "step_time": "constant", "cores": 2.0}
    plain = PLAIN.but(cluster=cluster, stop={"updates": 80})
    asp = plain.but(strategy="asp", batch_size=64, stop={"updates": 320})
    return [stamped(ps.run(plain), 5e-3 + 32 * 2e-4), stamped(ps.run(asp), 5e-3 + 16 * 2e-4)], plain


def test_cores_that_workers_share_are_found_and_fewer_workers_predicted(crowded):
    """Four workers on two cores are measured; two of them have a core each, and take half as long."""
    runs, plain = crowded
    found = Calibration.of(runs)
    assert found.cluster["cores"] == pytest.approx(2.0, abs=0.1)
    (busy,) = (each for each in found.remarks if each.startswith("steps: ") and "others compute" in each)
    assert 2 < float(re.search(r"; (\S+) others", busy)[1]) <= 3  # of four workers that hardly wait
    assert found.cluster["seconds_per_step"] == pytest.approx(5e-3, rel=0.02)
    for workers in (2, 4):
        fewer = {"cluster.workers": workers, "batch_size": 32 * workers}
        predicted = ps.predict(found, ["ssp"], seeds=2, settings=fewer).rows[0].update_s.mean
        machines = plain.cluster.model_dump() | {"workers": workers}
        truth = plain.but(strategy="ssp", cluster=machines, batch_size=32 * workers, stop={"epochs": 6})
        assert predicted == pytest.approx(measures_of(ps.run(truth)).update_s, rel=0.04)


def test_cores_are_not_fitted_where_steps_do_not_slow_each_other(crowded):
    runs, plain = crowded
    own = [run.experiment.but(cluster=plain.cluster.model_dump() | {"cores": 0.0}) for run in runs]
    seconds = (5e-3 + 32 * 2e-4, 5e-3 + 16 * 2e-4)
    found = Calibration.of([stamped(ps.run(each), s) for each, s in zip(own, seconds, strict=True)])
    assert "cores" not in found.cluster
    assert any("at least 4 cores" in each for each in found.unknown)


def test_cores_are_found_from_the_stamps_of_stretches_of_short_steps(crowded):
    """Steps of .5 ms: one stretch in four, of both workers at once; of 2 ms and more: all."""
    for step_s, every in ((5e-4, 4), (2e-3, 1), (1e-9, 16)):
        stamps = CoordinatorStamps(workers=2)
        chosen = [(stamps.begins(each % 2), stamps.has(each % 2, step_s)) for each in range(511)]
        assert all(begun == has for begun, has in chosen)
        noted = sum(begun for begun, _ in chosen[63:])
        assert (stamps.facts()["every"], noted) == (every, 64 * (7 // every))
    runs, _ = crowded
    few = []
    for run in runs:
        plain = run.meta["stamps"]
        kept = {(row[0], row[1]) for row in plain["pushes"] if row[-1] // 64 % 2}
        workers = {
            name: own | {"rows": [row for row in own["rows"] if (int(name[-1]), row[0]) in kept]}
            for name, own in plain["workers"].items()
        }
        few.append(Run(run.experiment, run.log, run.meta | {"stamps": plain | {"workers": workers}}))
    each = with_cpu_times(stamps_of(few[0]), exchanges_of(few[0].log))
    assert each.compute_s == pytest.approx((5e-3 + 32 * 2e-4) * (1 + 1e-6 * (each.push + 1)), rel=1e-9)
    found, whole = Calibration.of(few), Calibration.of(runs)
    assert found.cluster["cores"] == pytest.approx(2.0, abs=0.15)
    assert found.cluster["seconds_per_step"] == pytest.approx(5e-3, rel=0.02)
    assert found.fitted["latency of worker 0 back, s"] == whole.fitted["latency of worker 0 back, s"]


@pytest.mark.nightly
def test_what_codecs_take_is_fitted_and_put_on_what_has_one(tmp_path):
    """From runs with a codec alone both those with it and those without are predicted; others are refused."""
    coding = Coding(4e-3, 2e-4, 1e-4, 3e-3)
    rng = np.random.default_rng(0)
    links = {"name": "trace", "seconds": (1e-3 * rng.lognormal(0, 0.2, (8, 200))).tolist()}
    bare = TRUTH | {"link_time": links}
    coded = PLAIN.but(strategy={"name": "bsp", "codec": "fp16"}, cluster=with_codec(bare, coding))
    coded = coded.but(stop={"updates": 100})
    asp = coded.but(strategy={"name": "asp", "codec": "fp16"}, batch_size=64, stop={"updates": 400})
    runs = [ps.run(coded), ps.run(asp)]
    message_s = coded.cluster.service.message_s
    for run in runs:
        run.meta["coordinator"] = {"pushes": 400, "serving_s": 800 * message_s, "handled_s": 800 * message_s}
    without = Calibration.of(runs)
    assert any("fp16" in each and "no times of it" in each for each in without.unknown)
    with pytest.raises(ps.SpecError, match=r"the time of codec fp16.* was not measured"):
        ps.predict(without, [{"name": "ssp", "codec": "fp16"}], seeds=2)
    for run in runs:
        stamps = stamped(run, 1e-4).meta["stamps"]
        for own in stamps["workers"].values():
            own |= times(encoding=coding.worker_encodes, decoding=coding.worker_decodes)
        served = times(encoding=coding.server_encodes, decoding=coding.server_decodes, updating=5e-5)
        served |= {"waiting": [[1.0]] * 400, "serving": [[2 * message_s]] * 400}
        stamps["servers"] = {"server 0": served, "server 1": served | {"serving": [[4 * message_s]] * 400}}
    found = Calibration.of(runs)
    ((name, measured),) = found.codecs.items()
    assert name.startswith("fp16")
    assert measured == pytest.approx(coding)
    assert found.fitted["update at a server, s"].value == pytest.approx(5e-5)
    assert found.fitted["service of a message, s"].value == pytest.approx(1e-4)
    assert found.cluster["service"]["message_s"] == pytest.approx(1e-4)
    later = (4 * message_s - coding.server_decodes - coding.server_encodes) / 2
    assert found.fitted["service of a message at server 1, s"].value == pytest.approx(later)
    assert any(each.startswith("server 1: ") and "1 others waiting" in each for each in found.remarks)
    # where all runs have both servers, a message is as late as at the one that takes longer
    named = [
        ({"name": name, "codec": "fp16", "servers": 2}, run)
        for name, run in zip(("bsp", "asp"), runs, strict=True)
    ]
    two = Calibration.of([Run(run.experiment.but(strategy=each), run.log, run.meta) for each, run in named])
    assert two.cluster["service"]["message_s"] == pytest.approx(later)
    found.to_yaml(tmp_path / "profile.yaml")
    found = Calibration.read(tmp_path / "profile.yaml")
    for codec, cluster in (("none", bare), ("fp16", coded.cluster)):
        ssp = {"name": "ssp", "codec": codec}
        predicted = ps.predict(found, [ssp], seeds=2).rows[0].update_s.mean
        truth = measures_of(ps.run(coded.but(strategy=ssp, cluster=cluster, stop={"epochs": 20}))).update_s
        assert predicted == pytest.approx(truth, rel=0.05)


def times(**seconds):
    """Return as stamps have them so many equal stays of each name."""
    return {name: [[each]] * 40 for name, each in seconds.items()}


def test_stamps_of_clocks_that_run_apart_or_cut_off_are_refused(crowded):
    runs, _ = crowded
    first, (apart, cut) = runs[0], (Run(run.experiment, run.log, dict(run.meta)) for run in [runs[0]] * 2)
    stamped(apart, 1e-3, behind_s=0.02)
    cut.meta["stamps"] = {name: own for name, own in first.meta["stamps"].items() if name != "pushes"}
    for run, problem in (
        (apart, r"clocks of worker \d and the coordinator drift apart by 0.02 s"),
        (cut, "are truncated"),
    ):
        with pytest.raises(ps.DataError, match=problem):
            Calibration.of([run])


def test_an_epoch_takes_as_long_as_its_versions():
    """Under a barrier every version is of a whole batch; the last pushes of the one before counted, too."""
    run = ps.run(toy_experiment("bsp", stop={"updates": 5}, timing_only=True))
    found = measures_of(run)
    assert found.sample_s * run.experiment.batch_size == pytest.approx(found.update_s)


def predicted(name, epoch, target):
    runs = [Measures(0.1, 0.01, 0.1, np.array([0]), 1, 1)]
    return Predicted(
        name, "", runs, Band(0.1, 0.1, 0.1), Band(*epoch), None if target is None else Band(*target)
    )


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_of_a_prediction_has_no_fault_that_axe_finds(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    path = browser_path()
    if path is None:
        pytest.skip("no browser found")
    rows = [predicted("bsp", (5.0, 4.9, 5.1), (20.0, 19.0, 21.0)), predicted("asp", (3.0, 2.0, 35.0), None)]
    written = write_prediction(Predictions(rows, 0.9, 5, over=""), tmp_path / "predicted.html")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        web = browser.new_context(offline=True).new_page()
        web.goto(written.as_uri())
        web.wait_for_selector("body[data-state=drawn]")
        found = violations(web, "body")
        browser.close()
    assert found == []


def test_what_misses_the_target_is_neither_the_quickest_nor_tied():
    reached = predicted("bsp", (5.0, 4.9, 5.1), (20.0, 19.0, 21.0))
    for epoch in ((3.0, 2.0, 35.0), (19.0, 18.0, 22.0)):
        missed = predicted("asp", epoch, None)
        found = Predictions([reached, missed], 0.9, 5, over="x")
        assert (found.best(), found.ties()) == (("bsp", []), [])
        assert "fastest: bsp\nnot distinguishable: none" in str(found)
        assert Predictions([missed], 0.9, 5).best() == ("asp", [])
