"""The offline search: bisection on a function, over runs, and from the command line."""

from __future__ import annotations

import json
import math
import os
import signal
from types import SimpleNamespace

import pytest
import torch

from psbench import strategies
from psbench.cli import main
from psbench.errors import BackendError, DataError, Diverged, ParameterError, UnknownName
from psbench.results.run import Run
from psbench.runs.execution import run
from psbench.runs.sweeps.search import Point, Search, at_fraction, bisect, find_fraction
from psbench.testing import toy_experiment


def crossing(at, low=0.5, high=0.92):
    """Accuracy that is reached from that share on."""
    return lambda fraction, seed: high if fraction >= at else low


def test_the_worked_example_crossing_at_8_percent():
    """M = 4: 50, 25, 12.5, 6.25 -> 12.5 %."""
    found = bisect(crossing(0.08), halvings=4)
    assert [100 * point.fraction for point in found.points] == [100, 50, 25, 12.5, 6.25]
    assert [point.keeps for point in found.points] == [True, True, True, True, False]
    assert found.fraction == 0.125


@pytest.mark.parametrize(
    ("at", "expected"),
    [(0.0625, 0.0625), (0.125, 0.125), (0.5, 0.5), (0.6, 0.625), (0.95, 1.0), (0.0, 0.0625)],
)
def test_the_result_is_the_upper_end_of_what_is_left(at, expected):
    found = bisect(crossing(at), halvings=4)
    assert found.fraction == expected
    assert found.fraction - at < 1 / 16 or at == 0.0


def test_an_accuracy_at_the_tolerance_is_kept_and_one_below_is_not():
    for tolerance, kept in ((0.25, True), (0.249, False)):
        found = bisect(crossing(1.0, low=0.5, high=0.75), halvings=1, tolerance=tolerance)
        assert found.points[1].keeps is kept


def test_means_of_all_runs_are_compared_with_the_same_seeds():
    asked = []

    def accuracy(fraction, seed):
        asked.append((fraction, seed))
        return 0.9 + 0.01 * (seed - 8) if fraction == 1 else 0.89 + 0.05 * (seed == 9) - 0.05 * (seed == 7)

    found = bisect(accuracy, runs=3, halvings=1, seed=7)
    assert asked == [(1.0, 7), (1.0, 8), (1.0, 9), (0.5, 7), (0.5, 8), (0.5, 9)]
    assert found.target == pytest.approx(0.9)
    assert found.points[1].mean == pytest.approx(0.89)
    assert found.points[1].values == pytest.approx((0.84, 0.89, 0.94))


def test_a_share_with_a_run_that_diverged_is_not_kept():
    found = bisect(lambda fraction, seed: 0.9 if fraction != 0.5 or seed else math.nan, runs=2, halvings=2)
    assert [(p.fraction, p.keeps) for p in found.points] == [(1.0, True), (0.5, False), (0.75, True)]
    json.dumps(found.to_dict(), allow_nan=False)


def test_there_must_be_an_accuracy_to_compare_with():
    with pytest.raises(Diverged, match="lower the learning rate"):
        bisect(lambda fraction, seed: math.nan)


@pytest.mark.parametrize(
    "options",
    [{"runs": 0}, {"halvings": -1}, {"tolerance": -0.1}, {"tolerance": math.nan}, {"tolerance": math.inf}],
)
def test_impossible_searches_are_refused(options):
    with pytest.raises(ParameterError, match="give runs from 1, halvings from 0"):
        bisect(crossing(0.5), **options)


def test_it_can_be_watched():
    seen = []
    bisect(crossing(0.3), runs=1, halvings=3, watch=seen.append)
    assert [len(search.points) for search in seen] == [1, 2, 3, 4]
    assert [search.fraction for search in seen] == [1.0, 0.5, 0.5, 0.375]


def test_of_a_loss_the_lower_is_the_better():
    """Half a run ends at a loss of 0.25 in the place of 0.2: kept if 0.05 more are allowed, lost at 0.04."""
    for tolerance, kept in ((0.0501, True), (0.04, False)):
        options = {"halvings": 1, "tolerance": tolerance, "metric": "loss", "lower": True}
        found = bisect(crossing(1.0, low=0.25, high=0.2), **options)
        assert found.points[1].keeps is kept
        assert found.table()["lost"].round(3).tolist() == [0.0, 0.05]
        assert "target: loss 0.2," in found.text(100)


def test_the_table_says_what_was_lost():
    found = bisect(crossing(0.3), runs=2, halvings=2)
    table = found.table()
    assert table["fraction"].tolist() == [1.0, 0.5, 0.25]
    assert table["lost"].round(2).tolist() == [0.0, 0.0, 0.42]
    text = found.text(100)
    assert "50\u00a0% of the epochs under the first strategy" in text
    assert "fewer than three runs" in text
    assert "speed-up" not in text


def test_cells_are_in_the_metrics_unit():
    """0.6 and 0.8 have the half-width 12.706 * .1 = 1.27 of a t interval; what is lost is in percent too."""
    values = {1.0: (0.9, 0.9), 0.5: (0.6, 0.8)}
    points = tuple(Point(fraction, own, fraction == 1.0) for fraction, own in values.items())
    headings, rows = Search(points, 0.1).cells()
    assert headings == ["first strategy", "runs", "accuracy", "lost", "kept"]
    assert rows[1] == ["50\u00a0%", "2", "70.00 ± 127\u00a0%", "20.00\u00a0%", "no"]
    assert Search(points, 0.1, "loss", lower=True).cells()[1][1][2:4] == ["0.7 ± 1.3", "-0.2"]
    assert Search(points, 0.1, interrupted=True).remarks[-1] == "stopped before the search was over"


def test_seconds_of_a_share_are_the_mean_of_its_runs():
    """5 and 2 seconds, of 14 in all."""

    def taking(*seconds):
        return [SimpleNamespace(summary=lambda s=s: {"time_s": s}) for s in seconds]

    points = (Point(1.0, (0.9, 0.9), True), Point(0.5, (0.9, 0.9), True))
    found = Search(points, 0.1, runs={1.0: taking(4.0, 6.0), 0.5: taking(1.0, 3.0)})
    assert found.table()[["time_s", "speed_up"]].to_numpy().tolist() == [[5.0, 1.0], [2.0, 2.5]]
    assert "all runs together took as long as 2.8 whole runs" in found.remarks


# -------------------------------------------------------------------- over runs


def test_a_notebook_shows_a_table_once(capsys, monkeypatch):
    found = bisect(crossing(0.08), halvings=2)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "12.5" not in found._repr_html_()
    assert "25\u00a0%" in found._repr_html_()
    assert "25\u00a0%" in found.text()
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_search_over_runs_on_sync_switch():
    experiment = toy_experiment("sync_switch", stop={"epochs": 2}, seed=4)
    found = find_fraction(experiment, runs=2, halvings=2, tolerance=1.0)
    assert [point.fraction for point in found.points] == [1.0, 0.5, 0.25]  # all is kept
    assert found.fraction == 0.25
    for point in found.points:
        assert [run.experiment.seed for run in found.runs[point.fraction]] == [4, 5]
        tried = [run.experiment.strategy.rule.fraction for run in found.runs[point.fraction]]
        assert tried == [point.fraction] * 2
        last = tuple(run.summary()["final"]["val_accuracy"] for run in found.runs[point.fraction])
        assert point.values == last
    seconds = [[run.summary()["time_s"] for run in found.runs[point.fraction]] for point in found.points]
    table = found.table()
    assert table["time_s"].tolist() == pytest.approx([sum(own) / 2 for own in seconds])
    assert table["speed_up"].tolist() == pytest.approx([sum(seconds[0]) / sum(own) for own in seconds])
    assert table["speed_up"][2] > 1  # ASP does not wait for the slowest
    whole = sum(map(sum, seconds)) / (sum(seconds[0]) / 2)
    assert f"all runs together took as long as {whole:.3g} whole runs" in found.remarks
    assert [row[0] for row in found.cells()[1]] == ["100\u00a0%", "50\u00a0%", "25\u00a0%"]
    assert "speed-up" in found.text(100)


@pytest.mark.parametrize(
    "rule", [{"name": "after"}, {"name": "stragglers", "policy": "elastic", "window": 2}]
)
def test_the_rest_of_the_rule_and_of_the_strategy_stays(rule):
    strategy = strategies.sync_switch(rule=rule, cost_s=1.5)
    changed = at_fraction(toy_experiment(strategy), 0.75).strategy
    assert changed.rule.fraction == 0.75
    assert changed.model_copy(update={"rule": strategy.rule}) == strategy


def test_a_metric_of_ones_own_is_searched_by_its_direction(monkeypatch):
    """Less perplexity is better; what has no direction, or is not evaluated, is refused before a run."""

    def perplexity(outputs, targets):
        return float(torch.exp(torch.nn.functional.cross_entropy(outputs, targets)))

    toy = toy_experiment("sync_switch", stop={"epochs": 1})
    declared = toy.but(metrics={"perplexity": {"function": perplexity, "better": "lower"}})
    found = find_fraction(declared, runs=1, halvings=1, tolerance=100.0, metric="perplexity", processes=1)
    assert found.lower
    assert list(found.table()["perplexity"]) == [
        found.runs[f][0].log.evaluations()[-1]["val_perplexity"] for f in (1.0, 0.5)
    ]
    monkeypatch.setattr("psbench.runs.sweeps.worker.run", None)
    with pytest.raises(UnknownName, match="metric of search 'perplexty'; did you mean 'perplexity'"):
        find_fraction(declared, metric="perplexty")
    with pytest.raises(ParameterError, match="search: is a large 'perplexity' good or bad"):
        find_fraction(toy.but(metrics={"perplexity": perplexity}), metric="perplexity")


@pytest.mark.parametrize("strategy", ["bsp", "strategy_switch"])
def test_the_strategy_must_switch_after_a_share(strategy):
    with pytest.raises(ParameterError, match="use sync_switch"):
        find_fraction(toy_experiment(strategy))


def test_there_must_be_accuracies():
    with pytest.raises(DataError, match="these runs evaluate nothing"):
        find_fraction(toy_experiment("sync_switch", timing_only=True))


# -------------------------------------------------------------------- command line


QUICK = ("--set", "stop={epochs: 1}", "--set", "cluster={workers: 2}", "--runs", "1", "--halvings", "1")


def test_the_command_prints_a_table_and_saves_the_runs(tmp_path, capsys, monkeypatch):
    assert main(["search", *QUICK, "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert "first strategy" in out
    assert "target: accuracy" in out
    assert "saved in" in err
    saved = [Run.load(path).experiment for path in (tmp_path / "out").iterdir()]
    assert sorted(each.strategy.rule.fraction for each in saved) == [0.5, 1.0]
    monkeypatch.setattr("psbench.runs.sweeps.worker.run", None)  # the same command makes no run again
    assert main(["search", *QUICK, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == out


def test_the_command_as_json(tmp_path, capsys):
    (tmp_path / "spec.yaml").write_text("{strategy: {name: sync_switch, momentum: ramped, policy: greedy}}")
    assert main(["search", str(tmp_path / "spec.yaml"), *QUICK, "--json", "--set", "seed=3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [point["fraction"] for point in found["points"]] == [1.0, 0.5]
    assert found["tolerance"] == 0.01


def test_the_command_refuses_before_the_first_run(capsys):
    assert main(["search", *QUICK, "--set", "strategy=ssp"]) == 2
    assert "use sync_switch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "name", "code"), [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143)]
)
def test_a_search_that_is_stopped_shows_what_it_has(number, name, code, capsys, monkeypatch):
    def second_is_stopped(experiment, **options):
        if experiment.strategy.rule.fraction == 0.5:
            os.kill(os.getpid(), number)
        return run(experiment, **options)

    monkeypatch.setattr("psbench.runs.sweeps.worker.run", second_is_stopped)
    assert main(["search", *QUICK]) == code
    out, err = capsys.readouterr()
    assert "found: 100\u00a0%" in out
    assert "stopped before the search was over" in out
    assert f"stopped by {name}" in err


def test_a_run_that_fails_ends_the_search(monkeypatch):
    def fails(experiment, **options):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("psbench.runs.sweeps.worker.run", fails)
    with pytest.raises(BackendError, match=r"share=100\u00a0%, seed 0: .*the disk is full"):
        find_fraction(toy_experiment("sync_switch"), runs=1, halvings=1)
