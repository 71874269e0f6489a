"""Sums and counts from new rows alone are those of the whole log, however it is divided."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from psbench import metrics
from psbench.core.log import EventLog
from psbench.metrics.growing import PushTotals, SpanTotals
from psbench.strategies import CATALOGUE

from .test_growing_logs import CUTS, cluster_of


def pieces(log: EventLog, cuts: list[float]) -> list[tuple[int, int]]:
    places = [0, *sorted(int(cut * len(log)) for cut in cuts), len(log)]
    return list(pairwise(places))


@given(strategy=st.sampled_from(sorted(CATALOGUE)), seed=st.integers(0, 10_000), cuts=CUTS)
@example(strategy="osp", seed=0, cuts=[i / 40 for i in range(40)])  # workers go on while they push
@example(strategy="strategy_switch", seed=1, cuts=[i / 60 for i in range(60)])  # hand-overs
@example(strategy="drop_stragglers", seed=2, cuts=[i / 40 for i in range(40)])
@settings(max_examples=40)
def test_a_log_that_grows_gives_the_totals_of_the_whole(strategy, seed, cuts):
    log = cluster_of(strategy, seed).log
    spans, pushes = SpanTotals(), PushTotals()
    for start, stop in pieces(log, cuts):
        spans.read(log, log.rows(start, stop))
        pushes.read(log.rows(start, stop))

    whole = metrics.timeline(log)
    lasted = (whole["end_s"] - whole["start_s"]).groupby([whole["worker"], whole["phase"].astype(str)]).sum()
    shares = lasted / lasted.groupby(level=0).transform("sum")
    assert spans.phases() == pytest.approx(shares.to_dict(), rel=1e-9, abs=1e-12)
    idle = metrics.idle(log).set_index(["worker", "reason"])["fraction"]
    assert spans.waits(log) == pytest.approx(idle.to_dict(), rel=1e-9, abs=1e-12)

    applied = metrics.share_of_applied(log)
    assert spans.workers == applied["worker"].tolist()
    assert [pushes.applied.get(w, 0) for w in spans.workers] == applied["applied"].tolist()
    for counted, values in (
        (pushes.staleness, metrics.staleness(log)["staleness"]),
        (pushes.lead, metrics.clock_lead(log)["lead"]),
    ):
        np.testing.assert_array_equal(counted, np.bincount(values.to_numpy(), minlength=len(counted)))
    assert pushes.bytes == metrics.total_bytes(log)
    sizes = metrics.batch_sizes(log)
    ours = {*pushes.batches, *pushes.last_batches()}
    assert ours == set(sizes[["worker", "time_s", "batch_size"]].itertuples(index=False, name=None))
