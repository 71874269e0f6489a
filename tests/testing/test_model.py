"""The fuzzer's model: it has a rule for every part that decides, and follows what was worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from psbench import strategies
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.aggregation import Aggregation
from psbench.core.peer_to_peer import Mixing
from psbench.core.strategy import DOMAINS
from psbench.core.wire_size import WireSize
from psbench_fuzz.compositions import registered
from psbench_fuzz.model import Interpreter
from psbench_fuzz.model.arithmetic import UPDATES, weighted_sum
from psbench_fuzz.model.compare import unequal_answers
from psbench_fuzz.model.consistency import closest
from psbench_fuzz.model.rule import RULES


def model_of(strategy, workers=2):
    return Interpreter(
        strategy,
        num_workers=workers,
        dataset_size=100,
        global_batch=4 * workers,
        epochs=None,
        batch_sizes=[4] * workers,
        capacity=[],
        rate=lambda epoch: 1.0,
        wire_size=WireSize((("weight", 8),)),
        rng=np.random.default_rng(0),
    )


#: domains of parts that decide nothing, and why
WITHOUT_RULES = {"codec": "makes bytes of a vector, and its length is all that the engine sees of it"}


@pytest.mark.parametrize("domain", [*DOMAINS, "switching", "codec"])
def test_it_has_a_rule_for_every_part_or_a_reason(domain):
    known = {name for own, name in RULES if own == domain}
    assert domain in WITHOUT_RULES or {kind.name for kind in registered(domain)} == known


def test_it_computes_every_update():
    parts = [kind for kind in registered("aggregation") if not issubclass(kind, Mixing)]
    assert {kind.name for kind in parts} == {*UPDATES}
    own = {kind.name for kind in parts if kind.update is not Aggregation.update}
    sums = {name for name, update in UPDATES.items() if update is weighted_sum}
    assert not own & sums - {"krum", "geometric_median", "clipped_mean"}, "these compute otherwise"


def test_a_barrier_takes_both_pushes_and_lets_both_go():
    model = model_of(strategies.bsp())
    assert [action.load for action in model.begin([0, 1])] == [0, 0]
    assert model.handle(ev.Push(0, 0, 1, 0, 4), 1.0) == [act.Hold(0, "barrier")]
    apply, *releases = model.handle(ev.Push(1, 1, 1, 0, 4), 2.0)
    assert (apply.weights, apply.version, apply.lr_scale) == ([0.5, 0.5], 1, 1.0)
    assert [(one.worker, one.load, one.ticket) for one in releases] == [(0, 1, 2), (1, 1, 2)]
    assert model.handle(ev.Push(2, 0, 1, 0, 4), 3.0) == [], "with an old ticket it is void"


def test_ssp_blocks_at_the_third_push_and_goes_on_with_the_slow_worker():
    """Steps of 1 and 4 s with a bound of 2: blocked at 3 s, released at 4."""
    model = model_of(strategies.ssp(staleness_bound=2))
    model.begin([0, 1])
    kinds = [type(model.handle(ev.Push(n, 0, n, n - 1, 4), float(n))[1]) for n in (1, 2, 3)]
    assert kinds == [act.Release, act.Release, act.Hold]
    released = [a.worker for a in model.handle(ev.Push(9, 1, 1, 0, 4), 4.0) if isinstance(a, act.Release)]
    assert released == [0, 1]


@pytest.mark.parametrize(("metric", "steps"), [("distance", 11), ("wait", 2)])
def test_dssp_grants_what_is_worked_out_by_hand(metric, steps):
    model = model_of(strategies.dssp(lower=3, upper=15, metric=metric, clamp=False))
    model.begin([0, 1])
    fast, slow = model.cluster.workers[0], model.cluster.workers[1]
    fast.clock, fast.last_push_s, fast.previous_push_s = 4, 10.0, 8.8
    slow.last_push_s, slow.previous_push_s = 8.0, 3.0
    assert model.consistency.controller(0, model.cluster) == steps


def test_zipline_s_barrier_and_lb_bsp_s_cut_are_those_of_the_papers():
    pushes = [[10, 20, 30, 40], [16, 29, 42, 55], [9, 17, 25, 33]]
    walk = {w: [(at, w, step) for step, at in enumerate(own, 1)] for w, own in enumerate(pushes)}
    assert closest(walk) == {0: 2, 1: 1, 2: 2}
    model = model_of(strategies.lb_bsp(), workers=4)
    model.cluster.global_batch = 256
    model.begin(range(4))
    model.stragglers.speeds = {worker: [4.0 - worker] for worker in range(4)}
    model.stragglers.on_applied(model.cluster)
    assert list(model.stragglers.batches.values()) == [102, 77, 51, 26]


def test_answers_that_differ_are_told_apart():
    hold, release = act.Hold(0, "barrier"), act.Release(1)
    assert unequal_answers([hold, release], [hold, release]) == ""
    assert "which by the rules is due" in unequal_answers([hold, release], [hold])
    assert "which by the rules is not due" in unequal_answers([hold], [hold, release])
    assert "by the rules it is" in unequal_answers([act.Release(1, load=2)], [act.Release(1, load=1)])
