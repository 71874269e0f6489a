"""Clusters by name, in place, and refused."""

import heapq
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from psbench.backends.schedule import membership_events
from psbench.clusters import (
    C1,
    C2,
    Constant,
    Custom,
    DbsSgd,
    Failure,
    Hermes,
    Homogeneous,
    Network,
    StepTimes,
    make_cluster,
)
from psbench.core.part import REGISTRY
from psbench.errors import ParameterError, UnknownName
from psbench.seeds import Streams

NAMES = sorted(REGISTRY["cluster"])
#: machines as (flavour, vCPU, GB): how many
TABLES = {
    "c1": {("m1.xlarge1", 8, 32): 5},
    "c2": {("m1.xlarge1", 8, 32): 5, ("m1.large3", 4, 16): 2, ("regale-small", 2, 8): 2},
    "hermes": {
        ("B1ms", 1, 2): 2,
        ("F2s_v2", 2, 4): 3,
        ("DS2_v2", 2, 7): 3,
        ("E2ds_v4", 2, 16): 2,
        ("F4s_v2", 4, 8): 2,
    },
    "sharding_testbed": {("4 CPU, 16 GB", 4, 16): 12},
    "dbs_sgd": {("1.0 CPU", 1, 5): 2, ("1.5 CPU", 1.5, 5): 2},
    "adacomm": {("TitanX", None, 12): 4},
    "okeanos": {("2 vCPU, 8 GB", 2, 8): 140},
    "halos_geo": {(f"region {number}", None, 8): 4 for number in range(4)},
    "asyncdiloco_toy": {("", None, 8): 4},
}


def test_all_published_test_beds_are_checked_against_their_tables():
    assert set(TABLES) | {"homogeneous", "custom"} == set(NAMES)


@pytest.mark.parametrize("name", TABLES)
def test_test_bed_is_the_one_of_the_paper(name):
    rows = make_cluster(name).describe()
    assert [row["worker"] for row in rows] == list(range(len(rows)))
    assert Counter((row["flavour"], row["vcpu"], row["memory_gb"]) for row in rows) == TABLES[name]


#: simulators of others, whose times do not vary
EXACT = {"halos_geo", "asyncdiloco_toy"}


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_random_and_have_a_fastest_worker_of_speed_one(name):
    cluster = make_cluster(name)
    profile = cluster.profile()
    assert isinstance(cluster.step_time, Constant) == (name in EXACT)
    assert max(profile.speed) == 1.0
    assert profile.num_workers == cluster.num_workers == len(profile.starters)
    assert cluster.source
    assert make_cluster(json.loads(cluster.model_dump_json())) == cluster


def test_steps_take_as_long_as_in_the_simulator_of_halos():
    """utnslab/halos 4b5bf73: examples/env.yaml, src/halos/simulation/common.py line 447, utils.py line 53."""
    speeds = np.array([0.232, 0.907, 0.828, 0.347, 0.574, 0.531, 0.722, 0.194])
    speeds = np.append(speeds, [0.852, 0.132, 0.896, 0.107, 0.827, 0.515, 0.527, 0.788])
    speeds /= speeds.max()
    profile = make_cluster("halos_geo").profile()
    found = [profile.mean_step_s(worker, 64) for worker in range(16)]
    np.testing.assert_allclose(found, 0.238391 / speeds)


def test_everything_that_may_happen_serialises():
    cluster = make_cluster(
        {
            "name": "c2",
            "step_time": {"name": "trace", "factors": [1, 2]},
            "bandwidth_mbit_s": [100] * 9,
            "slowdowns": [{"worker": 1, "from_s": 1, "to_s": 2, "factor": 3}],
            "failures": [{"worker": 2, "at_s": 1, "rejoin_s": 2}, {"worker": 2, "at_s": 5}],
            "joins": [{"worker": 8, "at_s": 4}],
        }
    )
    profile = cluster.profile()
    assert profile.failures[0] == Failure(worker=2, at_s=1, rejoin_s=2)
    assert profile.starters == tuple(range(8))
    assert profile.bandwidth_mbit_s == (100.0,) * 9
    assert make_cluster(json.loads(cluster.model_dump_json())) == cluster


@pytest.mark.parametrize("name", NAMES)
def test_common_fields_may_be_overridden_on_every_cluster(name):
    profile = make_cluster(
        {
            "name": name,
            "step_time": {"name": "lognormal", "sigma": 0.5},
            "seconds_per_sample": 0.25,
            "bandwidth_mbit_s": 7,
            "latency_s": 0,
            "failures": [{"worker": 1, "at_s": 2}],
        }
    ).profile()
    assert profile.step_time.model_dump() == {
        "name": "lognormal",
        "sigma": 0.5,
        "correlation": 0.0,
        "shift": 0.0,
        "stalls": 0.0,
        "stall": 0.0,
    }
    assert (profile.seconds_per_sample, set(profile.bandwidth_mbit_s), set(profile.latency_s)) == (
        0.25,
        {7},
        {0},
    )
    assert profile.failures[0].worker == 1


def test_a_mapping_without_a_name_is_a_custom_cluster():
    cluster = make_cluster({"workers": 4, "speed": [1, 1, 1, 0.5]})
    assert isinstance(cluster, Custom)
    assert cluster.profile().speed == (1.0, 1.0, 1.0, 0.5)
    assert make_cluster(cluster) is cluster


def test_dbs_sgd_has_four_or_eight_nodes():
    assert Counter(row["vcpu"] for row in DbsSgd(nodes=8).describe()) == {1.0: 4, 1.5: 4}
    assert min(DbsSgd().profile().speed) == pytest.approx(0.78, abs=0.005)


def test_speed_is_a_power_of_the_cores():
    assert C2().profile().speed == (1,) * 5 + (0.5,) * 2 + (0.25,) * 2
    assert C2(core_scaling=0.5).profile().speed[-1] == 0.5
    assert set(C2(core_scaling=0).profile().speed) == {1.0}


@pytest.mark.parametrize(
    ("cluster", "gain"), [(C1(), 1.0), (C2(), 2.89), (Hermes(), 2.17), (C2(core_scaling=0.61), 1.86)]
)
def test_formula_column_of_the_table_of_speeds(cluster, gain):
    speed = cluster.profile().speed
    assert sum(speed) / (len(speed) * min(speed)) == pytest.approx(gain, abs=0.005)


@pytest.mark.parametrize(
    ("cluster", "model_bytes", "gain"),
    [
        (C1(), 1.08e6, 1.14),
        (C1(seconds_per_sample=1.69e-3), 1.88e6, 1.11),
        (C2(), 1.08e6, 2.16),
        (C2(seconds_per_sample=1.69e-3), 1.88e6, 2.07),
    ],
)
def test_played_column_of_the_table_of_speeds(cluster, model_bytes, gain):
    profile = cluster.profile()
    batch = round(128 / profile.num_workers)
    played = _free_rate(profile, batch, model_bytes) / _ring_rate(profile, batch, model_bytes)
    assert played == pytest.approx(gain, abs=0.02)


def _ring_rate(profile, batch, model_bytes, rounds=4000):
    """Steps a second of all workers under All-Reduce."""
    times, workers, now = StepTimes(profile, Streams(0)), range(profile.num_workers), 0.0
    ring = Network(profile).ring(model_bytes, workers)
    for _ in range(rounds):
        now += max(times.next(worker, batch, now) for worker in workers) + ring
    return rounds * profile.num_workers / now


def _free_rate(profile, batch, model_bytes, steps=36_000):
    """Steps a second of all workers under ASP: compute, push, pull, no worker waits."""
    times, network, done = StepTimes(profile, Streams(0)), Network(profile), 0
    queue = [(times.next(worker, batch, 0.0), worker, "push") for worker in range(profile.num_workers)]
    heapq.heapify(queue)
    while True:
        now, worker, what = heapq.heappop(queue)
        if what == "push":
            heapq.heappush(queue, (network.up(worker, model_bytes, now), worker, "serve"))
        elif what == "serve":
            done += 1
            if done == steps:
                return done / now
            heapq.heappush(queue, (network.down(worker, model_bytes, now), worker, "step"))
        else:
            heapq.heappush(queue, (now + times.next(worker, batch, now), worker, "push"))


def two(**values):
    return {"name": "custom", "workers": 2, **values}


REFUSED = [
    ({"workers": 4, "speed": [1, 1]}, "cluster 'custom': speed has 2 values for 4 workers"),
    ({"workers": 2, "memory_gb": [1, 1, 1]}, "cluster 'custom': memory_gb has 3 values for 2 workers"),
    ({"workers": 0}, "cluster 'custom': workers: must be greater than or equal to 1, got 0"),
    ({"name": "c2", "latency_s": [1, 2]}, "cluster 'c2': latency_s has 2 values for 9 workers"),
    (
        {"name": "c2", "bandwidth_mbit_s": "abc"},
        "cluster 'c2': bandwidth_mbit_s: expected a number, or a list",
    ),
    (
        {"name": "c1", "bandwidth_mbit_s": 0},
        "cluster 'c1': bandwidth_mbit_s of worker 0 must be positive, got 0.0",
    ),
    ({"name": "c1", "latency_s": -1}, "cluster 'c1': latency_s of worker 0 must be zero or more, got -1.0"),
    (
        {"name": "c1", "server_bandwidth_mbit_s": 0},
        "cluster 'c1': server_bandwidth_mbit_s must be positive, got 0.0",
    ),
    (
        {"name": "c1", "seconds_per_sample": 0},
        "cluster 'c1': seconds_per_sample: must be greater than 0",
    ),
    ({"name": "c1", "seconds_per_step": float("nan")}, "cluster 'c1': seconds_per_step: must be finite"),
    (
        {"name": "c1", "core_scaling": 2},
        "cluster 'c1': core_scaling: must be less than or equal to 1",
    ),
    (two(speed=[1, 0]), "cluster 'custom': speed of worker 1 must be positive, got 0.0"),
    (two(speed=[1, float("inf")]), "cluster 'custom': speed of worker 1 must be positive, got inf"),
    (two(memory_gb=-1), "cluster 'custom': memory_gb of worker 0 must be positive, got -1.0"),
    (
        {"name": "homogeneous", "memory_gb": 0},
        "cluster 'homogeneous': memory_gb: must be greater than 0",
    ),
    ({"name": "dbs_sgd", "nodes": 5}, "cluster 'dbs_sgd': nodes: must be 4 or 8, got 5"),
    (
        {"name": "okeanos", "workers": 141},
        "cluster 'okeanos': workers: must be less than or equal to 140",
    ),
    (
        {"step_time": {"name": "pareto", "shape": 1}},
        "step_time 'pareto': shape: must be greater than 1",
    ),
    (
        {"step_time": {"name": "lognormal", "sigma": 0}},
        "step_time 'lognormal': sigma: must be greater",
    ),
    (
        {"step_time": {"name": "shifted_exponential", "spread": 1.5}},
        "step_time 'shifted_exponential': spread",
    ),
    ({"step_time": {"name": "trace", "factors": [1, 0]}}, "step_time 'trace': factors must be positive"),
    (
        {"step_time": {"name": "trace", "factors": []}},
        "step_time 'trace': factors: must have at least 1",
    ),
    ({"step_time": 3}, "step_time: expected a name or a mapping with a name, got 3"),
    (
        two(slowdowns=[{"worker": 2, "from_s": 0, "to_s": 1, "factor": 2}]),
        "slowdown of worker 2, but the workers are 0 to 1",
    ),
    (
        two(slowdowns=[{"worker": 0, "from_s": 5, "to_s": 5, "factor": 2}]),
        "slowdown of worker 0: from_s = 5 must be before to_s = 5",
    ),
    (
        two(slowdowns=[{"worker": 0, "from_s": 1, "to_s": 5, "factor": 0}]),
        "slowdown: factor: must be greater",
    ),
    (two(slowdowns=[{"worker": 0, "from_s": 1, "to_s": 5}]), "slowdown: factor: is required"),
    (two(failures=[{"worker": 7, "at_s": 1}]), "failure of worker 7, but the workers are 0 to 1"),
    (
        two(failures=[{"worker": -1, "at_s": 1}]),
        "failure: worker: must be greater than or equal to 0",
    ),
    (
        two(failures=[{"worker": 1, "at_s": 2, "rejoin_s": 2}]),
        "failure of worker 1: at_s = 2 must be before rejoin_s = 2",
    ),
    (
        two(failures=[{"worker": 1, "at_s": 2}, {"worker": 1, "at_s": 3}]),
        "worker 1 fails at 3 s, when it is not in the run",
    ),
    (
        two(failures=[{"worker": 1, "at_s": 2}], joins=[{"worker": 1, "at_s": 3}]),
        "worker 1 fails at 2 s, when it is not in the run",
    ),
    (two(failures=3), "cluster 'custom': failures: must be a list, got 3"),
    (two(joins=[{"worker": 2, "at_s": 1}]), "late join of worker 2, but the workers are 0 to 1"),
    (two(joins=[{"worker": 1, "at_s": 0}]), "late join: at_s: must be greater than 0, got 0"),
    (two(joins=[{"worker": 1, "at_s": 1}, {"worker": 1, "at_s": 2}]), "worker 1 joins late twice"),
    (two(joins=[{"worker": w, "at_s": 1} for w in (0, 1)]), "every worker joins late"),
    (7, "cluster: expected a name or a mapping with a name, got 7"),
    (Constant(), "'constant' is a step_time part, not a cluster part"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_is_refused_with_its_name(value, message):
    with pytest.raises(ParameterError) as error:
        make_cluster(value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("c3", "unknown cluster part 'c3'; did you mean 'c2'"),
        ({"sped": 1}, "unknown parameter of cluster 'custom' 'sped'; did you mean 'speed'"),
        ({"step_time": "lognorm"}, "unknown step_time part 'lognorm'; did you mean 'lognormal'"),
        (two(failures=[{"worker": 1, "at": 1}]), "unknown parameter of failure 'at'; did you mean 'at_s'"),
    ],
)
def test_misspelt_names_are_answered_with_the_nearest(value, message):
    with pytest.raises(UnknownName) as error:
        make_cluster(value)
    assert message in str(error.value)


def test_a_profile_made_by_hand_is_checked_too():
    profile = Homogeneous(workers=2).profile()
    with pytest.raises(ParameterError, match="cluster 'homogeneous': vcpu has 1 values for 2 workers"):
        replace(profile, vcpu=(None,))
    with pytest.raises(ParameterError, match="seconds_per_step must be zero or more, got -1"):
        replace(profile, seconds_per_step=-1)
    with pytest.raises(ParameterError, match="server_bandwidth_mbit_s must be positive, got 0"):
        replace(profile, server_bandwidth_mbit_s=0)
    with pytest.raises(ParameterError, match="needs at least one worker"):
        replace(profile, speed=())


def test_what_has_happened_by_then_does_not_happen_again():
    failures = [{"worker": 1, "at_s": 1.0, "rejoin_s": 2.0}]
    profile = Homogeneous(workers=2, failures=failures).profile()
    for after_s, times in ((-1.0, [1.0, 2.0]), (0.5, [1.0, 2.0]), (1.0, [2.0]), (2.0, [])):
        assert [at_s for at_s, _ in membership_events(profile, after_s)] == times
