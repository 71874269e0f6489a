"""Whose work counts, and which samples the model has seen: identities, closed forms, and a second count."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest
from toybox import put_in, take_out

import psbench as ps
from psbench.charts.figures import trained_figures
from psbench.core import ClusterView, Commit, Consistency, Discard, Push, Release, parameter
from psbench.core.log import EventLog, Kind
from psbench.errors import DataError, ParameterError, PsbenchError, SpecError, UnknownName
from psbench.metrics import contributions, group_distance, share_of_applied, trained_groups
from psbench.metrics.contributions import Work, counted, starved_workers
from psbench.metrics.rows import workers_of
from psbench.metrics.trained_groups import Groups, distance, groups_of
from psbench.runs.recount import samples_of
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.trainer import Trainer

CONSTANT = {"step_time": "constant", "latency_s": 0.0, "bandwidth_mbit_s": 1e6}
SKEWED = {"name": "dirichlet", "alpha": 0.1, "min_size": 1}
#: five workers, of which one is ten times slower
FIVE = toy_cluster([1.0, 1.0, 1.0, 1.0, 0.1])


def starved(log):
    return starved_workers(counted(log), workers_of(log.rows()))


class DropStale(Consistency):
    """Commit each push at once, unless it is too stale; as the site's how-to has it."""

    name = "counted_drop_stale"
    source = "the how-to"
    waits_for = "none"
    singly = True

    max_staleness: int = parameter(8, "staleness above which a push is dropped", unit="versions", ge=0)

    def on_push(self, push: Push, view: ClusterView):
        """Drop what is too stale."""
        if view.version - push.base_version > self.max_staleness:
            return [Discard(push, "too stale"), Release(push.worker)]
        return [Commit([push]), Release(push.worker)]


PARTS = take_out("counted_")


@pytest.fixture(autouse=True)
def known():
    put_in(PARTS)
    yield
    take_out("counted_")


def drop_stale(bound: int, **changes):
    strategy = {"consistency": {"name": "counted_drop_stale", "max_staleness": bound}}
    return ps.run(toy_experiment(strategy, cluster=FIVE, batch_size=20, **changes))


# -------------------------------------------------------------------- who counts


def test_bsp_on_equal_shards_gives_each_worker_its_share():
    run = ps.run(toy_experiment("bsp", batch_size=12))
    frame = contributions(run.log)
    assert {*frame["fate"]} == {"used"}
    assert {*frame["age"]} == {0}
    assert (frame["samples"] / frame["samples"].sum()).tolist() == [1 / 3] * 3
    uneven = contributions(ps.run(toy_experiment("bsp", batch_size=13)).log)  # 5, 4 and 4
    assert (uneven["samples"] / uneven["samples"].sum()).tolist() == pytest.approx([5 / 13, 4 / 13, 4 / 13])


@pytest.mark.parametrize("bound", [30, 60])
def test_a_bound_on_staleness_starves_a_slow_worker(bound):
    """While it takes a step, the four others make forty versions."""
    run = drop_stale(bound, stop={"updates": 820})
    frame = contributions(run.log)
    slow = frame[frame["worker"] == 4]
    shares = share_of_applied(run.log)["share"]
    found = run.summary()["contributions"]
    if bound == 30:
        finished = int(slow["gradients"].sum())
        assert finished == 20
        assert slow[["fate", "gradients"]].values.tolist() == [["too stale", finished]]
        assert shares[4] == 0
        assert found["unused"] == {"too stale": finished}
        assert run.summary()["warnings"][0] == (
            f"worker 4: 0 of {finished} gradients used ({finished} too stale), "
            "so the model never learned its shard"
        )
    else:
        assert {*slow["fate"]} == {"used"}
        assert set(slow["age"][1:]) == {40}
        assert shares[4] == pytest.approx(1 / 41, rel=1e-12)  # 2.4 %
        assert found["unused"] == {}
        assert starved(run.log) == []
    assert shares.sum() == pytest.approx(1)


@pytest.mark.parametrize("cancel", ["immediate", "on_arrival"])
def test_k_bsp_under_constant_times(cancel):
    """Workers of speed 1, 1, 1/2 and 1/4: a round of k = 2 ends with the first two, and lasts one step."""
    strategy = {"name": "k_bsp", "k": 2, "cancel": cancel}
    rounds = 12
    run = ps.run(
        toy_experiment(strategy, cluster=toy_cluster([1.0, 1.0, 0.5, 0.25]), stop={"updates": rounds})
    )
    frame = contributions(run.log).groupby(["worker", "fate"])["gradients"].sum().to_dict()
    used = {(worker, "used"): rounds for worker in (0, 1)}
    if cancel == "immediate":  # both slow workers begin anew with each round
        void = {(worker, "cancelled"): rounds for worker in (2, 3)}
    else:  # they finish every second and every fourth round, too late
        void = {(2, "late"): rounds // 2, (3, "late"): rounds // 4}
    assert frame == used | void


def test_work_is_counted_once_whatever_becomes_of_it():
    """The toy runs of all kinds of loss: what is finished is used, or has a reason."""
    failing = FIVE | {
        "failures": [{"worker": 1, "at_s": 0.031, "rejoin_s": 0.082}, {"worker": 2, "at_s": 0.05}]
    }
    for strategy in (
        "asp",
        "bsp",
        {"name": "k_bsp", "k": 2},
        {"name": "selsync", "delta": 0.2},
        "backup_workers",
    ):
        run = ps.run(toy_experiment(strategy, cluster=failing, batch_size=20, stop={"epochs": 4}))
        summary, found = run.summary(), run.summary()["contributions"]
        kept = summary.get("local_steps", {}).get("local", 0)
        assert found["used"] == summary["pushes"]["committed"] + kept
        ends = ("cancelled", "its worker left")
        assert sum(found["unused"].get(why, 0) for why in ends) == summary["cancelled"]
        assert found["unused"].get("buffered at the end", 0) == summary["pushes"]["buffered"]
        assert found["unused"].get("late", 0) == summary["pushes"]["discarded"]
        used = contributions(run.log).query("fate == 'used'")
        assert used["samples"].sum() == pytest.approx(summary["epochs"] * 96)


def test_fates_of_a_log_written_by_hand():
    log = EventLog()
    for worker in range(4):
        log.add(Kind.JOIN, 0.0, worker)
        log.add(Kind.RELEASE, 0.0, worker)
    for push, worker in enumerate((0, 0, 0, 1)):
        log.add(Kind.PUSH, 1.0, worker, push, 0, 8, 1)
    log.add(Kind.APPLY, 1.0, 0, 0, 1, 8, 1, loss=1.0)
    log.add(Kind.APPLY, 1.0, 1, 3, 4, 8, 1, loss=0.5)
    log.add(Kind.APPLY, 1.0, 0, 1, 2, 8, 1, loss=0.0)
    log.add(Kind.DISCARD, 1.0, 0, 2, text="late")
    log.add(Kind.PUSH, 2.0, 2, 4, 0, 6, 1)
    log.add(Kind.CANCEL, 2.0, 3)
    log.add(Kind.RELEASE, 2.0, 3)
    log.add(Kind.LEAVE, 3.0, 3)
    assert contributions(log).fillna(-1).values.tolist() == [
        [0, "used", 0, 1, 8], [0, "applied with weight 0", -1, 1, 8], [0, "late", -1, 1, 8],
        [1, "used", 3, 1, 8],
        [2, "buffered at the end", -1, 1, 6],
        [3, "cancelled", -1, 1, 0], [3, "its worker left", -1, 1, 0],
    ]  # fmt: skip


def test_a_worker_of_which_little_is_used_is_named():
    log = EventLog()
    for worker in (0, 3, 5):
        log.add(Kind.JOIN, 0.0, worker)
    assert starved(log) == []  # nothing was used at all
    for push in range(12):
        log.add(Kind.PUSH, 1.0, 3, push, 0, 4, 1)
        if push:
            log.add(Kind.DISCARD, 1.0, 3, push, text="late" if push < 4 else "delay")
    log.add(Kind.APPLY, 1.0, 3, 0, 1, 4, 1, loss=1.0)
    log.add(Kind.PUSH, 1.0, 5, 12, 0, 4, 1)
    log.add(Kind.DISCARD, 1.0, 5, 12, text="late")
    assert starved(log) == [
        "worker 0: it finished no gradient, so the model never learned its shard",
        "worker 3: 1 of 12 gradients used (8 delay, 3 late): it is starved",
        "worker 5: 0 of 1 gradients used (1 late), so the model never learned its shard",
    ]


# -------------------------------------------------------------------- which samples


def test_shares_of_classes_sum_to_one_and_are_those_of_the_data_under_bsp():
    run = ps.run(toy_experiment("bsp"))
    frame = trained_groups(run.log, run.meta)
    assert frame["group"].tolist() == run.meta["classes"]
    assert frame[["share", "whole"]].sum().tolist() == pytest.approx([1, 1])
    assert frame["samples"].sum() == pytest.approx(96 * run.summary()["epochs"])
    # equal shares of three equal shards are the data
    np.testing.assert_allclose(frame["share"], frame["whole"], rtol=1e-12)
    assert run.summary()["contributions"]["class_distance"] == pytest.approx(0, abs=1e-12)
    assert group_distance(run.log, run.meta)["class_distance"].max() == pytest.approx(0, abs=1e-12)


def test_asp_on_skewed_shards_trains_on_another_distribution():
    """With constant times a worker's share is its speed's; the distance follows from the shards."""
    run = ps.run(toy_experiment("asp", sharding=SKEWED, stop={"updates": 700}, timing_only=False))
    counts = np.array(run.meta["label_counts"], dtype=float)
    speeds = np.array([4, 2, 1]) / 7
    mix = speeds @ (counts / counts.sum(1, keepdims=True))
    whole = counts.sum(0) / counts.sum()
    expected = np.abs(mix - whole).sum() / 2
    found = group_distance(run.log, run.meta)
    assert found["class_distance"].iloc[-1] == pytest.approx(expected, abs=0.01)
    assert run.summary()["contributions"]["class_distance"] == pytest.approx(expected, abs=0.01)
    assert len(found) == 700 // 3
    assert expected > 0.05


def test_shares_of_neighbourhoods_are_of_the_samples_that_were_drawn(monkeypatch):
    """A selection draws more of the rare cloud than shards have, and its pushes say how many."""
    drawn, learn = defaultdict(list), Trainer.learn

    def noted(self, job, result):
        drawn[job.worker].append(job.indices)
        return learn(self, job, result)

    monkeypatch.setattr(Trainer, "learn", noted)
    data = {"name": "mixture", "num_samples": 240, "num_classes": 2, "clouds_per_class": 3, "rare": 0.2}
    selection = {"name": "data_aware", "neighbourhoods": "column", "focus": 0.9, "temperature": 0.1}
    run = ps.run(toy_experiment({"name": "k_asp", "selection": selection}, data=data, stop={"epochs": 4}))
    clouds = run.experiment.data.load(Streams(run.experiment.seed)).column("cloud")
    pushed = {int(row["id"]): int(row["worker"]) for row in run.log.rows() if row["kind"] == Kind.PUSH}
    used = {int(row["id"]) for row in run.log.rows() if row["kind"] == Kind.APPLY and row["loss"] != 0}
    expected = np.zeros(6)
    for push, worker in sorted(pushed.items()):
        indices = drawn[worker].pop(0)
        expected += np.bincount(clouds[indices], minlength=6) if push in used else 0
    found = trained_groups(run.log, run.meta, by="neighbourhood")
    assert found["samples"].tolist() == expected.tolist()
    assert found["share"].iloc[5] > 1.5 * found["whole"].iloc[5]
    assert found["group"].tolist() == [f"cloud {h}" for h in range(6)]
    assert "neighbourhoods" in [figure.name for figure in trained_figures([run], ["one"])]
    far = group_distance(run.log, run.meta, by="neighbourhood")["neighbourhood_distance"]
    assert 0 < far.iloc[-1] < 1


def test_classes_are_exact_where_they_are_the_neighbourhoods():
    run = ps.run(toy_experiment({"name": "bsp", "selection": "data_aware"}, stop={"epochs": 2}))
    by_class, own = (trained_groups(run.log, run.meta, by=by) for by in ("class", "neighbourhood"))
    assert by_class.to_dict() == own.to_dict()
    assert (by_class["samples"] % 1 == 0).all()
    plain = ps.run(toy_experiment("bsp", stop={"epochs": 2}))
    assert groups_of(plain.meta, "neighbourhood") is None
    assert len(trained_groups(plain.log, plain.meta, by="neighbourhood")) == 0


def test_neighbourhoods_are_saved_and_a_wrong_record_is_refused(tmp_path):
    run = ps.run(toy_experiment({"name": "asp", "selection": "data_aware"}, stop={"epochs": 2}))
    run.save(tmp_path / "run")
    saved = ps.Run.load(tmp_path / "run")
    assert saved.frame("neighbourhoods").to_dict() == run.frame("neighbourhoods").to_dict()
    file = tmp_path / "run" / "run.json"
    record = json.loads(file.read_text())
    record["meta"]["neighbourhoods"]["shards"].pop()
    file.write_text(json.dumps(record))
    with pytest.raises(PsbenchError, match="neighbourhoods: does not have a number for each name and worker"):
        ps.Run.load(tmp_path / "run")


def test_the_distance_is_0_for_equal_and_1_for_disjoint_shares():
    same, other = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])
    assert distance(same, same) == 0
    assert distance(same, other) == 1


def test_groups_that_a_run_does_not_describe():
    run = ps.run(toy_experiment("asp", timing_only=True))
    assert groups_of(run.meta) is None
    assert len(trained_groups(run.log, run.meta)) == len(group_distance(run.log, run.meta)) == 0
    assert run.summary()["contributions"]["class_distance"] is None
    with pytest.raises(UnknownName, match="partition of samples 'colour'"):
        groups_of(run.meta, "colour")


def test_shared_samples_are_those_of_the_workers_that_share_them():
    """Data injection: half of worker 0's batch of 8 is worker 1's."""
    log = EventLog()
    for worker in (0, 1):
        log.add(Kind.JOIN, 0.0, worker)
    log.add(Kind.RELEASE, 0.0, 0, text='{"injection":{"each":4,"workers":[1]}}')
    log.add(Kind.PUSH, 1.0, 0, 0, 0, 8, 1)
    log.add(Kind.APPLY, 1.0, 0, 0, 1, 8, 1, loss=1.0)
    meta = {"classes": ["a", "b"], "label_counts": [[10, 0], [0, 10]], "class_counts": [10, 10]}
    assert trained_groups(log, meta)["samples"].tolist() == [4, 4]
    log.add(Kind.RELEASE, 1.0, 0, text='{"injection":{"each":0,"workers":[]}}')
    log.add(Kind.PUSH, 2.0, 0, 1, 1, 8, 1)
    log.add(Kind.APPLY, 2.0, 0, 1, 2, 8, 1, loss=1.0)
    assert trained_groups(log, meta)["samples"].tolist() == [12, 4]
    log.add(Kind.RELEASE, 2.0, 0, text='{"injection":{"each":4,"workers":[1]}}')
    log.add(Kind.HANDOVER, 2.0, id=1)  # ends what the composition before has ordered
    log.add(Kind.RELEASE, 2.0, 0)
    log.add(Kind.PUSH, 3.0, 0, 2, 2, 8, 1)
    log.add(Kind.APPLY, 3.0, 0, 2, 3, 8, 1, loss=1.0)
    assert trained_groups(log, meta)["samples"].tolist() == [20, 4]


def test_samples_of_a_worker_that_there_is_not_are_refused():
    log = EventLog()
    log.add(Kind.RELEASE, 0.0, 0, text='{"injection":{"each":4,"workers":[7]}}')
    log.add(Kind.PUSH, 1.0, 0, 0, 0, 8, 1)
    log.add(Kind.APPLY, 1.0, 0, 0, 1, 8, 1, loss=1.0)
    meta = {"classes": ["a"], "label_counts": [[10], [0]], "class_counts": [10]}
    with pytest.raises(DataError, match="samples of worker 7 of 2"):
        trained_groups(log, meta)


# -------------------------------------------------------------------- counted again

FOUR = toy_cluster([1.0, 0.8, 0.5, 0.25], latency_s=0.001, bandwidth_mbit_s=0.5)
LOSING = FOUR | {"failures": [{"worker": 1, "at_s": 0.031, "rejoin_s": 0.082}]}
#: while it takes its second three steps
COMPUTING = FOUR | {"failures": [{"worker": 1, "at_s": 0.07}]}
COUNTED = {
    "asp": ("asp", FOUR),
    "a switch": ({"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.4}}, FOUR),
    "cancelled": ({"name": "k_bsp", "k": 2}, FOUR),
    "a codec, cancelled": ({"name": "k_batch_bsp", "k": 2, "codec": "fp16"}, FOUR),
    "losses": ("asp", LOSING),
    "local steps": ({"name": "local_sgd", "local_steps": 3}, FOUR),
    "votes": ({"name": "selsync", "delta": 0.2}, FOUR),
    "overlap": ({"name": "osp", "local_steps": 2}, FOUR),
    "batch sizes": ("lb_bsp", FOUR),
    "helpers": ("flex_rr", toy_cluster([1.0, 1.0, 1.0, 0.3])),
    "krum": ({"name": "bsp", "aggregation": "krum"}, FOUR),
}


@pytest.mark.by_day(5)
@pytest.mark.parametrize("name", COUNTED)
def test_the_samples_of_each_push_are_those_that_the_run_drew(name, monkeypatch):
    drawn = defaultdict(list)
    start = Trainer.start

    def noted(self, worker, *arguments):
        task = start(self, worker, *arguments)
        drawn[worker].append(task.indices)
        return task

    monkeypatch.setattr(Trainer, "start", noted)
    strategy, cluster = COUNTED[name]
    run = ps.run(
        toy_experiment(strategy, cluster=cluster, sharding=SKEWED, batch_size=16, stop={"epochs": 4})
    )
    pushed = {int(row["id"]): int(row["worker"]) for row in run.log.rows() if row["kind"] == Kind.PUSH}
    found = [*samples_of(run)]
    assert {push for push, _ in found} - {-1} == {*pushed}
    if name in ("cancelled", "a codec, cancelled", "losses"):  # then there are gaps
        ends = {worker: [task.tolist() for task in each] for worker, each in drawn.items()}
        assert all(indices.tolist() in ends[pushed[push]] for push, indices in found)
    else:
        for worker in drawn:
            own = [i for push, i in found if pushed.get(push) == worker]
            if -1 not in {push for push, _ in found}:
                together = np.concatenate(own)
                np.testing.assert_array_equal(together, np.concatenate(drawn[worker])[: len(together)])
    counted = ps.recount(run)
    applied = [row for row in run.log.rows() if row["kind"] == Kind.APPLY and row["loss"] != 0]
    kept = sum(row["samples"] for row in run.log.rows() if row["kind"] == Kind.RELEASE)
    assert counted["samples"].sum() == sum(row["samples"] for row in applied) + kept
    assert counted["share"].sum() == pytest.approx(1)


def test_whole_passes_over_equal_shards_are_the_data_exactly():
    run = ps.run(
        toy_experiment("bsp", stop={"epochs": 3}, sharding="random")
    )  # 8 steps of 4 are a pass of 32
    counted = ps.recount(run)
    np.testing.assert_allclose(counted["share"], counted["whole"], rtol=1e-15)
    assert counted["samples"].tolist() == trained_groups(run.log, run.meta)["samples"].round(9).tolist()
    assert counted.attrs["distance"] == pytest.approx(0, abs=1e-15)


def test_samples_are_counted_by_groups_of_one_s_own():
    run = ps.run(toy_experiment("bsp", stop={"epochs": 2}, sharding="random"))
    halves = ps.recount(run, by=np.arange(96) % 2)
    assert halves["samples"].tolist() == [96, 96]
    with pytest.raises(ParameterError, match="3 group numbers for 96 samples"):
        ps.recount(run, by=[0, 1, 1])


@pytest.mark.parametrize(
    ("strategy", "changes", "reason"),
    [
        ("asp", {"timing_only": True}, "reads no data"),
        ({"name": "asp", "selection": "with_replacement"}, {}, "selection 'with_replacement' chose samples"),
        ({"name": "hermes", "chunk_samples": 16, "chunk_batch": 4}, {}, "chunks of data"),
        (
            {"name": "selsync", "delta": 0.2, "sharing_workers": 0.5, "shared_fraction": 0.5},
            {},
            "data injection",
        ),
        ({"name": "local_sgd", "local_steps": 3}, {"cluster": COMPUTING}, "worker 1 lost work"),
    ],
)
def test_runs_that_do_not_say_what_they_drew_are_refused(strategy, changes, reason):
    run = ps.run(toy_experiment(strategy, **{"batch_size": 16, "stop": {"epochs": 4}} | changes))
    with pytest.raises(SpecError, match=reason):
        ps.recount(run)


def test_counts_from_new_rows_alone_are_those_of_the_whole():
    run = ps.run(toy_experiment({"name": "k_bsp", "k": 2}, cluster=LOSING, sharding=SKEWED))
    rows = run.log.rows()
    whole, halves = Work(), Work()
    whole.read(rows)
    for begin in range(0, len(rows), 7):
        halves.read(rows[begin : begin + 7])
    assert halves.rows(run.log) == whole.rows(run.log)
    assert any(row[1] == "cancelled" for row in whole.rows(run.log))


def test_groups_are_shares():
    groups = Groups.of_counts(["a", "b"], [[1, 3], [2, 2]], [3, 5])
    assert groups.of_shards.tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert groups.whole.tolist() == [0.375, 0.625]
