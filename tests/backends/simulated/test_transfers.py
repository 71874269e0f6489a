"""Virtual time of messages against closed forms: collectives, hand-overs, newcomers."""

from __future__ import annotations

import pytest

from psbench import replay, strategies
from psbench.core.log import Kind
from psbench.metrics import timeline
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
    log = logged("all_reduce", workers)  # all replicas are built from one seed
    assert update_times(log) == pytest.approx([n * (step + ring) for n in (1, 2, 3)])


def test_version_evaluation_and_end_stand_after_their_ring():
    """Two workers of which one is half as fast: it ends its step after 0.014 s, and then begins the ring."""
    ring = 2 * (LATENCY + MODEL / 2 / RATE)
    links = {"latency_s": LATENCY, "bandwidth_mbit_s": 8.0}
    experiment = toy_experiment("all_reduce", cluster=toy_cluster([1.0, 0.5], **links), stop={"updates": 2})
    done = run(experiment.but(evaluate_every=12 / 96))
    versions = [0, 0.014 + ring, 2 * (0.014 + ring)]
    assert [(e["version"], e["time_s"]) for e in done.log.evaluations()] == [
        (n, pytest.approx(at_s)) for n, at_s in enumerate(versions)
    ]
    assert done.meta["time_s"] == pytest.approx(versions[2])
    assert update_times(done.log) == pytest.approx(versions[1:])
    spans = timeline(done.log)
    lasted = (
        (spans["end_s"] - spans["start_s"]).groupby([spans["worker"], spans["phase"]], observed=True).sum()
    )
    assert lasted.to_dict() == {
        (0, "compute"): pytest.approx(2 * 0.007),
        (0, "wait"): pytest.approx(2 * 0.007),  # for worker 1's step, and not for the ring
        (0, "pull"): pytest.approx(2 * ring),
        (1, "compute"): pytest.approx(2 * 0.014),
        (1, "send"): pytest.approx(2 * ring),
    }
    assert done.summary()["idle_fraction"] == pytest.approx([0.007 / (0.014 + ring), 0.0])
    assert replay(done) == len(done.log)


def test_a_ring_that_loses_its_first_worker_is_begun_again():
    """Workers 0 and 1 wait for worker 2, which is lost 10 ms after its step, in the midst of the ring."""
    links = {"latency_s": LATENCY, "bandwidth_mbit_s": 8.0}
    cluster = toy_cluster([1.0, 1.0, 0.5], failures=[{"worker": 2, "at_s": 0.019}], **links)
    log = run(toy_experiment("all_reduce", cluster=cluster, stop={"updates": 3}, timing_only=True)).log
    step, ring = 0.005, 2 * (LATENCY + MODEL / 2 / RATE)
    first, second, third = update_times(log)
    assert first == pytest.approx(0.019)  # the engine commits what it has, and the ring of two follows
    assert second - first == pytest.approx(ring + step + ring)
    assert third - second == pytest.approx(step + ring)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_round_of_map_reduce_is_a_job_a_step_and_two_trees(workers):
    """The formula of `MapReduce`; partitions are of equal size here."""
    strategy = strategies.map_reduce(job_s=0.5, scan_s_per_sample=0.002)
    step, scan = 0.001 + 0.012 / workers, 96 / workers * 0.002
    tree = {1: 1, 4: 3}[workers] * (LATENCY + MODEL / RATE)
    times = update_times(logged(strategy, workers))
    assert times == pytest.approx([n * (0.5 + scan + step + 2 * tree) for n in (1, 2, 3)])


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
    """The servers' link sends one copy after another; the last worker's step begins the first ring."""
    rule = {"name": "after", "fraction": 0.5}
    switch = {"name": "strategy_switch", "first": "bsp", "second": "all_reduce", "rule": rule, "cost_s": 2.0}
    log = logged(switch, stop={"epochs": 1})
    handed_over = float(log.of_kind(Kind.HANDOVER)["time_s"][0])
    pushes = log.of_kind(Kind.PUSH)["time_s"]
    first_round = sorted(float(time) for time in pushes if time > handed_over)[:4]
    copies = [LATENCY + (n + 1) * MODEL / RATE for n in range(4)]
    ready = [handed_over + 2.0 + copy + 0.004 for copy in copies]
    ring = 2 * 3 * (LATENCY + MODEL / 4 / RATE)
    assert first_round == pytest.approx([*ready[:3], ready[3] + ring])


def test_a_collective_after_servers_of_unequal_speed_has_the_fastest_link():
    """Each worker is sent the model once, over the link of one server."""
    servers = {"name": "parameter_server", "servers": 2}
    rule = {"name": "after", "fraction": 0.5}
    switch = {"name": "strategy_switch", "first": {"name": "bsp", "placement": servers}, "rule": rule}
    links = {"server_bandwidth_mbit_s": [0.08, 8.0]}
    log = logged(switch | {"second": "all_reduce", "cost_s": 0.0}, 2, cluster=links, stop={"epochs": 1})
    handed_over = float(log.of_kind(Kind.HANDOVER)["time_s"][0])
    first = min(float(time) for time in log.of_kind(Kind.PUSH)["time_s"] if time > handed_over)
    assert first == pytest.approx(handed_over + LATENCY + MODEL / RATE + 0.007)
