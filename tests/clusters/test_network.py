"""What messages cost."""

import pytest

from psbench.clusters import Custom, Homogeneous, Network
from psbench.errors import ParameterError

MB = 1_000_000  # at 8 Mbit/s one second


def network(servers=1, workers=3, **values):
    settings = {
        "bandwidth_mbit_s": 8,
        "server_bandwidth_mbit_s": 8,
        "latency_s": 0.5,
        "server_latency_s": 0.25,
    }
    return Network(Homogeneous(workers=workers, **(settings | values)).profile(), servers)


@pytest.mark.parametrize("way", ["up", "down"])
def test_one_message_costs_latency_and_bytes_over_bandwidth(way):
    send = getattr(network(), way)
    assert send(0, 2 * MB, 10.0) == 12.5
    assert getattr(network(), way)(0, 0, 10.0) == 10.5


def test_the_slower_of_the_two_links_sets_the_pace():
    assert network(server_bandwidth_mbit_s=80).up(0, MB, 0.0) == 1.5
    assert network(bandwidth_mbit_s=80).up(0, MB, 0.0) == 1.5
    assert network(bandwidth_mbit_s=16, server_bandwidth_mbit_s=80).down(0, MB, 0.0) == 1.0


def test_a_throttled_link_has_its_part_of_the_bandwidth_while_that_lasts():
    spell = {"throttles": [{"worker": 0, "from_s": 10, "to_s": 20, "factor": 4}]}
    links = network(server_bandwidth_mbit_s=8000, **spell)
    sent = [links.up(worker, MB, now) for now in (9.0, 10.0, 19.0, 20.0) for worker in (0, 1)]
    assert sent == pytest.approx([10.5, 10.5, 14.5, 11.5, 23.5, 20.5, 21.5, 21.5], abs=0.01)
    ring = network(server_bandwidth_mbit_s=8000, latency_s=0.0, **spell)
    before = ring.ring(3 * MB, [0, 1, 2])
    ring.advance(10.0)
    assert ring.ring(3 * MB, [0, 1, 2]) == pytest.approx(4 * before)
    assert ring.ring(3 * MB, [1, 2]) == pytest.approx(before * 3 / 4)


@pytest.mark.parametrize("way", ["up", "down"])
def test_the_servers_link_serves_one_message_after_another(way):
    send = getattr(network(), way)
    assert [send(worker, MB, 0.0) for worker in range(3)] == [1.5, 2.5, 3.5]
    assert send(0, MB, 3.0) == 4.5  # free again
    assert send(1, MB, 3.25) == 5.5  # half-way through the one before


def test_directions_do_not_disturb_each_other():
    both = network()
    assert both.up(0, MB, 0.0) == both.down(1, MB, 0.0) == 1.5


def test_a_wide_server_link_takes_messages_of_slow_workers_side_by_side():
    wide = network(server_bandwidth_mbit_s=80)
    assert [wide.up(worker, MB, 0.0) for worker in range(3)] == pytest.approx([1.5, 1.6, 1.7])


def test_a_slow_worker_does_not_hold_up_the_others():
    slow_first = Custom(workers=2, bandwidth_mbit_s=[0.8, 8], server_bandwidth_mbit_s=80, latency_s=[9, 0.5])
    mixed = Network(slow_first.profile())
    assert mixed.up(0, MB, 0.0) == pytest.approx(19.0)
    assert mixed.up(1, MB, 0.0) == pytest.approx(1.6)


def test_servers_share_the_bytes_and_an_answer_takes_one_more_hop():
    two = network(servers=2, bandwidth_mbit_s=80)
    assert [two.up(0, MB, 0.0), two.up(1, MB, 0.0)] == [1.0, 1.5]
    assert [two.down(0, MB, 0.0), two.down(1, MB, 0.0)] == [1.25, 1.75]


def test_control_messages_cost_latency_and_never_queue():
    net = network(latency_s=[0.5, 0.25, 1])
    net.up(0, MB, 0.0)
    assert [net.message(worker, 2.0) for worker in range(3)] == [2.5, 2.25, 3.0]
    assert net.state_dict() == {"up_free_s": 1.0, "down_free_s": 0.0, "carried_bytes": 1e6}


@pytest.mark.parametrize("n", [2, 3, 8])
def test_ring_formula(n):
    seconds = network(workers=8).ring(MB, range(n))
    assert seconds == pytest.approx(2 * (n - 1) / n * 1.0 + 2 * (n - 1) * 0.5)


def test_two_levels_cost_what_their_rounds_do():
    """Two hosts of three: 4 rounds of a third at 80 Mbit/s and 0.1 s, 2 of a sixth at 8 Mbit/s and 0.5 s."""
    hosts = {"workers_per_host": 3, "host_bandwidth_mbit_s": 80, "host_latency_s": 0.1}
    net = network(workers=6, **hosts)
    assert net.hosts(range(6)) == [0, 0, 0, 1, 1, 1]
    groups = [[0, 1, 2], [3, 4, 5]]
    between = 2 * (1 / 6 + 0.5)
    assert net.two_levels(MB, groups, local=True) == pytest.approx(4 * (0.1 / 3 + 0.1) + between)
    assert net.two_levels(MB, groups, local=False) == pytest.approx(4 * (1 / 3 + 0.5) + between)
    uneven = 4 * (0.1 + 0.1) + 2 * (1 / 2 + 0.5)  # one piece, as the smallest group has one worker
    assert net.two_levels(MB, [[0, 1, 2], [3]], local=True) == pytest.approx(uneven)


def test_groups_over_links_that_differ_wait_for_the_slowest_pieces():
    """Two groups of two: halves within them, quarters between them, and halves again.

    Worker 3 sends at 0.25 MB/s. Its first half and its first quarter follow each other; worker 1 adds to that
    quarter and sends it back; then worker 3 hands its half of the sum to worker 2.
    """
    own = {"bandwidth_mbit_s": [8, 4, 8, 2], "bandwidth_down_mbit_s": 80}
    own |= {"peer_latency_s": [0.1, 0.2, 0.3, 0.4], "workers": 4}
    groups, racks = [[0, 1], [2, 3]], {"racks": [0, 0, 1, 1], "rack_bandwidth_mbit_s": 2}
    alone = 2.0 + (1.0 + 0.6) + (0.5 + 0.6) + (2.0 + 0.7)
    assert Network(Custom(**own).profile()).two_levels(MB, groups, False) == pytest.approx(alone)
    # two quarters at a time share a line: 2 s each
    net = Network(Custom(**own, **racks, rack_latency_s=0.1).profile())
    assert net.two_levels(MB, groups, False) == pytest.approx(2.0 + 2 * (2.0 + 0.7) + (2.0 + 0.7))
    hosts = {"host_bandwidth_mbit_s": 80, "host_latency_s": 0.25}
    net = Network(Custom(**own, **hosts).profile())
    assert net.two_levels(MB, groups, True) == pytest.approx(0.3 + (1.0 + 0.6) + (0.5 + 0.6) + 0.3)
    # and what each message takes of the processes at its ends, 60 ms between 1 and 3 and 70 between 2 and 3
    net = Network(Custom(**own, **hosts, peer_message_s=[0.01, 0.02, 0.03, 0.04]).profile())
    assert net.two_levels(MB, groups, False) == pytest.approx(alone + 0.06 + 0.06 + 0.07)
    between = (1.0 + 0.66) + (0.5 + 0.66)
    assert net.two_levels(MB, groups, True) == pytest.approx((0.3 + 0.07) + between + (0.3 + 0.07))


def test_a_ring_of_one_is_free():
    assert network().ring(MB, [2]) == network().ring(MB, []) == 0.0


def test_a_ring_goes_at_the_pace_of_its_own_slowest_member():
    cluster = Custom(workers=3, bandwidth_mbit_s=[8, 4, 8], latency_s=[0.5, 0.0, 0.25])
    net = Network(cluster.profile())
    assert net.ring(MB, [0, 1]) == pytest.approx(2.0 + 1.0)
    assert net.ring(MB, [0, 2]) == pytest.approx(1.0 + 1.0)
    assert net.ring(MB, [1, 2]) == pytest.approx(2.0 + 0.5)


def test_state_goes_on_where_it_was():
    net = network()
    net.up(0, MB, 0.0)
    net.down(0, 3 * MB, 0.0)
    state = net.state_dict()
    before = dict(state)
    other = network()
    other.load_state_dict(state)
    expected = [net.up(1, MB, 0.0), net.down(1, MB, 0.0)]
    assert expected == [2.5, 4.5]
    assert [other.up(1, MB, 0.0), other.down(1, MB, 0.0)] == expected
    assert state == before


def test_plain_floats_come_out():
    net = network()
    for value in (net.up(0, 5, 0.0), net.down(0, 5, 0.0), net.message(0, 0.0), net.ring(5, [0, 1])):
        assert type(value) is float


def test_no_server_is_refused():
    with pytest.raises(ParameterError, match="servers must be at least 1, got 0"):
        network(servers=0)
