"""Elastic BSP and ZipLine: where the barrier falls, and who waits for it."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from script import Script, run

from psbench import strategies
from psbench.core.actions import Release
from psbench.errors import ParameterError
from psbench.strategies.consistency.elastic_bsp import zipline
from psbench.testing import ScriptedCluster


def span_and_end(pushes, steps):
    chosen = [own[step - 1] for own, step in zip(pushes, steps, strict=True)]
    return max(chosen) - min(chosen), max(chosen)


def test_the_example_of_the_paper():
    pushes = [[10, 20, 30, 40], [16, 29, 42, 55], [9, 17, 25, 33]]
    assert zipline(pushes) == [2, 1, 2]
    assert span_and_end(pushes, [2, 1, 2]) == (4, 20)


def test_equal_workers_meet_at_the_next_push():
    assert zipline([[7, 9, 11]] * 4) == [1, 1, 1, 1]
    assert zipline([[3, 5, 7]]) == [1]


# whole numbers, so that spans compare exactly and ties occur
@given(
    st.lists(
        st.lists(st.integers(0, 30), min_size=3, max_size=4, unique=True).map(sorted), min_size=1, max_size=4
    )
)
def test_the_walk_finds_what_trying_everything_finds(pushes):
    everything = product(*(range(1, len(own) + 1) for own in pushes))
    best = min(span_and_end(pushes, steps) for steps in everything)
    assert span_and_end(pushes, zipline(pushes)) == best


def test_a_superstep():
    # intervals of 2 and 3, both known at 6: predicted 8, 10, 12 and 9, 12, which first meet at 12
    script = Script(strategies.elastic_bsp(lookahead=4), 2)
    for worker, at in [(0, 2.0), (1, 3.0), (0, 4.0), (0, 6.0), (1, 6.0)]:
        assert script.push(worker, at) == [("apply", [worker]), ("release", worker)]
    for worker, at in [(0, 8.0), (1, 9.0), (0, 10.0)]:
        assert script.push(worker, at) == [("apply", [worker]), ("release", worker)]
    assert script.push(0, 12.0) == [("apply", [0]), ("hold", 0, "barrier")]
    assert script.push(1, 12.5) == [("apply", [1]), ("release", 0), ("release", 1)]
    assert script.push(0, 14.5) == [("apply", [0]), ("release", 0)]  # monitoring again


def choose(lookahead=1, workers=3):
    """Return a script whose workers have one more push to make before the barrier."""
    script = Script(strategies.elastic_bsp(lookahead=lookahead), workers)
    for at in (1.0, 2.0):
        for worker in range(workers):
            script.push(worker, at)
    return script


def test_nobody_waits_for_a_worker_that_has_gone():
    script = choose()
    script.push(0, 3.0)
    script.leave(1, 3.5)
    assert script.push(2, 4.0) == [("apply", [2]), ("release", 0), ("release", 2)]
    script = choose()
    script.push(0, 3.0)
    script.push(1, 3.0)
    assert script.leave(2, 3.5) == [("release", 0), ("release", 1)]


def test_a_newcomer_waits_for_a_chosen_barrier_or_is_monitored():
    script = choose()
    script.leave(2, 2.5)
    assert script.join(2, 2.6) == [("hold", 2, "barrier")]
    script.push(0, 3.0)
    assert script.push(1, 3.0) == [("apply", [1]), ("release", 0), ("release", 1), ("release", 2)]
    script.leave(2, 3.5)
    assert script.join(2, 3.6) == [("release", 2)]


def test_the_last_worker_may_leave_and_come_back():
    script = choose(workers=1)
    script.leave(0, 2.5)
    assert script.join(0, 3.0) == [("release", 0)]
    for at in (4.0, 5.0, 6.0):
        assert script.push(0, at) == [("apply", [0]), ("release", 0)]


def test_steps_of_a_superstep_differ_by_at_most_lookahead_and_monitoring():
    rng = np.random.default_rng(5)
    means = [1.0, 1.1, 2.0, 2.8]
    strategy = strategies.elastic_bsp(lookahead=6)
    cluster = ScriptedCluster(strategy, lambda worker, _: means[worker] * (0.8 + rng.random()), num_workers=4)
    cluster.run(events=800)
    pushes, monitored, supersteps = [0] * 4, 0, 0
    for _, event, actions in cluster.history[1:]:
        pushes[event.worker] += 1
        if min(pushes) < 2:
            monitored = max(pushes)
        if sum(type(action) is Release for action in actions) == 4:
            assert max(pushes) - min(pushes) <= 6 + monitored
            pushes, supersteps = [0] * 4, supersteps + 1
    assert supersteps > 10


def test_one_worker_is_plain_sgd():
    assert torch.equal(run("elastic_bsp", [1.0]).parameters, run("bsp", [1.0]).parameters)


def test_a_ring_needs_a_barrier_at_every_commit():
    with pytest.raises(ParameterError, match="needs all workers in each operation, but elastic_bsp"):
        strategies.elastic_bsp(placement="all_reduce")
