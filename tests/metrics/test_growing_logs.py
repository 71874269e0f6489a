"""What is read from a log while it grows does not depend on how the log is divided."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from psbench import metrics
from psbench.core.log import EventLog, Kind
from psbench.core.stop import Stop
from psbench.core.view import Status
from psbench.progress import RunProgress
from psbench.strategies import CATALOGUE
from psbench.testing import ScriptedCluster, random_cluster

CUTS = st.lists(st.floats(0, 1), max_size=6)


def progress_of(log: EventLog, cuts: list[int]) -> RunProgress:
    progress = RunProgress(Stop(epochs=20), {"dataset_size": 40, "compositions": ("first", "second")})
    for start, stop in zip([0, *cuts], [*cuts, len(log)], strict=True):
        progress.read(log, start, stop)
    return progress


def sentence_of(log: EventLog, cuts: list[int]) -> str:
    return progress_of(log, cuts).words("simulated")


def cluster_of(strategy: str, seed: int) -> ScriptedCluster:
    cluster = random_cluster(strategy, seed)
    cluster.run(events=40)
    return cluster


@given(strategy=st.sampled_from(sorted(CATALOGUE)), seed=st.integers(0, 10_000), cuts=CUTS)
@settings(max_examples=30)
def test_any_division_of_a_log_gives_the_same_sentence_and_clocks(strategy, seed, cuts):
    cluster = cluster_of(strategy, seed)
    log = cluster.log
    whole = progress_of(log, [])
    assert sentence_of(log, sorted(int(cut * len(log)) for cut in cuts)) == whole.words("simulated")
    assert sentence_of(log, list(range(len(log)))) == whole.words("simulated")
    here = {w.id: w.clock for w in cluster.engine.view.workers.values() if w.status is not Status.GONE}
    assert whole._clocks.of == here


@pytest.mark.parametrize("cuts", [[], [4], [13]], ids=["whole", "after joining", "before the last row"])
def test_the_slow_worker_is_named_although_its_first_push_is_not_late(cuts):
    log = EventLog()
    for worker in range(4):
        log.add(Kind.JOIN, 0.0, worker)
    for number, worker in enumerate([0, 1, 2] * 3 + [3]):
        log.add(Kind.PUSH, 1.0, worker, number)
    for worker in (1, 2):
        log.add(Kind.HOLD, 1.0, worker, text="staleness bound")
    assert sentence_of(log, cuts).endswith("workers 1 and 2 wait for worker 3 (staleness bound)")


@pytest.mark.parametrize("cuts", [[], [2], [7]], ids=["whole", "after the first two", "after its push"])
def test_a_worker_that_joins_within_a_piece_starts_at_the_slowest_clock(cuts):
    log = EventLog()
    for kind, worker in zip("JJPPPJPPP", (0, 1, 0, 0, 0, 2, 2, 1, 1), strict=True):
        log.add(Kind.JOIN if kind == "J" else Kind.PUSH, 1.0, worker)
    log.add(Kind.HOLD, 3.0, 0, text="staleness bound")  # worker 1 is at 2, worker 2 at 1
    assert "worker 0 waits for worker 2" in sentence_of(log, cuts)


def closed(spans: pd.DataFrame, end: float) -> pd.DataFrame:
    """The spans that were over before the end of a log: later rows change none of them.

    How long a pull took is known with the push of the step that follows it.
    """
    followed = spans.groupby("worker")["end_s"].shift(-1) < end
    over = (spans["end_s"] < end) & (followed | (spans["phase"] != "pull"))
    return spans[over].astype({"phase": str, "reason": str}).reset_index(drop=True)


#: tables to which a longer log only adds rows
GROWING = {
    "chunks": metrics.chunks,
    "clock_lead": metrics.clock_lead,
    "evaluations": metrics.evaluations,
    "training_loss": lambda log: metrics.training_loss(log, 40),
    "staleness": metrics.staleness,
    "switches": lambda log: pd.DataFrame(metrics.switches(log, 40)),
    "rule_values": metrics.rule_values,
    "server_loads": metrics.server_loads,
}


@given(strategy=st.sampled_from(sorted(CATALOGUE)), seed=st.integers(0, 10_000), share=st.floats(0, 1))
@example(strategy="bounded_step", seed=0, share=0.5)  # a pull is over, its step is not
@settings(max_examples=15)
def test_the_beginning_of_a_log_gives_the_beginning_of_every_table(strategy, seed, share):
    log = cluster_of(strategy, seed).log
    begun = EventLog()
    begun.extend(log.rows(0, int(share * len(log))), log.texts[1:])
    for name, table in GROWING.items():
        early, late = table(begun), table(log)
        if len(early):
            pd.testing.assert_frame_equal(early, late.head(len(early)), check_dtype=False, obj=name)
    if len(begun):
        now = float(begun.rows()["time_s"][-1])
        late = metrics.timeline(log)
        pd.testing.assert_frame_equal(
            closed(metrics.timeline(begun), now),
            closed(late[late["end_s"] < now], now),
            check_dtype=False,
        )
