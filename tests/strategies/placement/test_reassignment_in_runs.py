"""Runs in which parameters move between servers: only the time changes by it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from test_reassignment import servers, sizes

from psbench.clusters import Custom, Network
from psbench.core.log import Kind
from psbench.runs.execution import resume, run
from psbench.runs.replaying import replay
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster

# -------------------------------------------------------------------- in virtual time


MLP = {"name": "mlp", "hidden": [16]}
#: the first server's link is a quarter of the second's
LAME = toy_cluster([1.0, 0.5, 0.25], server_bandwidth_mbit_s=[0.01, 0.04], bandwidth_mbit_s=1.0)
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def pair(strategy, cluster=LAME, **changes):
    """The same run with and without re-assignment."""
    found = []
    for placement in (servers(every=4), servers(every=4, reassignment="none")):
        made = {**strategy, "placement": {**placement, "assignment": "layer"}}
        defaults = {"model": MLP, "cluster": cluster, "optimizer": MOMENTUM, "stop": {"updates": 39}}
        found.append(run(toy_experiment(made, **defaults | changes)))
    return found


def moves(done):
    return [json.loads(done.log.text(n)) for n in done.log.of_kind(Kind.REASSIGN)["text"]]


class TestInVirtualTime:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "strategy",
        [{"name": "bsp"}, {"name": "k_bsp"}, {"name": "local_sgd"}, {"name": "selsync"}, {"name": "lb_bsp"}],
        ids=lambda strategy: strategy["name"],
    )
    def test_the_updates_are_those_of_a_run_in_which_nothing_moves(self, strategy):
        moving, still = pair(strategy)
        assert len(moves(moving)) == 1
        assert torch.equal(moving.parameters, still.parameters)

    @pytest.mark.parametrize("name", ["bsp", "asp", "ssp"])
    def test_a_slow_server_is_mended(self, name):
        moving, still = pair({"name": name})
        assert moving.meta["time_s"] < still.meta["time_s"] / 2
        (change,) = moves(moving)
        slow, fast = sizes(change["ranges"])
        assert slow * 4 == pytest.approx(fast, abs=4)
        assert replay(moving) == len(moving.log)

    def test_what_moves_is_charged(self):
        """86 entries of 8 bytes over the slower link, 1250 bytes/s."""
        moving, _ = pair({"name": "bsp"})
        (change,) = moves(moving)
        rows = moving.log.rows()
        at = int(np.flatnonzero(rows["kind"] == Kind.REASSIGN)[0])
        following = rows[at:][rows[at:]["kind"] == Kind.PUSH][0]
        elsewhere = rows[at + 100 :]
        usual = elsewhere[elsewhere["kind"] == Kind.RELEASE][0]
        push = elsewhere[(elsewhere["kind"] == Kind.PUSH) & (elsewhere["time_s"] > usual["time_s"])][0]
        longer = (following["time_s"] - rows[at]["time_s"]) - (push["time_s"] - usual["time_s"])
        hop = moving.experiment.cluster.server_latency_s
        assert change["moved"] == 86
        assert longer == pytest.approx(86 * 8 / 1250 + hop, rel=1e-3)

    @pytest.mark.parametrize("codec", ["top_k", "one_bit", "fp16", "qsgd"])
    def test_no_residual_is_lost(self, codec):
        """A run of pushes: what has arrived and what is remembered is all that there was to say."""
        done = run(
            toy_experiment(
                {"name": "bsp", "codec": codec, "placement": {**servers(every=2), "assignment": "layer"}},
                **{"model": MLP, "cluster": LAME, "stop": {"updates": 12}},
            )
        )
        assert len(moves(done)) == 1
        assert replay(done) == len(done.log)
        assert torch.isfinite(done.parameters).all()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "strategy", [{"name": "bsp"}, {"name": "bsp", "codec": "top_k"}, {"name": "double_squeeze"}]
    )
    def test_from_a_checkpoint_after_the_move_it_goes_on_bit_by_bit(self, strategy, tmp_path):
        made = {**strategy, "placement": {**servers(every=4), "assignment": "layer"}}
        settings = {"model": MLP, "cluster": LAME, "optimizer": MOMENTUM, "checkpoint_every": 1}
        whole = run(toy_experiment(made, **settings, stop={"epochs": 3}))
        run(toy_experiment(made, **settings, stop={"epochs": 1}), folder=tmp_path)
        rest = resume(tmp_path, {"stop": {"epochs": 3}})
        assert len(moves(whole)) == 1
        assert torch.equal(rest.parameters, whole.parameters)
        assert rest.log.digest() == whole.log.digest()

    def test_without_gradients_too(self):
        done = run(toy_experiment({"name": "asp", "placement": servers()}, cluster=LAME, timing_only=True))
        assert len(moves(done)) == 1

    def test_equal_servers_with_equal_shares_are_left_alone(self):
        done = run(toy_experiment({"name": "asp", "placement": servers()}, model=MLP))
        assert moves(done) == []
        assert done.log.of_kind(Kind.MEASURED)["row"].size > 3


class TestTheNetwork:
    def network(self, links=(8, 4), shares=None):
        cluster = Custom(
            workers=1,
            bandwidth_mbit_s=80,
            server_bandwidth_mbit_s=list(links),
            latency_s=0,
            server_latency_s=0.25,
        )
        return Network(cluster.profile(), len(links), shares)

    def test_the_server_that_takes_longest_for_its_slice_sets_the_pace(self):
        assert self.network().up(0, 1e6, 0.0) == pytest.approx(1.0)  # half of 8 Mbit at 4 Mbit/s
        assert self.network(shares=[2 / 3, 1 / 3]).up(0, 1e6, 0.0) == pytest.approx(2 / 3)

    def test_each_server_is_busy_for_its_own_slice(self):
        net = self.network()
        net.up(0, 1e6, 0.0)
        net.down(0, 1e6, 0.0)
        assert net.server_loads() == pytest.approx([1.0, 2.0])
        assert net.server_loads() == [0.0, 0.0]

    def test_a_move_takes_as_long_as_the_slower_of_both_links(self):
        assert self.network().move([1e6, 0], [0, 1e6]) == pytest.approx(2.0 + 0.25)
        assert self.network((8, 4, 8)).move([1e6, 0, 0], [0, 0, 1e6]) == pytest.approx(1.0 + 0.25)
        both_ways = self.network().move([1e6, 1e6], [1e6, 1e6])  # a link carries both at once
        assert both_ways == pytest.approx(2.0 + 0.25)

    def test_another_assignment_changes_the_pace_from_then_on(self):
        net = self.network()
        net.share([2 / 3, 1 / 3])
        assert net.up(0, 1e6, 0.0) == pytest.approx(2 / 3)
