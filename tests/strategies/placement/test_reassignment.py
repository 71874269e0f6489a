"""Parameters that move between servers: who gets what, when, and that only the time changes by it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from toybox import at_night
from vectors import pushed

from psbench import strategies
from psbench.clusters import Custom
from psbench.core.actions import Cancel
from psbench.core.log import EventLog, Kind
from psbench.core.migration import lost_entries
from psbench.errors import ParameterError, UnknownName
from psbench.optimization.optimizer import SGD, Adam
from psbench.strategies.placement import ByLoad, ParameterServer
from psbench.strategies.placement.reassignment import imbalance
from psbench.testing import ScriptedCluster, check_strategy, random_cluster, toy_experiment
from psbench.testing.invariants import Invariants


def sizes(ranges):
    return [sum(stop - start for start, stop in own) for own in ranges]


@st.composite
def assignments(draw):
    """Entries dealt to servers anyhow, each of which has at least one."""
    count = draw(st.integers(2, 5))
    owners = draw(st.lists(st.integers(0, count - 1), min_size=count + 1, max_size=60))
    assume(set(owners) == set(range(count)))
    ranges = [[] for _ in range(count)]
    for entry, server in enumerate(owners):
        own = ranges[server]
        if own and own[-1][1] == entry:
            own[-1] = own[-1][0], entry + 1
        else:
            own.append((entry, entry + 1))
    return ranges


loads = st.floats(0, 1e6, allow_subnormal=False)


class TestTheRule:
    @pytest.mark.slow
    @given(assignments(), st.data())
    def test_every_entry_stays_on_exactly_one_server_and_none_is_empty(self, ranges, data):
        seconds = data.draw(st.lists(loads, min_size=len(ranges), max_size=len(ranges)))
        after = ByLoad(threshold=1.01).rebalanced(ranges, seconds)
        entries = sorted(entry for own in after for stretch in own for entry in range(*stretch))
        assert entries == list(range(sum(sizes(ranges))))
        assert all(after)
        assert all(own == sorted(own) for own in after)

    def test_a_server_a_thousand_times_slower_keeps_an_entry(self):
        ranges = [[(0, 5)], [(5, 10)]]
        assert sizes(ByLoad(threshold=1.01).rebalanced(ranges, [1.0, 0.0])) == [1, 9]
        ranges = [[(0, 4)], [(4, 104)], [(104, 204)]]  # the entry that it keeps is one of the largest share
        assert sizes(ByLoad(threshold=1.01).rebalanced(ranges, [1000.0, 1.0, 1.0])) == [1, 101, 102]

    @pytest.mark.slow
    @given(assignments(), st.data())
    def test_it_moves_no_more_than_is_too_many(self, ranges, data):
        seconds = data.draw(st.lists(loads, min_size=len(ranges), max_size=len(ranges)))
        after = ByLoad(threshold=1.01).rebalanced(ranges, seconds)
        surplus = sum(max(0, old - new) for old, new in zip(sizes(ranges), sizes(after), strict=True))
        assert sum(lost_entries(ranges, after)) == surplus

    def test_a_load_of_exactly_the_threshold_moves_nothing(self):
        """3 s and 1 s: the busier is busy for 1.5 times the mean, in numbers without rounding."""
        ranges, loads = [[(0, 60)], [(60, 120)]], [3.0, 1.0]
        assert ByLoad(threshold=1.5).rebalanced(ranges, loads) == ranges
        assert sizes(ByLoad(threshold=1.499).rebalanced(ranges, loads)) == [30, 90]

    @pytest.mark.slow
    @given(assignments(), st.data())
    def test_with_constant_speeds_it_moves_once(self, ranges, data):
        """The time is proportional to the entries: the second look finds nothing to do."""
        per_entry = data.draw(st.lists(st.floats(0.1, 10), min_size=len(ranges), max_size=len(ranges)))
        rule = ByLoad(threshold=1.2)

        def load(held):
            return [count * seconds for count, seconds in zip(sizes(held), per_entry, strict=True)]

        once = rule.rebalanced(ranges, load(ranges))
        assert rule.rebalanced(once, load(once)) == once
        if once != ranges:
            largest = max(per_entry)  # nobody is further from the others than by an entry
            assert max(load(once)) <= max(load(ranges)) + largest

    @given(st.floats(0.01, 100), st.lists(st.floats(0.1, 10), min_size=2, max_size=4))
    def test_a_cost_of_each_request_is_approached_and_never_passed(self, fixed, per_entry):
        """An affine load: the busiest server's falls at every move, and the moves come to an end."""
        total, rule = 10_000, ByLoad(threshold=1.1)
        held = [[(0, total - len(per_entry) + 1)]]
        held += [[(held[0][0][1] + i, held[0][0][1] + i + 1)] for i in range(len(per_entry) - 1)]
        before = float("inf")
        for _ in range(200):
            seconds = [fixed + n * each for n, each in zip(sizes(held), per_entry, strict=True)]
            assert max(seconds) <= before * (1 + 1e-3)
            before, after = max(seconds), rule.rebalanced(held, seconds)
            if after == held:
                break
            held = after
        assert after == held

    def test_idle_servers_are_no_reason_to_move(self):
        held = [[(0, 5)], [(5, 10)]]
        assert ByLoad().rebalanced(held, [0.0, 0.0]) == held
        assert imbalance([0.0, 0.0]) == 1.0

    def test_a_whole_stretch_goes_before_one_is_cut(self):
        held = [[(0, 10), (12, 16), (18, 20)], [(10, 12), (16, 18)]]
        after = ByLoad().rebalanced(held, [4.0, 1.0])
        assert after == [[(0, 10)], [(10, 20)]]


# -------------------------------------------------------------------- decisions


def servers(every=2, count=2, **values):
    reassignment = {"name": "by_load", "every": every, "threshold": 1.1}
    return {"name": "parameter_server", "servers": count, "reassignment": reassignment, **values}


class Loaded(ScriptedCluster):
    """A scripted cluster whose servers take so many seconds for an entry, and for a look."""

    per_entry = (1.0, 3.0)

    def _schedule(self, at, priority, worker, entry):
        facts = getattr(entry, "facts", {})
        if "server_load:0" in facts:
            held, each = sizes(self.engine.view.ranges), self.per_entry
            facts |= {f"server_load:{i}": n * each[i % len(each)] for i, n in enumerate(held)}
        super()._schedule(at, priority, worker, entry)


def logged(cluster, kind):
    return [json.loads(cluster.log.text(number)) for number in cluster.log.of_kind(kind)["text"]]


def kinds_at(cluster, kind):
    rows = cluster.log.rows()
    (first, *_) = np.flatnonzero(rows["kind"] == kind)
    return first, rows


class TestTheEngine:
    def test_it_looks_after_as_many_updates_as_it_says(self):
        cluster = Loaded({"name": "asp", "placement": servers(every=3)}, [1.0, 1.7])
        cluster.run(events=12)
        at, rows = kinds_at(cluster, Kind.MEASURE)
        assert (rows[:at]["kind"] == Kind.APPLY).sum() == 3

    @pytest.mark.parametrize(
        "name", ["asp", "ssp", "bsp", "k_asp", "k_batch_bsp", "local_sgd", "selsync", "hermes"]
    )
    def test_it_moves_once_when_no_message_is_under_way(self, name):
        cluster = Loaded({"name": name, "placement": servers()}, [1.0, 1.7, 2.9])
        cluster.run(events=120)
        (change,) = logged(cluster, Kind.REASSIGN)
        at, rows = kinds_at(cluster, Kind.REASSIGN)
        before = rows[:at]
        spoke = (Kind.PUSH, Kind.CANCEL)
        before = before[np.isin(before["kind"], [*spoke, Kind.RELEASE])]
        for worker in range(3):  # each has pushed, or was stopped, and was not told to go on since
            assert before[before["worker"] == worker]["kind"][-1] in spoke
        assert sizes(change["ranges"])[0] == pytest.approx(3 * sizes(change["ranges"])[1], abs=3)
        assert sum(sizes(change["ranges"])) == sum(size for _, size in cluster.engine.view.layout)

    def test_an_early_worker_waits_with_a_reason_and_gets_the_model_of_then(self):
        cluster = Loaded({"name": "asp", "placement": servers()}, [1.0, 5.0])
        cluster.run(events=20)
        at, rows = kinds_at(cluster, Kind.REASSIGN)
        holds = rows[:at][rows[:at]["kind"] == Kind.HOLD]
        assert {cluster.log.text(n) for n in holds["text"]} == {"re-assignment"}
        after = rows[at + 1 : at + 3]
        assert after["kind"].tolist() == [Kind.RELEASE] * 2
        assert set(after["version"].tolist()) == {int(rows[at]["version"])}
        assert (after["bytes"] > 0).all()

    def test_under_a_barrier_nobody_waits_for_it(self):
        cluster = Loaded({"name": "bsp", "placement": servers()}, [1.0, 2.0])
        cluster.run(events=20)
        reasons = {cluster.log.text(n) for n in cluster.log.of_kind(Kind.HOLD)["text"]}
        assert logged(cluster, Kind.REASSIGN)
        assert reasons == {"barrier"}

    def test_parts_decide_as_if_nothing_had_moved(self):
        """SSP's clocks, and who waits for whom, are those of a run in which messages are late."""
        cluster = Loaded({"name": "ssp", "staleness_bound": 2, "placement": servers()}, [1.0, 1.5, 4.0])
        follow = Invariants("ssp that moves", cluster.engine)
        for _ in range(150):
            cluster.step()
            follow.look()
        assert logged(cluster, Kind.REASSIGN)

    def test_a_switch_comes_first(self):
        """The re-assignment that waits is dropped, and the next composition has an assignment of its own."""
        from psbench.core.events import SwitchRequested

        switch = strategies.strategy_switch(
            first=strategies.asp(placement=servers()), second="bsp", rule={"name": "manual"}
        )
        cluster = Loaded(switch, [1.0, 9.0], changes=[(4.5, SwitchRequested(1))])
        cluster.run(until=3.5)
        assert "re-assignment" in {cluster.log.text(n) for n in cluster.log.of_kind(Kind.HOLD)["text"]}
        cluster.run(events=20)
        assert logged(cluster, Kind.REASSIGN) == []
        assert len(cluster.log.of_kind(Kind.HANDOVER)["row"]) == 1
        assert len(cluster.engine.view.ranges) == 1

    def test_useless_moves_are_taken_back_and_become_rarer_and_rarer(self):
        """The second server is the busier one whatever it holds: its time does not depend on the entries."""

        class Fixed(Loaded):
            def _schedule(self, at, priority, worker, entry):
                super()._schedule(at, priority, worker, entry)
                if "server_load:0" in getattr(entry, "facts", {}):
                    entry.facts |= {"server_load:0": 1.0, "server_load:1": 3.0}

        cluster = Fixed({"name": "bsp", "placement": servers(every=1)}, [1.0])
        begun = cluster.engine.view.ranges
        cluster.run(events=900)
        there, back, *more = [change["ranges"] for change in logged(cluster, Kind.REASSIGN)]
        assert sizes(there)[1] < sizes(begun)[1]
        assert back == [[list(stretch) for stretch in own] for own in begun]
        assert more == ([there, back] * 10)[: len(more)]
        assert 4 <= 2 + len(more) <= 20  # in more than 400 updates, with a look at each

    def test_a_run_that_goes_on_from_a_checkpoint_moves_what_was_to_move(self):
        """Nobody is under way then: it happens at once, and everybody begins on what the servers hold now."""
        cluster = Loaded({"name": "asp", "placement": servers()}, [1.0, 5.0])
        cluster.run(until=4.5)
        state = json.loads(json.dumps(cluster.engine.state_dict()))
        assert state["migration"] is not None
        again = cluster.new_engine(EventLog())
        again.load_state_dict(state)
        actions = again.resume()
        assert [type(action).__name__ for action in actions if not isinstance(action, Cancel)] == [
            "Reassign", "Release", "Release",
        ]  # fmt: skip
        assert sizes(again.view.ranges)[0] > sizes(again.view.ranges)[1]
        assert again.state_dict()["migration"] is None

    def test_it_looks_again_when_the_move_is_done_and_not_before(self):
        """A slow worker keeps the parameters where they are for nine seconds, in which others push."""
        cluster = Loaded({"name": "k_asp", "k": 1, "placement": servers(every=1)}, [1.0, 1.0, 9.0])
        cluster.run(events=60)
        kinds = cluster.log.rows()["kind"]
        moved = int(np.flatnonzero(kinds == Kind.REASSIGN)[0])
        assert (kinds[:moved] == Kind.MEASURED).sum() == 1
        assert (kinds[moved:] == Kind.MEASURED).sum() > 1
        assert (kinds == Kind.REASSIGN).sum() == 1

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "name", ["ssp", "osp", "flex_rr", *at_night("asp", "k_bsp", "selsync", "double_squeeze")]
    )
    def test_it_keeps_the_contract(self, name):
        check_strategy({"name": name, "placement": servers(every=1)}, clusters=1, events=60)

    @pytest.mark.parametrize("seed", range(6))
    def test_nobody_stalls_whoever_comes_and_goes(self, seed):
        cluster = random_cluster({"name": "asp", "placement": servers(every=1, count=3)}, seed)
        follow = Invariants("asp that moves", cluster.engine)
        for _ in range(100):
            if cluster.done:
                break
            cluster.step()
            follow.look()
        assert logged(cluster, Kind.REASSIGN)


# -------------------------------------------------------------------- refusals


def test_one_server_has_nowhere_to_move_anything():
    with pytest.raises(ParameterError, match="moves parameters between servers, and there is only one"):
        ParameterServer(servers=1, reassignment="by_load")


@pytest.mark.parametrize("name", ["all_reduce", "map_reduce"])
def test_collectives_have_no_servers(name):
    with pytest.raises(UnknownName, match="reassignment"):
        strategies.bsp(placement={"name": name, "reassignment": "by_load"})


def test_a_misspelt_rule_is_named():
    with pytest.raises(UnknownName, match="unknown reassignment part 'by_laod'; did you mean 'by_load'"):
        ParameterServer(servers=2, reassignment="by_laod")


@pytest.mark.parametrize("links", [[1.0], [1.0, 2.0, 3.0]])
def test_as_many_links_as_servers(links):
    cluster = {"workers": 2, "server_bandwidth_mbit_s": links}
    two = {"name": "bsp", "servers": 2}
    with pytest.raises(
        ParameterError, match=f"server_bandwidth_mbit_s has {len(links)} values for 2 servers"
    ):
        toy_experiment(two, cluster=cluster)
    assert toy_experiment("all_reduce", cluster=cluster)


def test_a_link_of_a_server_is_named():
    with pytest.raises(ParameterError, match="server_bandwidth_mbit_s of server 1 must be positive, got 0"):
        Custom(server_bandwidth_mbit_s=[1.0, 0.0])


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"), [(SGD(lr=0.1), 4), (SGD(lr=0.1, momentum=0.9), 8), (Adam(), 12)]
)
def test_what_an_optimizer_keeps_of_an_entry(optimizer, bytes_each):
    from psbench.training.build import Workload

    workload = Workload.build(toy_experiment(optimizer=optimizer))
    server = workload.server()
    server.apply(pushed([torch.ones_like(server.parameters)]))
    kept = [
        t
        for n, t in server.tensors().items()
        if n.startswith("optimizer/") and t.shape == server.parameters.shape
    ]
    assert workload.entry_bytes == 4 + 4 * len(kept) == bytes_each
