"""Properties of rules, runs and logs on random clusters with failures, rejoins and late joins.

What holds for every strategy is in `test_contract` (catalogue) and `test_compositions` (random compositions).
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psbench import strategies
from psbench.core.actions import Apply, Release
from psbench.core.events import Join, Leave, SwitchRequested
from psbench.core.log import FIELDS, ROW, EventLog, Kind
from psbench.core.view import Status
from psbench.errors import WorkerLost
from psbench.metrics import clock_lead
from psbench.metrics.rows import trained
from psbench.results.storage import read_log, write_log
from psbench.runs.execution import run
from psbench.runs.replaying import replay
from psbench.strategies import CATALOGUE, make_strategy
from psbench.testing import ScriptedCluster, toy_experiment
from psbench.testing.toys import toy_cluster

SECONDS = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 7.0])


@st.composite
def membership_changes(draw, workers):
    """Valid changes: active workers leave, others join; worker 0 is active at the start."""
    changes = []
    for worker in range(workers):
        here = worker == 0 or draw(st.booleans())
        at = 0.0
        for _ in range(draw(st.integers(0 if here else 1, 3))):
            at += draw(SECONDS)
            changes.append((at, Leave(worker) if here else Join(worker)))
            here = not here
    return changes


@st.composite
def clusters(draw, strategy, smallest=1):
    workers = draw(st.integers(smallest, 5))
    step_s = draw(st.lists(SECONDS, min_size=workers, max_size=workers))
    changes = draw(membership_changes(workers))
    if len(strategies.make_strategy(strategy).compositions) > 1:
        changes += [(draw(SECONDS) + 0.25, SwitchRequested())]
    return ScriptedCluster(
        strategy, step_s, changes=changes, epochs=8, val_loss=float, deliver_void=draw(st.booleans())
    )


@given(bound=st.integers(0, 4), data=st.data())
def test_ssp_never_starts_a_step_with_a_larger_lead_than_its_bound(bound, data):
    strategy = strategies.ssp(staleness_bound=bound)
    cluster = data.draw(clusters(strategy, smallest=2))
    while len(cluster.history) < 80 and not cluster.done:
        cluster.step()
        _, _, actions = cluster.history[-1]
        view = cluster.engine.view
        clocks = [w.clock for w in view.workers.values() if w.status != Status.GONE]
        for release in (a for a in actions if isinstance(a, Release)):
            assert view.workers[release.worker].clock - min(clocks) <= bound
        assert not clocks or max(clocks) - min(clocks) <= bound + 1
    leads = clock_lead(cluster.log)["lead"]
    assert not len(leads) or leads.max() <= bound


@given(k=st.integers(1, 5), data=st.data())
def test_k_variants_commit_k_different_workers_or_all_that_are_left(k, data):
    name = data.draw(st.sampled_from(["k_bsp", "k_asp"]))
    cluster = data.draw(clusters({"name": name, "k": k}, smallest=k))
    while len(cluster.history) < 60 and not cluster.done:
        cluster.step()
        for apply in (a for a in cluster.history[-1][2] if isinstance(a, Apply)):
            workers = {push.worker for push in apply.pushes}
            assert len(workers) == len(apply.pushes)
            assert len(workers) >= min(k, cluster.engine.view.num_active)
            assert name == "k_asp" or {push.base_version for push in apply.pushes} == {apply.version - 1}


# -------------------------------------------------------------------- whole runs in virtual time


@pytest.mark.slow
@given(data=st.data(), strategy=st.sampled_from(sorted(CATALOGUE)), seed=st.integers(0, 1000))
@settings(max_examples=10)
def test_a_simulated_run_with_failures_ends_as_asked_and_replays(data, strategy, seed):
    failures = []
    for worker in (1, 2):
        if data.draw(st.booleans()):
            at = data.draw(st.floats(0.001, 0.2))
            back = data.draw(st.none() | st.floats(0.001, 0.2))
            failures.append(
                {"worker": worker, "at_s": at} | ({} if back is None else {"rejoin_s": at + back})
            )
    joins = [{"worker": 3, "at_s": data.draw(st.floats(0.001, 0.2))}] if data.draw(st.booleans()) else []
    step_time = data.draw(st.sampled_from(["constant", "shifted_exponential", "pareto"]))
    cluster = toy_cluster(
        [1.0, 0.5, 0.25, 1.0], step_time=step_time, failures=failures, joins=joins, latency_s=0.0005
    )
    done = run(
        toy_experiment(
            strategy,
            cluster=cluster,
            stop={"epochs": 1, "seconds": 5},
            seed=seed,
            timing_only=needs_no_tensors(strategy),
        )
    )
    assert done.meta["status"] == "finished"
    times = done.log.columns()["time_s"]
    assert (np.diff(times) >= 0).all()
    if "epochs" in done.meta["reason"]:  # and not the seconds, within which few of hermes' chunks fit
        assert trained(done.log.rows())["samples"].sum() >= done.meta["dataset_size"]
    assert replay(done) == len(done.log)


def needs_no_tensors(name):
    made = make_strategy(name)
    rule = made.rule.needs_validation if len(made.compositions) > 1 else False
    return not (rule or any(c.needs_gradients or c.reads_validation for c in made.compositions))


@given(at=st.floats(0.001, 0.1))
@settings(max_examples=3)
def test_when_everybody_is_gone_for_good_the_run_says_so(at):
    failures = [{"worker": worker, "at_s": at} for worker in range(2)]
    cluster = toy_cluster([1.0, 0.5], failures=failures)
    with pytest.raises(WorkerLost, match="every worker is gone"):
        run(toy_experiment("bsp", cluster=cluster, timing_only=True, stop={"epochs": 50}))


# -------------------------------------------------------------------- the log and its files


def number(kind):
    limits = np.iinfo(kind)
    return st.integers(int(limits.min), int(limits.max))


SINGLE = st.floats(width=32, allow_nan=True, allow_infinity=False)
COLUMN = {"<f8": st.floats(0, 1e9), "<f4": SINGLE} | {kind: number(kind) for kind in ("<u2", "<i4", "<u4")}
COLUMNS = {name: COLUMN[kind] for name, kind in FIELDS if name not in ("kind", "text", "time_s")}
ROWS = st.fixed_dictionaries(
    COLUMNS | {"time_s": COLUMN["<f8"], "kind": st.sampled_from(Kind), "text": st.text(max_size=5)}
)


@st.composite
def logs(draw):
    log = EventLog()
    for row in draw(st.lists(ROWS, max_size=12)):
        log.add(**row)
    return log


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["parquet", "json"])
@given(log=logs())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_log_comes_back_from_a_file_as_it_was(suffix, log, tmp_path):
    path = tmp_path / f"log.{suffix}"
    write_log(log, path)
    again = read_log(path).log
    assert again.texts == log.texts
    for name, column in log.columns().items():
        np.testing.assert_array_equal(again.columns()[name], column)  # for which nan equals nan
    again.add(Kind.NOTE, 0.0, text="more")
    assert again.text(again.rows()["text"][-1]) == "more"


@pytest.mark.parametrize("suffix", ["parquet", "json"])
def test_a_runs_log_keeps_its_digest_in_a_file(suffix, tmp_path):
    log = run(toy_experiment("k_bsp", timing_only=True)).log  # whose losses are all nan
    write_log(log, tmp_path / f"log.{suffix}")
    assert read_log(tmp_path / f"log.{suffix}").log.digest() == log.digest()


@given(log=logs(), cuts=st.lists(st.integers(0, 12), max_size=3))
def test_a_log_that_grows_elsewhere_is_followed_piece_by_piece(log, cuts):
    copy = EventLog()
    copied = 1  # the empty text is there from the start
    for stop in [*sorted(min(cut, len(log)) for cut in cuts), len(log)]:
        rows = log.rows(len(copy), stop)
        needed = int(rows["text"].max(initial=copied - 1)) + 1
        copy.extend(rows, log.texts[copied:needed])
        copied = max(copied, needed)
    assert copy.rows().tobytes() == log.rows().tobytes()
    assert copy.texts == log.texts
    assert copy.digest() == log.digest()


def test_a_row_is_as_small_as_promised():
    assert ROW.itemsize == 47
