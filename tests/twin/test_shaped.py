"""The shaped networks are what they are meant to be, and live runs on them take as long as predicted."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.twin.hub import Link, Network, Queues
from tests.twin.networks import NETWORKS, machines, measured
from tests.twin.shaped import FITTED, STRATEGIES, WIDTH, Comparison, Row

_NEEDED = os.geteuid() == 0 and shutil.which("ip") is not None and Path("/dev/net/tun").exists()
needs_root = pytest.mark.skipif(not _NEEDED, reason="namespaces need root, ip and /dev/net/tun")


def arrivals(network, *sent):
    """Return when the frames arrive that are put in, each (seconds, bytes, start, end): rounded, in order."""
    queues, found = Queues(network), []
    for at, size, *way in sent:
        found += _until(queues, at)
        queues.put(at, bytes(size), tuple(way))
    return [*found, *_until(queues, 100.0)]


def _until(queues, now):
    found = []
    while (at := queues.next_s) <= now:
        found += [(len(frame), round(at, 6), to) for to, frame in queues.take(at)]
    return found


def test_frames_take_rate_delay_and_turns():
    """8 Mbit/s are 1,000 bytes a ms; a frame that waits in a thin link keeps no other from the server's."""
    thin, wide, server = Link(0.8, 8, 5), Link(8, 8, 1), Link(8, 8, 0)
    network = Network((server, thin, wide, wide))
    assert arrivals(network, (0, 1000, 2, 0)) == [(1000, 0.002, 0)]  # 1 ms to send, 1 ms of delay
    assert arrivals(network, (0, 1000, 1, 0)) == [(1000, 0.015, 0)]
    # two at once share the server's link, one behind the other
    assert arrivals(network, (0, 1000, 2, 0), (0, 999, 3, 0)) == [(1000, 0.002, 0), (999, 0.002999, 0)]
    # the thin link's second frame begins at 10 ms, and the wide one's is not behind it
    found = arrivals(network, (0, 1000, 1, 0), (0, 1001, 1, 0), (0.001, 999, 2, 0))
    assert found == [(999, 0.002999, 0), (1000, 0.015, 0), (1001, 0.02501, 0)]
    # two racks: one queue for both machines of the far one, and its delay
    racks = Network((server, wide, wide, wide), far_rack=(2, 3), line=Link(0.8, 0.8, 3))
    assert arrivals(racks, (0, 1000, 2, 0), (0, 999, 3, 0)) == [(1000, 0.014, 0), (999, 0.02399, 0)]
    assert arrivals(racks, (0, 1000, 3, 2), (0, 999, 1, 0)) == [(999, 0.001999, 0), (1000, 0.003, 2)]


@needs_root
@pytest.mark.nightly
@pytest.mark.parametrize("name", NETWORKS)
def test_a_socket_has_the_rate_and_the_round_trip_of_its_network(name):
    """Within 5 % and 2 ms, of one worker after another; a rate that is halved is seen."""
    network, last = NETWORKS[name], len(NETWORKS[name].links) - 1
    halved = replace(network.links[last], up_mbit=network.links[last].up_mbit / 2)
    if network.line is not None:  # which is the thinnest on its way
        halved = replace(halved, up_mbit=network.line.up_mbit / 2)
    made_wrong = replace(network, links=(*network.links[:-1], halved))
    with machines(network) as made:
        ways = [way for each in range(1, last + 1) for way in ((each, 0), (0, each))]
        found = [*measured(made, ways, 0.3).errors(network)]
        assert not wrong(found)
    with machines(made_wrong) as made:
        (where, rate, meant), *others = wrong(measured(made, [(last, 0)]).errors(network))
        assert not others
        assert where.startswith("rate")
        assert rate == pytest.approx(meant / 2, rel=0.05)


def wrong(found):
    """Return what is not as it is meant."""
    allowed = {"round trip": lambda meant: 0.002, "rate": lambda meant: 0.05 * meant}
    return [
        (what, value, meant)
        for what, value, meant in found
        for kind, of in allowed.items()
        if what.startswith(kind) and abs(value - meant) > of(meant)
    ]


def test_a_comparison_names_what_misses_its_goal():
    """The order counts where live means differ by more than twice what single runs deviate by."""
    rows = [
        Row("bsp", 1.0, 0.01, 5, 1.09, 1.0, 1.18),
        Row("ssp", 1.01, 0.01, 5, 1.0, 0.9, 1.1),
        Row("asp", 1.1, 0.01, 5, 1.05, 0.9, 1.2),
        Row("d_psgd", 2.0, 0.01, 5, refused="not measured"),
    ]
    found = Comparison("far", rows)
    assert found.wrong_order() == [("bsp", "asp")]  # ssp beside bsp is a tie
    told = [*found.misses()]
    assert len(told) == 2
    assert "d_psgd: refused: not measured" in told[0]
    assert found.held == 3
    assert "bands hold 3 of 4 live means" in str(found)
    rows[1].predicted_s = 1.3
    assert [text for text in found.misses() if "ssp: +28.7" in text]


#: of eight live means as many as bands hold at least, which claim nine of ten: fewer would be in one of 26
#: networks
HELD = 6


@needs_root
@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", NETWORKS)
def test_predictions_hold_on_shaped_networks(name, tmp_path):
    """Five live repeats of each strategy: the errors, the order, and the bands that are wanted."""
    command = [sys.executable, "-m", "tests.twin.shaped", "--network", name, "--out", str(tmp_path)]
    subprocess.run(command, check=True)
    found = Comparison.read(tmp_path / name / "results.json")
    assert not found.not_reproduced
    assert not found.failed
    assert {row.name for row in found.rows} == {*STRATEGIES}
    assert not [row for row in found.rows if row.refused]
    beyond = {row.name: row.error for row in found.rows if abs(row.error) > row.goal}
    assert not beyond, f"goals are 10 % for {FITTED} and 15 % for others; measured:\n{found}"
    wrong = found.wrong_order()
    assert not wrong, f"the goal is the live order wherever it exceeds noise; {wrong} of\n{found}"
    assert found.held >= HELD, f"bands hold {found.held} of\n{found}"
    assert found.width <= WIDTH, f"the goal is a median width of {WIDTH:.0%}:\n{found}"
