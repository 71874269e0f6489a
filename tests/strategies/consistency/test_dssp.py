"""DSSP: what the controller grants, and how far a worker may lead."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from script import Script, run

from psbench import strategies
from psbench.core.log import Kind
from psbench.errors import ParameterError
from psbench.strategies.consistency import DSSP
from psbench.strategies.consistency.dssp import best_stop


def test_the_examples_of_the_controller():
    assert best_stop((10, 1), (9.5, 3.5), 4, "distance") == 3
    assert best_stop((10, 1.2), (8, 5), 12, "distance") == 11
    assert best_stop((10, 1.2), (8, 5), 12, "wait") == 2
    assert (
        best_stop((10, 1), (10, 1), 12, "distance") == 1
    )  # beside the next push: nothing is to be waited for
    assert best_stop((10, 1), (2, 1), 3, "wait") == 0  # the slowest is overdue: nothing can be said


times = st.floats(0.1, 50)


@given(times, times, times, times, st.integers(0, 12), st.sampled_from(["distance", "wait"]))
def test_the_controller_tries_everything(last, interval, slow_last, slow_interval, most, metric):
    best, cost = 0, np.inf
    for r in range(most + 1):
        stop = last + r * interval
        waits = [slow_last + (k + 1) * slow_interval - stop for k in range(most + 1)]
        costs = [abs(w) for w in waits] if metric == "distance" else [w for w in waits if w >= 0]
        if min(costs, default=np.inf) < cost:
            best, cost = r, min(costs)
    assert best_stop((last, interval), (slow_last, slow_interval), most, metric) == best


def test_the_fastest_goes_on_where_ssp_would_stop_it():
    # the first example above: A[p] = (10, 9), A[s] = (9.5, 6), r_max = 4, so three more steps are granted
    script = Script(strategies.dssp(lower=0, upper=4), 2)
    script.push(1, 6.0)
    script.push(0, 7.0)
    assert script.push(0, 9.0) == [("apply", [0]), ("hold", 0, "staleness bound")]  # one push says nothing
    script.push(1, 9.5)
    answers = [script.push(0, at) for at in (10.0, 11.0, 12.0, 13.0)]
    assert answers[:3] == [[("apply", [0]), ("release", 0)]] * 3
    assert answers[3] == [("apply", [0]), ("hold", 0, "staleness bound")]


def leads(done):
    """Return the lead of each worker whenever it starts a step."""
    clocks, found = {}, []
    for row in done.log.rows():
        kind, worker = row["kind"], int(row["worker"])
        if kind == Kind.JOIN:
            clocks[worker] = min(clocks.values(), default=0)
        elif kind == Kind.PUSH:
            clocks[worker] += 1
        elif kind == Kind.RELEASE:
            found.append(clocks[worker] - min(clocks.values()))
    return found


@pytest.mark.parametrize("bound", [0, 2])
def test_an_empty_range_is_ssp(bound):
    dssp = run(strategies.dssp(lower=bound, upper=bound), step_time="shifted_exponential")
    ssp = run(strategies.ssp(staleness_bound=bound), step_time="shifted_exponential")
    assert dssp.log.digest() == ssp.log.digest()
    assert torch.equal(dssp.parameters, ssp.parameters)


@pytest.mark.parametrize("metric", ["distance", "wait"])
def test_no_step_starts_beyond_the_upper_end(metric):
    options = {
        "speeds": (1, 0.9, 0.15),
        "step_time": "shifted_exponential",
        "updates": 400,
        "timing_only": True,
    }
    clamped = leads(run(strategies.dssp(lower=2, upper=8, metric=metric), **options))
    assert 2 < max(clamped) <= 8


def test_without_the_clamp_grants_follow_upon_grants():
    options = {"speeds": (1, 0.04), "updates": 60, "timing_only": True}
    free, held = (leads(run(strategies.dssp(lower=2, upper=5, clamp=c), **options)) for c in (False, True))
    assert max(held) == 5 < max(free)


def test_a_grant_does_not_outlive_its_worker():
    script = Script(strategies.dssp(lower=0, upper=9), 2)
    part = script.engine.composition.consistency
    part.load_state_dict({"_grants": {"0": 5}})
    script.leave(0, 1.0)
    assert script.join(0, 2.0) == [("release", 0)]
    assert part.state_dict() == {"_grants": {}}


def test_the_range_must_be_one():
    with pytest.raises(ParameterError, match="lower = 9 is above upper = 4"):
        DSSP(lower=9, upper=4)
