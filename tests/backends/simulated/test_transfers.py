"""Virtual time of messages against closed forms: collectives, hand-overs, newcomers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from psbench import strategies
from psbench.core.log import Kind
from psbench.runs.execution import run
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster

LATENCY, RATE = 0.01, 1e6  # seconds; bytes per second, of 8 Mbit/s
MODEL = 4 * 15  # bytes of the toy's model


def logged(strategy, workers=4, updates=3, cluster=None, **changes):
    """Run a toy without gradients on equal machines; a step of b samples takes 1 + b ms."""
    links = {"latency_s": LATENCY, "bandwidth_mbit_s": 8.0, "server_bandwidth_mbit_s": 8.0}
    specification = toy_cluster([1.0] * workers, **links | (cluster or {}))
    changes = {"cluster": specification, "stop": {"updates": updates}, "timing_only": True} | changes
    return run(toy_experiment(strategy, **changes)).log


def update_times(log):
    return sorted({float(time) for time in log.of_kind(Kind.APPLY)["time_s"]})


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_round_of_all_reduce_is_a_step_and_a_ring(workers):
    """Patarasuk and Yuan (2009): 2 (n - 1) messages of 1/n of the vector, and no other message."""
    step = 0.001 + 0.012 / workers
    ring = 2 * (workers - 1) * (LATENCY + MODEL / workers / RATE)
    first, *others = update_times(logged("all_reduce", workers))
    assert first == pytest.approx(step)  # all replicas are built from one seed
    rounds = [later - earlier for earlier, later in pairwise([first, *others])]
    assert rounds == pytest.approx([step + ring] * 2)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_round_of_map_reduce_is_a_job_a_step_and_two_trees(workers):
    """The formula of `MapReduce`; partitions are of equal size here."""
    strategy = strategies.map_reduce(job_s=0.5, scan_s_per_sample=0.002)
    step, scan = 0.001 + 0.012 / workers, 96 / workers * 0.002
    tree = {1: 1, 4: 3}[workers] * (LATENCY + MODEL / RATE)
    first, *others = update_times(logged(strategy, workers))
    assert first == pytest.approx(0.5 + scan + tree + step)
    rounds = [later - earlier for earlier, later in pairwise([first, *others])]
    assert rounds == pytest.approx([0.5 + scan + step + 2 * tree] * 2)


def test_a_round_of_a_server_is_a_step_and_a_message_each_way():
    """One worker, so that no link is shared; the first model is sent like every other."""
    message = LATENCY + MODEL / RATE
    assert update_times(logged("bsp", 1)) == pytest.approx([n * (0.013 + 2 * message) for n in (1, 2, 3)])


def test_who_joins_all_reduce_is_sent_the_model_before_its_first_step():
    cluster = {"joins": [{"worker": 3, "at_s": 0.05}]}
    log = logged("all_reduce", updates=8, cluster=cluster)
    pushes = log.of_kind(Kind.PUSH)
    (joined,) = (float(time) for time in log.of_kind(Kind.JOIN)["time_s"] if time > 0)
    releases = log.of_kind(Kind.RELEASE)
    released = min(float(t) for t in releases["time_s"][releases["worker"] == 3])
    first = min(float(t) for t in pushes["time_s"][pushes["worker"] == 3])
    assert released >= joined
    assert first >= released + LATENCY + MODEL / RATE + 0.004 - 1e-12


def test_after_servers_every_worker_of_all_reduce_is_sent_the_model():
    """The servers' link sends one copy after another; the last worker's step ends the first round."""
    rule = {"name": "after", "fraction": 0.5}
    switch = {"name": "strategy_switch", "first": "bsp", "second": "all_reduce", "rule": rule, "cost_s": 2.0}
    log = logged(switch, stop={"epochs": 1})
    handed_over = float(log.of_kind(Kind.HANDOVER)["time_s"][0])
    pushes = log.of_kind(Kind.PUSH)["time_s"]
    first_round = sorted(float(time) for time in pushes if time > handed_over)[:4]
    copies = [LATENCY + (n + 1) * MODEL / RATE for n in range(4)]
    assert first_round == pytest.approx([handed_over + 2.0 + copy + 0.004 for copy in copies])


def test_a_collective_that_follows_servers_of_different_speed_has_the_fastest_link():
    """Each worker is sent the model once, over the link of one server."""
    servers = {"name": "parameter_server", "servers": 2}
    rule = {"name": "after", "fraction": 0.5}
    switch = {"name": "strategy_switch", "first": {"name": "bsp", "placement": servers}, "rule": rule}
    links = {"server_bandwidth_mbit_s": [0.08, 8.0]}
    log = logged(switch | {"second": "all_reduce", "cost_s": 0.0}, 2, cluster=links, stop={"epochs": 1})
    handed_over = float(log.of_kind(Kind.HANDOVER)["time_s"][0])
    first = min(float(time) for time in log.of_kind(Kind.PUSH)["time_s"] if time > handed_over)
    assert first == pytest.approx(handed_over + LATENCY + MODEL / RATE + 0.007)
