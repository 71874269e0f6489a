"""Sums and counts from new rows alone are those of the whole log, however it is divided."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from psbench.core.log import EventLog, Kind
from psbench.metrics.totals import PushTotals, SpanTotals
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
    found, whole = totals(log, pieces(log, cuts)), totals(log, [(0, len(log))])
    assert found[2:] == whole[2:]
    for ours, theirs in zip(found[:2], whole[:2], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def totals(log: EventLog, parts: list[tuple[int, int]]) -> list[Any]:
    spans, pushes = SpanTotals(), PushTotals()
    for start, stop in parts:
        spans.read(log, log.rows(start, stop))
        pushes.read(log.rows(start, stop))
    counts = pushes.counts.columns(spans.workers)
    return [
        *(spans.phases(), spans.waits(log), pushes.bytes(), spans.workers),
        *(pushes.staleness.tolist(), pushes.lead.tolist(), sorted(pushes.batches.seen())),
        *(counts[name].tolist() for name in ("pushes", "applied", "samples")),
    ]


def test_a_hand_over_at_once_delays_what_is_released_before_a_cut():
    log = EventLog()
    log.add(Kind.JOIN, 0.0, 0)
    log.add(Kind.RELEASE, 0.0, 0)
    log.add(Kind.PUSH, 1.0, 0, 0, 0, 4, 1, compute_s=1.0)
    log.add(Kind.HOLD, 1.0, 0, text="barrier")
    log.add(Kind.SWITCH_REQUESTED, 2.0, id=-1)
    log.add(Kind.HANDOVER, 2.0, id=1, version=1, steps=0, compute_s=0.5, text="asked by hand")
    log.add(Kind.RELEASE, 2.0, 0)
    log.add(Kind.PUSH, 4.0, 0, 1, 0, 4, 1, compute_s=1.0)
    whole = totals(log, [(0, len(log))])
    for cut in range(1, len(log)):
        assert totals(log, [(0, cut), (cut, len(log))]) == whole
