"""Servers that add up: the models of All-Reduce, each sum a push and an answer, and what is refused."""

import pytest

import psbench as ps
from psbench.core.log import Kind
from psbench.errors import ParameterError
from psbench.testing import toy_experiment

SLOW = {"workers": 3, "bandwidth_mbit_s": 1.0, "latency_s": 0.25, "step_time": "constant"}
POWER = {"name": "power_sgd", "rank": 2, "start_iter": 2, "min_compression_rate": 1.0}
ADAM = {"name": "one_bit_adam", "freeze_step": 2}
SERVERS = {"name": "summing_servers", "servers": 3}


def run(strategy, cluster=SLOW):
    model = {"name": "mlp", "hidden": [16]}
    return ps.run(toy_experiment(strategy, cluster=cluster, stop={"updates": 4}, model=model))


def sums_of(strategy, cluster=SLOW):
    """Seconds and bytes of the pushes that ended a version's sums, and the bytes of its answers."""
    done = run(strategy, cluster)
    ps.replay(done)
    pushes, answers = done.log.of_kind(Kind.PUSH), done.log.of_kind(Kind.RELEASE)
    last = pushes["send_s"] > 0
    down = dict(zip(answers["version"].tolist(), answers["bytes"].tolist(), strict=True))
    return pushes["send_s"][last].tolist(), pushes["bytes"][last].tolist(), [down[v] for v in range(1, 5)]


@pytest.mark.parametrize("strategy", [{"name": "bsp"}, POWER, ADAM], ids=lambda each: each["name"])
@pytest.mark.parametrize("servers", [1, 3])
def test_the_models_are_those_of_all_reduce(strategy, servers):
    placements = "all_reduce", SERVERS | {"servers": servers}
    ring, ours = (run(strategy | {"placement": each}) for each in placements)
    assert ring.meta["params_digest"] == ours.meta["params_digest"]


# a model of 131 entries; sums of 57 and 40; signs of 131 with 4 scales: 33 bytes from each to all
@pytest.mark.parametrize(
    ("strategy", "sums"),
    [(POWER, [(4 * 57, 4 * 57), (4 * 40, 4 * 40)]), (ADAM, [(33, 99)])],
    ids=["power_sgd", "one_bit_adam"],
)
@pytest.mark.parametrize("sharing", ["in_turn", "equal"])
def test_each_sum_takes_a_push_and_an_answer_through_the_servers_links(strategy, sums, sharing):
    """The links of three servers at .25 are narrower than the workers': who sends third begins third."""
    slow = SLOW | {"server_bandwidth_mbit_s": 0.25, "link_sharing": sharing}
    seconds, up, down = sums_of(strategy | {"placement": SERVERS}, slow)
    expected = [(4 * 131, 4 * 131)], [(4 * 131, 4 * 131)], sums, sums
    assert up == [sum(sent for sent, _ in each) for each in expected]
    assert down == [sum(received for _, received in each) for each in expected]
    for took, each in zip(seconds, expected, strict=True):
        ways = [num_bytes for both in each for num_bytes in both]
        assert took == pytest.approx(sum(0.25 + 3 * n * 8 / 0.75e6 for n in ways), rel=1e-6)


def test_one_link_that_is_wide_leaves_the_workers_own():
    wide = SLOW | {"server_bandwidth_mbit_s": 1e9}
    seconds, _, _ = sums_of({"name": "bsp", "placement": "summing_servers"}, wide)
    assert seconds == pytest.approx([2 * (0.25 + 4 * 131 * 8 / 1e6)] * 4, rel=1e-6)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"placement": "parameter_server"},
            "power_sgd .* 'sharded' or 'summing_servers'",
        ),
        *(
            ({"placement": SERVERS, "consistency": name}, f"needs all workers in each operation, but {name}")
            for name in ("asp", "ssp", "backup_workers")
        ),
    ],
)
def test_who_does_not_wait_for_all_is_refused(values, says):
    with pytest.raises(ParameterError, match=says):
        toy_experiment(POWER | values)
    with pytest.raises(ParameterError, match="server_bandwidth"):
        run(POWER | {"placement": SERVERS}, SLOW | {"server_bandwidth_mbit_s": [1.0, 1.0]})
