"""Servers, decisions and latencies that take time, against closed forms of a queue."""

import numpy as np
import pytest

import psbench as ps
from psbench.backends.simulated.shared_cores import SharedCores
from psbench.clusters import Homogeneous, Network, make_cluster
from psbench.clusters.link_times import LinkTimes
from psbench.clusters.service import ServerQueues, Service
from psbench.clusters.shared_link import SharedLink
from psbench.core.log import Kind
from psbench.seeds import Streams

STEP, MESSAGE, DECISION = 1.0, 0.01, 0.001
#: no time but that of steps and of what a test adds
BARE = {
    **{"seconds_per_sample": 1e-12, "seconds_per_step": STEP, "step_time": "constant"},
    **{"latency_s": 0.0, "bandwidth_mbit_s": 1e12, "server_bandwidth_mbit_s": 1e12},
}
SERVICE = {"message_s": MESSAGE, "decision_s": DECISION}


def versions(strategy, updates, workers=3, **cluster):
    """Return when each version was made."""
    cluster = BARE | {"workers": workers, "service": SERVICE} | cluster
    stop, timing = {"updates": updates}, {"timing_only": True}
    run = ps.run(ps.Experiment(strategy=strategy, cluster=cluster, stop=stop, **timing))
    made = run.log.of_kind(Kind.APPLY)
    return np.array([made["time_s"][made["version"] == v + 1][0] for v in range(updates)])


def test_a_barrier_waits_for_pushes_and_answers_one_after_another():
    """Answers leave a message apart, so pushes come; each is served after the one before."""
    every = STEP + MESSAGE + 3 * (MESSAGE + DECISION)
    assert np.diff(versions("bsp", 4)) == pytest.approx(every)


def test_a_saturated_server_makes_a_version_in_each_service_time():
    """ASP, steps far shorter than 20 workers' services: a push, a decision and an answer for each version."""
    found = versions("asp", 200, workers=20, seconds_per_step=1e-9)
    assert np.diff(found)[50:].mean() == pytest.approx(2 * MESSAGE + DECISION)


def test_two_servers_serve_side_by_side_and_bytes_take_time():
    """Half the bytes each; a decision waits for the first server's queue alone."""
    service = {"byte_s": 1e-6}
    one, two = (
        versions({"name": "bsp", "placement": {"name": "parameter_server", "servers": n}}, 3, service=service)
        for n in (1, 2)
    )
    alone, together = np.diff(one) - STEP, np.diff(two) - STEP
    assert together == pytest.approx(alone / 2, rel=0.01)


@pytest.mark.parametrize(
    ("shares", "handled", "short"),
    [
        ([0.75, 0.25], 4.25, 4.25),  # the first server's slice takes 1 + 3 s, and a decision follows
        ([0.25, 0.75], 4.0, 2.25),  # the other server's slice takes longer than the first's and a decision
        ([0.0, 1.0], 5.0, 0.25),  # the first server decides, and is sent nothing
        ([1.0, 0.0], 5.25, 5.25),
    ],
)
def test_a_message_is_handled_when_its_slowest_slice_is(shares, handled, short):
    """Eight bytes at 0.5 s; what has no vector waits for the coordinator alone, which is the first server."""
    queues = ServerQueues(Service(message_s=1.0, byte_s=0.5, decision_s=0.25), shares)
    assert queues.take("push", 8, now=0.0) == handled
    assert queues.answer(0, now=0.0) == short
    again = ServerQueues(Service(message_s=1.0, byte_s=0.5, decision_s=0.25), shares)
    again.load_state_dict(queues.state_dict())
    assert again.answer(8, now=0.5) == queues.answer(8, now=0.5)


def test_a_collective_is_ordered_and_confirmed_by_a_coordinator():
    """Ready, order, four hops of a ring of three, confirmation, release: eight latencies, and a decision.

    The others' decisions are over before the ring is.
    """
    every = np.diff(versions("all_reduce", 3, latency_s=0.1))
    assert every == pytest.approx(STEP + 8 * 0.1 + DECISION)


def test_latencies_vary_and_a_window_adds_round_trips():
    """The same draws whatever the other direction takes; a message over the window waits for an answer."""
    given = {"workers": 2, "bandwidth_mbit_s": 1e12, "server_bandwidth_mbit_s": 1e12, "latency_s": 0.01}
    seconds = {"name": "trace", "order": "in_order", "seconds": [[0.1, 0.2], [0.3], [0.5], [0.6]]}
    profile = Homogeneous(**given, link_time=seconds).profile()
    network = Network(profile, times=LinkTimes(profile, Streams(0)))
    took = [network.up(0, 1, 0.0), network.up(1, 1, 0.0), network.up(0, 1, 0.0), network.down(1, 1, 0.0)]
    assert took == pytest.approx([0.1, 0.3, 0.2, 0.6])
    window = Homogeneous(**given, first_window_bytes=14_480)
    assert Network(window.profile()).up(0, 19_240, 0.0) == pytest.approx(0.03)
    whole = Homogeneous(**given, link_time=seconds, service=SERVICE, achieved_rates=[(0, 2)])
    assert make_cluster(whole.model_dump(mode="json")) == whole
    with pytest.raises(ps.SpecError, match="seconds of 4 workers, but the cluster has 6"):
        Homogeneous(workers=3, link_time=seconds)


@pytest.mark.parametrize("link_sharing", ["in_turn", "equal"])
def test_small_messages_may_achieve_less_of_a_link(link_sharing):
    """4,000 bytes at 2 Mbit/s take 16 ms, 8,000 at 8 take 8; of two servers, and in a ring, by the slice."""
    given = {"workers": 2, "bandwidth_mbit_s": 16, "server_bandwidth_mbit_s": 16, "latency_s": 0.01}
    given |= {"achieved_rates": [(0, 2), (8000, 8), (1e6, 99)], "link_sharing": link_sharing}
    profile = Homogeneous(**given).profile()
    for way in ("up", "down"):
        took = [getattr(Network(profile), way)(0, size, 0.0) for size in (4000, 8000, 2_000_000)]
        assert took == pytest.approx([0.026, 0.018, 1.01])
    assert Network(profile, servers=2).up(0, 8000, 0.0) == pytest.approx(0.026)
    assert Network(profile).ring(8000, [0, 1]) == pytest.approx(2 * 0.026)
    assert Network(profile).star(4000, 8000, [0]) == pytest.approx(0.026 + 0.018)
    for wrong, problem in {
        ((8, 2), (0, 8)): "increasing sizes",
        ((0, 0),): "from 0 bytes must be positive",
    }.items():
        with pytest.raises(ps.SpecError, match=problem):
            Homogeneous(**given | {"achieved_rates": wrong})


@pytest.mark.parametrize("strategy", ["bsp", {"name": "local_sgd", "local_steps": 2}])
def test_messages_at_once_share_a_link_equally(strategy):
    """Three models down and three pushes up take as long as three one after another, both ways.

    In turn, the first worker's push passes while the last one's model does: they take four slots, not six.
    """
    slot = 19_240 * 8e-6 / 8
    slow = {"service": {}, "bandwidth_mbit_s": 8, "server_bandwidth_mbit_s": 8}
    steps = STEP * (1 if strategy == "bsp" else 2)
    equal, in_turn = (
        np.diff(versions(strategy, 4, **slow, link_sharing=each)) for each in ("equal", "in_turn")
    )
    assert (equal, in_turn) == (pytest.approx(steps + 6 * slot), pytest.approx(steps + 4 * slot))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "link_sharing"),
    [("bsp", "in_turn"), ({"name": "local_sgd", "local_steps": 2}, "equal"), ("asp", "in_turn")],
)
def test_steps_share_the_cores_of_one_machine(strategy, link_sharing):
    """Four workers at once on two cores compute for twice as long, on four or more as on their own."""
    bare = {"workers": 4, "service": {}, "link_sharing": link_sharing}
    alone, two, four = (np.diff(versions(strategy, 4, **bare, cores=each)) for each in (0, 2, 4))
    assert four == pytest.approx(alone)
    assert two == pytest.approx(2 * alone, rel=1e-6)


def test_a_step_that_is_cancelled_keeps_its_core():
    """As a live worker's does: its worker's next step begins after it, and others share with it."""
    cores = SharedCores(1.0)
    assert cores.begin(0, 1.0, now=0.0) == 1.0
    assert cores.begin(1, 1.0, now=0.5) == pytest.approx(2.0)
    assert (cores.free_s(0), cores.free_s(2)) == (pytest.approx(1.5), 0.0)
    steps = {"name": "trace", "order": "in_order", "seconds": [[1.0, 1.0], [1.5, 0.2]]}
    pair, one_of_two = (
        {"workers": 2, "step_time": steps},
        {"name": "backup_workers", "spares": 1, "cancel": "immediate"},
    )
    found = [versions(one_of_two, 2, **pair, service={}, cores=each).tolist() for each in (0, 2)]
    assert found == [pytest.approx([1.0, 1.2]), pytest.approx([1.0, 1.7])]


def test_a_shared_link_is_fair_up_to_what_each_can_take():
    """One takes a tenth of the link at most; the other two get half of the rest; then all of it."""
    link = SharedLink(10.0)
    for what, size, rate in (("slow", 1.0, 1.0), ("a", 4.5, 10.0), ("b", 9.0, 10.0)):
        link.begin(what, size, rate, now=0.0)
    # until 1.0 all three; then b alone, at ten
    assert [link.ends(each) for each in ("slow", "a", "b")] == pytest.approx([1.0, 1.0, 1.45])
    link.begin("late", 5.0, rate=10.0, now=1.2)
    assert [link.ends("b"), link.ends("late")] == pytest.approx([1.7, 1.95])


def test_a_resumed_run_finds_servers_as_busy_and_links_where_they_were(tmp_path):
    links = {"latency_s": 0.1, "link_time": {"name": "lognormal", "sigma": 0.3}}
    cluster = BARE | links | {"workers": 3, "service": SERVICE | {"message_s": 0.4}}
    experiment = ps.Experiment(strategy="bsp", cluster=cluster, stop={"epochs": 2}, checkpoint_every=1)
    whole = ps.run(experiment)
    ps.run(experiment.but(stop={"epochs": 1}), folder=tmp_path / "run")
    resumed = ps.resume(tmp_path / "run", {"stop.epochs": 2})
    assert resumed.log.columns()["time_s"].tolist() == whole.log.columns()["time_s"].tolist()
