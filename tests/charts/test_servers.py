"""What each server holds: in a run's facts, its summary, its words and its picture."""

from __future__ import annotations

import json

import pytest

from psbench import charts, strategies
from psbench.charts import tables
from psbench.cli.words import summary_text
from psbench.core.part import Placement
from psbench.report import write_report
from psbench.runs import Run, run
from psbench.testing import toy_experiment

#: a linear model of 4 features and 3 classes: a matrix of 12 entries and a bias of 3
UNEVEN = {"name": "parameter_server", "servers": 2, "assignment": "layer"}


@pytest.fixture(scope="module")
def uneven() -> Run:
    return run(toy_experiment(strategies.bsp(placement=UNEVEN)))


def test_the_summary_says_what_each_server_holds(uneven):
    (held,) = json.loads(json.dumps(uneven.summary()))["servers"]
    assert held == {
        "composition": "bsp",
        **{"entries": [12, 3], "requests": [1, 1], "parts": [1, 1]},
        "imbalance": {"entries": pytest.approx(1.6), "requests": 1.0, "parts": 1.0},
    }


def test_one_server_or_none_is_not_worth_a_word():
    for name in ("bsp", "all_reduce"):
        done = run(toy_experiment(name))
        assert "servers" not in done.summary()
        assert charts.server_figures(done) == []
        assert "servers" not in [figure.name for figure in charts.worker_figures(done)]


def test_each_composition_with_several_servers_has_its_own():
    pair = strategies.strategy_switch(
        first="bsp", second={"name": "asp", "placement": UNEVEN}, rule={"name": "after", "fraction": 0.5}
    )
    done = run(toy_experiment(pair))
    assert [held["composition"] for held in done.summary()["servers"]] == ["asp"]
    both = strategies.strategy_switch(
        first={"name": "bsp", "placement": UNEVEN | {"assignment": "contiguous"}},
        second={"name": "asp", "placement": UNEVEN},
        rule={"name": "after", "fraction": 0.5},
    )
    titles = [figure.spec["title"] for figure in charts.server_figures(run(toy_experiment(both)))]
    assert ["under bsp" in titles[0], "under asp" in titles[1]] == [True, True]
    assert titles[0].endswith("1.07 times its share")  # 8 of 15
    assert titles[1].endswith("1.6 times its share")


def test_a_placement_that_only_says_ranges_is_weighed_by_entries():
    class Halves(Placement):
        def ranges(self, layout):
            return [[(0, 9)], [(9, 12)]]

    assert Halves().balance([("all", 12)]) == {"entries": [9, 3], "imbalance": {"entries": 1.5}}


def test_it_is_said_in_words(uneven):
    assert "servers        12, 3 entries; the fullest has 1.6 times its share" in summary_text(
        uneven.summary()
    )
    assert "servers" not in summary_text(run(toy_experiment("bsp")).summary())


def test_it_is_drawn(uneven):
    (figure,) = charts.server_figures(uneven)
    (table,) = tables.server_tables(uneven).values()
    assert table.query("quantity == 'entries'")["share"].tolist() == [0.8, 0.2]
    assert set(table["equal"]) == {0.5}
    assert figure.spec["title"] == "What each server holds: the fullest 1.6 times its share"
    assert list(figure.table) == ["server", "quantity", "count", "share"]
    assert charts.run_chart(uneven, "servers").to_dict()["vconcat"]


def test_the_report_shows_it(uneven, tmp_path):
    path = tmp_path / "report.html"
    write_report(path, uneven)
    assert "What each server holds" in path.read_text()
