"""Every chart's table, and what is drawn of it, is the one that plain loops over the log give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from oracles import drawings
from oracles.small_runs import NAMES
from oracles.story import end_of, rows_of, spans_of, starts_of
from oracles.summaries import QUALITY

from psbench import charts, metrics
from psbench.charts import Figure
from psbench.results.run import Run
from psbench.training.build import Workload

LABEL = "mine"


def check(figure: Figure, expected: drawings.Table, drawn: drawings.Table | None = None) -> None:
    """Check the table of a figure to nine digits, and the rows of its chart to those that are drawn."""
    columns = set(figure.table)
    drawings.same(figure.table.to_dict("records"), [_of(row, columns) for row in expected], 1e-9)
    values = figure.chart.data.values
    if figure.name == "idle" and not expected:
        assert values == [{"words": "No worker waited."}]
        return
    known = {name for row in values for name in row}
    drawings.same(values, [_of(row, known) for row in (expected if drawn is None else drawn)], 1e-5)


def _of(row: dict[str, Any], columns: set[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in columns}


def by_name(figures: Sequence[Figure]) -> dict[str, list[Figure]]:
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        found.setdefault(figure.name, []).append(figure)
    return found


@pytest.mark.by_day(4)
@pytest.mark.parametrize("name", NAMES)
def test_figures_of_what_workers_did(runs: dict[str, list[Run]], name: str) -> None:
    for run in runs[name][:1]:
        found, expected = by_name(charts.worker_figures(run, LABEL)), drawings.of_run(run, LABEL)
        assert {*found} - {"servers"} == {*expected}
        marks = drawings.switched(LABEL, [run])
        for figures, tables in ((found[figure], expected[figure]) for figure in expected):
            for figure, table in zip(figures, tables, strict=True):
                check(figure, table, [*table, *marks] if figure.name == "class_distance" else None)
        for figure in (*found["timeline"], *found.get("switch", ())):
            has_beside = len(metrics.sends_beside(run.log)) > 0
            assert ("see its reason. A send inside" in figure.note) == has_beside


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_timeline_and_the_shares_of_waiting(runs: dict[str, list[Run]], name: str) -> None:
    run = runs[name][0]
    spans = [
        {"worker": s.worker, "phase": s.phase, "reason": s.reason, "waited_for": s.whom}
        | {"start_s": s.start_s, "end_s": s.end_s}
        for s in spans_of(rows_of(run.log))
    ]
    drawings.same(metrics.timeline(run.log).to_dict("records"), spans, 1e-9)


@pytest.mark.by_day(9)
@pytest.mark.parametrize("name", NAMES)
def test_the_sequence_diagram(runs: dict[str, list[Run]], name: str) -> None:
    run = runs[name][0]
    check(charts.sequence_figure(run), drawings.sequence(run, drawings.sequence_end(run)))
    end = end_of(rows_of(run.log))
    check(charts.sequence_figure(run, end), drawings.sequence(run, end))


@pytest.mark.by_day(4)
@pytest.mark.parametrize("name", NAMES)
def test_curves_of_a_run_and_over_its_seeds(runs: dict[str, list[Run]], name: str) -> None:
    of_name = runs[name]
    found = by_name(charts.curves(of_name, [LABEL] * len(of_name)))
    marks = drawings.switched(LABEL, of_name)
    names = () if name == "timing" else QUALITY
    assert {*found} == {*names}
    for value in names:
        (figure,) = found[value]
        table = drawings.evaluated(LABEL, of_name, value)
        check(figure, table, [*table, *marks])


@pytest.mark.parametrize("x", drawings.AXES)
def test_words_are_at_the_first_switch_on_the_axis(runs: dict[str, list[Run]], x: str) -> None:
    """The first of these two switched sooner, after more samples and bytes."""
    two = [runs["overlap and a switch"][0], runs["rule"][0]]
    (figure, *_) = charts.curves(two, [LABEL] * 2, x=x)
    (rows,) = figure.spec["datasets"].values()
    marks = drawings.switched(LABEL, two, x)
    assert [mark["is_repeated"] for mark in marks] == [x in ("epoch", "bytes"), x in ("time_s", "updates")]
    drawings.same([row for row in rows if row["event"]], marks, 1e-5)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "timing"])
def test_the_training_loss_at_each_push(runs: dict[str, list[Run]], name: str) -> None:
    for run in runs[name]:
        found = metrics.training_loss(run.log, run.meta["dataset_size"])
        drawings.same(found.assign(label=LABEL).to_dict("records"), drawings.trained(LABEL, run), 1e-6)
        bins = 7
        drawings.same(
            metrics.throughput(run.log, bins).to_dict("records"), drawings.throughput(run, bins), 1e-9
        )


def test_labels_of_each_shard(runs: dict[str, list[Run]]) -> None:
    for name in ("barrier", "large", "votes"):
        run = runs[name][0]
        (figure,) = charts.label_figures(run)
        check(figure, drawings.labels(run, Workload.build(run.experiment).shards))


def test_what_each_server_holds(runs: dict[str, list[Run]]) -> None:
    (run,) = runs["moving"]
    (figure,) = by_name(charts.worker_figures(run))["servers"]
    placement = run.experiment.strategy.compositions[0].placement
    layout = [tuple(each) for each in run.meta["layout"]]
    held = drawings.servers(placement.ranges(layout))
    found = [row for row in figure.table.to_dict("records") if row["quantity"] == "entries"]
    assert [row["count"] for row in found] == held
    assert [row["share"] for row in found] == pytest.approx([each / sum(held) for each in held])
    (balance,) = run.summary()["servers"]
    assert balance["imbalance"]["entries"] == pytest.approx(max(held) / (sum(held) / len(held)))


# -------------------------------------------------------------------- several runs


@pytest.fixture(scope="session")
def groups(runs: dict[str, list[Run]]) -> dict[str, list[Run]]:
    """Runs of all kinds, of which some seeds have reasons to wait that others lack."""
    chosen = (
        "barrier",
        "losses",
        "switch",
        "votes",
        "overlap",
        "divergence",
        "bounded",
        "no barrier",
        "skewed",
    )
    return {name: runs[name] for name in chosen} | {"unlike": [runs["barrier"][0], runs["bounded"][0]]}


def test_figures_of_a_comparison(groups: dict[str, list[Run]]) -> None:
    found = by_name(charts.comparison_figures(groups))
    expected = {
        "time_use": [row for label, own in groups.items() for row in drawings.time_use(label, own)],
        "idle": drawings.idles(groups),
        "bytes": [row for label, own in groups.items() for row in drawings.traffic(label, own)],
    }
    for name, values in (("staleness", drawings.staleness), ("lead", drawings.leads)):
        expected[name] = [
            row
            for label, own in groups.items()
            for row in drawings.spread(label, [value for run in own for value in values(run)])
        ]
    expected["contributions"] = [row for label, own in groups.items() for row in drawings.fates(label, own)]
    assert drawings.is_far([run for own in groups.values() for run in own])
    expected["class_distance"] = [
        row for label, own in groups.items() for row in drawings.distances(own[0], label)
    ]
    first = [mark for label, own in groups.items() for mark in drawings.switched(label, own[:1])]
    both = drawings.pareto(groups)
    expected |= {"pareto_bytes": both, "pareto_silent_s": both}
    assert {*found} == {*expected}
    for name, table in expected.items():
        (figure,) = found[name]
        check(figure, table, [*table, *first] if name == "class_distance" else None)


@pytest.mark.parametrize("name", NAMES)
def test_clocks_and_leads_at_the_start_of_every_step(runs: dict[str, list[Run]], name: str) -> None:
    run = runs[name][0]
    found = metrics.clock_lead(run.log)[["time_s", "worker", "clock", "lead"]]
    expected = [(each.time_s, each.worker, each.clock, each.lead) for each in starts_of(rows_of(run.log))]
    assert list(found.itertuples(index=False, name=None)) == expected
