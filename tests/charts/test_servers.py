"""What each server holds: in a run's facts, its summary, its words and its picture."""

from __future__ import annotations

import json

import pytest

from psbench import charts, metrics, strategies
from psbench.charts import tables
from psbench.cli.summary_text import summary_text
from psbench.core.parts import Placement
from psbench.results.report import write_report
from psbench.results.run import Run
from psbench.runs.execution import run
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster

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


def test_a_single_server_is_not_mentioned():
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


# -------------------------------------------------------------------- parameters that move


@pytest.fixture(scope="module")
def moving() -> Run:
    """The link of the server that holds most is a quarter of the other's: 12 and 3 become 3 and 12."""
    placement = UNEVEN | {"reassignment": {"name": "by_load", "every": 5}}
    cluster = toy_cluster([1.0, 0.5], server_bandwidth_mbit_s=[1e-3, 4e-3], bandwidth_mbit_s=1e6)
    return run(toy_experiment(strategies.bsp(placement=placement), cluster=cluster, stop={"updates": 17}))


def test_the_summary_says_what_moved_and_what_came_of_it(moving):
    (moved,) = json.loads(json.dumps(moving.summary()))["reassignments"]
    assert {name: moved[name] for name in ("version", "moved", "bytes", "entries")} == {
        **{"version": 5, "moved": 9, "bytes": 36, "entries": [3, 12]}
    }
    # 12 entries at one byte rate against 3 at four times that: 16 to 1, and then 1 to 1
    assert moved["imbalance"] == {"before": pytest.approx(2 * 16 / 17), "after": pytest.approx(1.0)}
    assert "reassignments" not in run(toy_experiment("bsp")).summary()


def test_the_loads_are_a_table(moving):
    loads = metrics.server_loads(moving.log)
    assert loads["look"].tolist() == [1, 1, 2, 2, 3, 3]
    assert loads["server"].tolist() == [0, 1] * 3
    assert loads["relative"].tolist() == pytest.approx([32 / 17, 2 / 17, 1, 1, 1, 1])
    # at the first look: 5 pushes of each of 2 workers and the 10 releases before them, 60 bytes each
    assert loads["load_s"][0] == pytest.approx(20 * 60 * 0.8 / 125)
    assert metrics.server_loads(run(toy_experiment("bsp")).log).empty


def test_a_move_is_said_in_words(moving):
    text = summary_text(moving.summary())
    assert "re-assigned" in text
    assert "9 entries (0.036 kB)" in text
    assert "now 3, 12; the busiest server worked 1.88 times the mean, then 1" in text


def test_the_loads_are_drawn(moving, tmp_path):
    held, loads = charts.server_figures(moving)
    assert (held.name, loads.name) == ("servers", "server_load")
    assert loads.table["event"].dropna().tolist() == ["9 entries moved"]
    assert len(loads.table) == 7
    path = tmp_path / "report.html"
    write_report(path, moving)
    assert "How busy each server was" in path.read_text()
