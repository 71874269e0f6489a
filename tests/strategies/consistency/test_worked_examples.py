"""The worked examples of the papers: events in, exact actions out."""

from __future__ import annotations

import numpy as np
import pytest

from psbench import strategies
from psbench.core.actions import Apply, Cancel, Discard, Hold, Release
from psbench.core.engine import Engine
from psbench.core.events import Join, Leave, Push
from psbench.core.log import Kind
from psbench.core.view import ClusterView
from psbench.errors import ParameterError
from psbench.metrics import staleness
from psbench.seeds import Streams
from psbench.testing import ScriptedCluster


def engine_of(strategy, workers):
    engine = Engine(strategy, ClusterView(num_workers=workers, dataset_size=1000, global_batch=4 * workers))
    begun = engine.begin(range(workers))
    assert begun == [Release(w, load=0, ticket=1) for w in range(workers)]
    return engine


def push(id, worker, ticket=1, base=0):
    return Push(id, worker, ticket, base, samples=4)


def times(cluster, kind, worker):
    rows = cluster.log.of_kind(kind)
    return rows["time_s"][rows["worker"] == worker].tolist()


def commits(cluster):
    """Time of each version, and the workers whose pushes made it."""
    rows = cluster.log.of_kind(Kind.APPLY)
    made = {}
    for time, version, worker in zip(rows["time_s"], rows["version"], rows["worker"], strict=True):
        made.setdefault(int(version), (float(time), []))[1].append(int(worker))
    return list(made.values())


class TestBSP:
    def test_the_last_push_commits_all_in_worker_order_and_releases_all(self):
        engine = engine_of(strategies.bsp(), 3)
        late, first, second = push(2, 0), push(0, 2), push(1, 1)
        assert engine.handle(first, 1.0) == [Hold(2, "barrier")]
        assert engine.handle(second, 2.0) == [Hold(1, "barrier")]
        third = 4 / 12
        assert engine.handle(late, 4.0) == [
            Apply([late, second, first], [third] * 3, version=1),
            *[Release(w, load=1, ticket=2) for w in range(3)],
        ]

    def test_a_round_takes_as_long_as_its_slowest_step_and_nothing_is_stale(self):
        cluster = ScriptedCluster("bsp", [1, 4, 2])
        cluster.run(until=12)
        assert commits(cluster) == [(t, [0, 1, 2]) for t in (4.0, 8.0, 12.0)]
        assert staleness(cluster.log)["staleness"].max() == 0

    def test_a_worker_that_dies_is_not_waited_for_and_what_it_sent_counts(self):
        engine = engine_of(strategies.bsp(), 3)
        sent, other = push(0, 0), push(1, 1)
        engine.handle(sent, 1.0)
        assert engine.handle(Leave(0), 1.5) == []
        engine.handle(other, 2.0)
        assert engine.handle(Leave(2), 3.0) == [
            Apply([sent, other], [0.5, 0.5], version=1),
            Release(1, load=1, ticket=2),
        ]

    def test_a_newcomer_begins_when_the_barrier_opens(self):
        cluster = ScriptedCluster("bsp", [2, 2, 2], changes=[(1, Join(2))])
        cluster.run(until=4)
        assert commits(cluster) == [(2.0, [0, 1]), (4.0, [0, 1, 2])]


class TestASP:
    def test_each_push_is_committed_alone_and_only_its_worker_goes_on(self):
        engine = engine_of(strategies.asp(), 2)
        first, second = push(0, 1), push(1, 0)
        assert engine.handle(first, 1.0) == [
            Apply([first], [1.0], lr_scale=0.5, version=1),
            Release(1, load=1, ticket=2),
        ]
        assert engine.handle(second, 1.5) == [
            Apply([second], [1.0], lr_scale=0.5, version=2, epoch=0.004),
            Release(0, load=2, ticket=2),
        ]

    @pytest.mark.parametrize("workers", [1, 2, 5])
    def test_in_strict_rotation_each_push_is_n_minus_1_versions_stale(self, workers):
        """DBS-SGD 3.1 says n; it counts the update itself."""
        turn = ScriptedCluster(
            "asp", lambda worker, number: worker + 1 if number == 0 else workers, num_workers=workers
        )
        turn.run(events=6 * workers)
        stale = staleness(turn.log)["staleness"].tolist()
        assert stale == [*range(workers), *[workers - 1] * (5 * workers)]

    def test_nobody_slows_anybody_down(self):
        alone, together = ScriptedCluster("asp", [1.5]), ScriptedCluster("asp", [1.5, 7, 0.25])
        for cluster in (alone, together):
            cluster.run(until=30)
        assert times(alone, Kind.PUSH, 0) == times(together, Kind.PUSH, 0)

    def test_three_workers_of_k_steps_make_3k_versions(self):
        cluster = ScriptedCluster("asp", [1, 1, 1])
        cluster.run(until=7)
        assert cluster.engine.view.version == 3 * 7


class TestSSP:
    def test_speeds_of_1_and_4_seconds_with_s_2(self):
        cluster = ScriptedCluster(strategies.ssp(staleness_bound=2), [1, 4])
        cluster.run(until=17)
        assert times(cluster, Kind.PUSH, 0) == [1, 2, 3, 5, 9, 13, 17]
        assert times(cluster, Kind.HOLD, 0) == [3, 5, 9, 13, 17]
        assert times(cluster, Kind.RELEASE, 0) == [0, 1, 2, 4, 8, 12, 16]
        assert times(cluster, Kind.HOLD, 1) == []

    def test_speeds_of_1_1_and_3_seconds_with_s_2_wait_for_no_time_at_all(self):
        cluster = ScriptedCluster(strategies.ssp(staleness_bound=2), [1, 1, 3])
        cluster.run(until=3)
        assert times(cluster, Kind.HOLD, 0) == times(cluster, Kind.HOLD, 1) == [3]
        assert [times(cluster, Kind.RELEASE, w)[-1] for w in range(3)] == [3, 3, 3]

    def test_the_bound_holds_at_the_start_of_a_step_and_not_in_between(self):
        """Thesis Fig. 3.4: s = 2, worker 0 has done three steps and worker 1 none."""
        engine = engine_of(strategies.ssp(staleness_bound=2), 2)
        for number in range(2):
            done = push(number, 0, ticket=number + 1, base=number)
            assert engine.handle(done, number + 1.0) == [
                Apply([done], [1.0], lr_scale=0.5, version=number + 1, epoch=number * 0.004),
                Release(0, load=number + 1, ticket=number + 2),
            ]
        third = push(2, 0, ticket=3, base=2)
        assert engine.handle(third, 3.0) == [
            Apply([third], [1.0], lr_scale=0.5, version=3, epoch=0.008),
            Hold(0, "staleness bound"),
        ]
        assert engine.view.clock_lead(0) == 3
        slow = push(3, 1)
        assert engine.handle(slow, 4.0) == [
            Apply([slow], [1.0], lr_scale=0.5, version=4, epoch=0.012),
            Release(0, load=4, ticket=4),
            Release(1, load=4, ticket=2),
        ]

    def test_the_slowest_leaves_and_nobody_waits_for_it(self):
        cluster = ScriptedCluster(strategies.ssp(staleness_bound=0), [1, 2, 9], changes=[(5, Leave(2))])
        cluster.run(until=5)
        assert [times(cluster, Kind.RELEASE, w) for w in range(3)] == [[0, 5], [0, 5], [0]]

    def test_a_newcomer_starts_at_the_slowest_clock(self):
        cluster = ScriptedCluster(strategies.ssp(staleness_bound=1), [1, 1, 1], changes=[(3.5, Join(2))])
        cluster.run(until=3.5)
        assert [cluster.engine.view.workers[w].clock for w in range(3)] == [3, 3, 3]


class TestKBSP:
    def test_the_first_k_make_the_version_and_the_others_start_anew(self):
        engine = engine_of(strategies.k_bsp(k=2), 3)
        first, second = push(0, 2), push(1, 0)
        assert engine.handle(first, 1.0) == [Hold(2, "k pushes")]
        assert engine.handle(second, 2.0) == [
            Apply([second, first], [0.5, 0.5], version=1),
            Cancel(1),
            Release(0, load=1, ticket=2),
            Release(1, load=1, ticket=3),
            Release(2, load=1, ticket=2),
        ]
        assert engine.handle(push(2, 1, ticket=1), 2.5) == []  # what was cancelled is void

    def test_late_work_may_run_out_and_is_dropped_on_arrival(self):
        engine = engine_of(strategies.k_bsp(k=1, cancel="on_arrival"), 2)
        first, late = push(0, 0), push(1, 1)
        assert engine.handle(first, 1.0) == [
            Apply([first], [1.0], version=1),
            Release(0, load=1, ticket=2),
        ]
        assert engine.handle(late, 2.0) == [Discard(late, "late"), Release(1, load=1, ticket=2)]

    def test_cancelled_per_commit_are_n_minus_k_and_nothing_is_stale(self):
        cluster = ScriptedCluster(strategies.k_bsp(k=2), lambda w, i: 1 + (w + i) % 5 / 7, num_workers=5)
        cluster.run(events=200)
        assert cluster.engine.view.cancelled == 3 * cluster.engine.view.version > 0
        assert staleness(cluster.log)["staleness"].max() == 0

    def test_k_1_is_not_asp_it_voids_the_others_work(self):
        k_bsp, asp = ScriptedCluster(strategies.k_bsp(k=1), [1, 1.5]), ScriptedCluster("asp", [1, 1.5])
        for cluster in (k_bsp, asp):
            cluster.run(until=30)
        assert {worker for _, workers in commits(k_bsp) for worker in workers} == {0}
        assert {worker for _, workers in commits(asp) for worker in workers} == {0, 1}

    def test_fewer_than_k_left_are_enough(self):
        cluster = ScriptedCluster(strategies.k_bsp(k=3), [1, 2, 3], changes=[(1.5, Leave(2))])
        cluster.run(until=4)
        assert commits(cluster) == [(2.0, [0, 1]), (4.0, [0, 1])]

    def test_one_that_is_back_does_not_fill_two_of_the_k_places(self):
        back = [(1.5, Leave(0)), (1.75, Join(0))]
        cluster = ScriptedCluster(strategies.k_bsp(k=2), [1, 4, 4], changes=back)
        cluster.run(until=4)
        assert commits(cluster) == [(4.0, [0, 1])]


class TestKBatchBSP:
    def test_thesis_scenario_two_mini_batches_of_worker_1_complete_the_round(self):
        cluster = ScriptedCluster(strategies.k_batch_bsp(k=2), [1, 3, 3])
        cluster.run(until=2)
        assert commits(cluster) == [(2.0, [0, 0])]
        assert times(cluster, Kind.CANCEL, 1) == times(cluster, Kind.CANCEL, 2) == [2]
        assert times(cluster, Kind.HOLD, 0) == []

    def test_a_worker_continues_from_the_same_version_without_a_message(self):
        engine = engine_of(strategies.k_batch_bsp(k=2), 2)
        assert engine.handle(push(0, 0), 1.0) == [Release(0, load=0, send=False, ticket=2)]

    def test_k_n_is_not_bsp_but_with_equal_speeds(self):
        unequal, equal = (ScriptedCluster(strategies.k_batch_bsp(k=2), speeds) for speeds in ([1, 3], [2, 2]))
        for cluster in (unequal, equal):
            cluster.run(until=6)
        assert (2.0, [0, 0]) in commits(unequal)
        assert commits(equal) == [(t, [0, 1]) for t in (2.0, 4.0, 6.0)]


class TestKASP:
    def test_k_different_workers_commit_and_only_they_go_on(self):
        engine = engine_of(strategies.k_asp(k=2), 3)
        first, second = push(0, 2), push(1, 0)
        assert engine.handle(first, 1.0) == [Hold(2, "k pushes")]
        assert engine.handle(second, 2.0) == [
            Apply([second, first], [0.5, 0.5], version=1),
            Release(0, load=1, ticket=2),
            Release(2, load=1, ticket=2),
        ]
        third, fourth = push(2, 1), push(3, 0, ticket=2, base=1)
        assert engine.handle(third, 3.0) == [Hold(1, "k pushes")]
        assert engine.handle(fourth, 4.0)[0] == Apply([fourth, third], [0.5, 0.5], version=2, epoch=0.008)

    def test_nothing_is_voided(self):
        cluster = ScriptedCluster(strategies.k_asp(k=2), [1, 1.5, 4])
        cluster.run(events=100)
        view = cluster.engine.view
        assert view.discarded == view.cancelled == 0
        assert staleness(cluster.log)["staleness"].max() > 0

    def test_fewer_than_k_left_are_enough(self):
        cluster = ScriptedCluster(strategies.k_asp(k=2), [1, 5], changes=[(2, Leave(1))])
        cluster.run(until=3)
        assert commits(cluster) == [(2.0, [0]), (3.0, [0])]

    def test_one_that_is_back_does_not_fill_two_of_the_k_places(self):
        back = [(1.5, Leave(0)), (1.75, Join(0))]
        cluster = ScriptedCluster(strategies.k_asp(k=2), [1, 4, 4], changes=back)
        cluster.run(until=4)
        assert commits(cluster) == [(4.0, [0, 1])]


class TestKBatchASP:
    def test_every_kth_push_commits_and_nobody_waits(self):
        engine = engine_of(strategies.k_batch_asp(k=2), 2)
        first, second = push(0, 0), push(1, 0, ticket=2)
        assert engine.handle(first, 1.0) == [Release(0, load=0, send=False, ticket=2)]
        assert engine.handle(second, 2.0) == [
            Apply([first, second], [0.5, 0.5], version=1),
            Release(0, load=1, ticket=3),
        ]

    def test_nothing_is_voided_and_nobody_is_held(self):
        cluster = ScriptedCluster(strategies.k_batch_asp(k=3), [1, 1.5, 4])
        cluster.run(events=100)
        assert cluster.engine.view.discarded == cluster.engine.view.cancelled == 0
        assert not len(cluster.log.of_kind(Kind.HOLD)["row"])


@pytest.mark.parametrize("name", ["k_bsp", "k_asp"])
def test_k_different_workers_must_exist(name):
    with pytest.raises(ParameterError, match=r"k = 5 different workers, but the cluster has 4"):
        strategies.make_strategy({"name": name, "k": 5}).check(4, 16)


# -------------------------------------------------------------------- run-time theory


def harmonic(n):
    return sum(1 / i for i in range(1, n + 1))


def sync(k):
    """Expected k-th smallest of 8 exponentials of mean 1."""
    return harmonic(8) - harmonic(8 - k)


THEORY = [
    *[(strategies.k_bsp(k=k), sync(k)) for k in (1, 2, 4, 8)],
    *[(strategies.k_batch_bsp(k=k), k / 8) for k in (1, 2, 4, 8)],
    *[(strategies.k_asp(k=k), sync(k)) for k in (2, 8)],
    *[(strategies.k_batch_asp(k=k), k / 8) for k in (2, 8)],
    (strategies.asp(), 1 / 8),
    (strategies.bsp(), harmonic(8)),
]


def test_the_printed_order_statistics():
    assert [round(sync(k), 4) for k in (1, 2, 4, 8)] == [0.125, 0.2679, 0.6345, 2.7179]


@pytest.mark.by_day(5)
@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "expected"), THEORY, ids=lambda v: getattr(v, "name", None))
def test_rounds_of_exponential_steps_take_as_long_as_theory_says(strategy, expected):
    """Rounds are independent and alike, since an exponential has no memory: within 4 standard errors."""
    chances = [Streams(1).generator("step_time", w) for w in range(8)]
    cluster = ScriptedCluster(strategy, lambda w, i: chances[w].exponential(), num_workers=8)
    while cluster.engine.view.version < 800:
        cluster.step()
    ends = np.unique(cluster.log.of_kind(Kind.APPLY)["time_s"])
    rounds = np.diff(ends, prepend=0.0)
    error = rounds.std(ddof=1) / np.sqrt(len(rounds))
    assert abs(rounds.mean() - expected) < 4 * error
    assert error < 0.06 * expected  # else the line above would say nothing
