"""What a comparison does not say: a speed-up of unequal work, and what only looks like a difference."""

from __future__ import annotations

import signal
from base64 import b64decode
from typing import Any

import pandas as pd
import pytest
from smoke_sizes import BLANK

import psbench as ps
from psbench.backends.control import Control
from psbench.core.log import EventLog, Kind
from psbench.core.target import Target
from psbench.errors import Interrupted
from psbench.experiment import Experiment
from psbench.results.budget import unequal_epochs
from psbench.results.comparison import Comparison
from psbench.results.comparison_table import as_text, text_cells
from psbench.results.labels import labels_of
from psbench.results.remarks import of_target
from psbench.results.run import Run
from psbench.results.text import table_text, two_digits
from psbench.testing import toy_experiment


def made(strategy: Any = "bsp", seed: int = 0, control: Control | None = None, **changes: Any) -> Run:
    return ps.run(toy_experiment(strategy, seed=seed, **changes), control=control)


def stopped(strategy: str = "asp", seed: int = 0) -> Run:
    """A run that was stopped by hand after some updates."""
    control = Control()

    def stop(log: Any) -> None:
        if len(log) > 20:
            control.stop()

    return ps.run(toy_experiment(strategy, seed=seed), control=control, observer=stop)


def views(compared: Comparison, tmp_path: Any) -> dict[str, str]:
    """Everything that shows a comparison, as text."""
    bundle, _ = compared.chart("val_accuracy")._repr_mimebundle_()
    return {
        "text": compared.text(200),
        "notebook": compared._repr_html_(),
        "report": compared.report(tmp_path / "report.html").read_text(),
        "data": str(compared.to_dict()["warnings"]),
        "chart": bundle["text/plain"],
        "picture": str(compared.chart("val_accuracy").to_dict()["title"]),
    }


class TestSpeedUps:
    def test_of_equal_work_there_is_one(self):
        compared = ps.compare([made("bsp"), made("asp")])
        table = compared.table().set_index("strategy")
        assert table["speed_up"]["asp"] == table["time_s"]["bsp"] / table["time_s"]["asp"]
        assert compared.no_speed_up == {}

    @pytest.mark.parametrize(
        ("other", "reason"),
        [
            ({"stop": {"epochs": 3}}, "of another budget"),
            ({"batch_size": 24}, "of another budget"),
            ({"cluster": {"workers": 4}}, "on another test bed"),
            ({"data": {"name": "mixture", "separation": 2.0}}, "on another test bed"),
        ],
        ids=str,
    )
    def test_of_unequal_work_there_is_none(self, other, reason):
        compared = ps.compare([made("bsp"), made("asp", **other)])
        assert compared.table()["speed_up"].isna().tolist() == [False, True]
        assert compared.no_speed_up == {"asp": reason}
        assert f"no speed-up of asp against bsp: {reason}" in compared.remarks
        assert not any(line.startswith("speed-up against") for line in compared.remarks)

    def test_of_equal_budgets_that_were_not_used_equally_there_is_none(self, tmp_path):
        """Of 800 samples, a tenth: 256 in one update of all workers, or 64 in each of two."""
        given = {"stop": {"epochs": 0.1}, "batch_size": 256, "cluster": {"workers": 4}}
        given |= {"data": {"name": "mixture", "num_samples": 1000}}
        strategies = ("bsp", "asp", "fsdp")
        runs = [
            ps.run(Experiment(strategy=each, seed=seed, **given)) for each in strategies for seed in (0, 1)
        ]
        compared = ps.compare(runs, test=True)
        table = compared.table().set_index("strategy")
        assert table["epochs"].tolist() == [256 / 800, 128 / 800, 256 / 800]
        reason = "unequal: 0.16 and 0.32 epochs"
        assert compared.no_test == {"asp": reason}
        assert compared.no_speed_up["asp"] == reason
        assert set(compared.tests()["strategy"]) == {"fsdp"}
        assert f"no test of asp against bsp: {reason}" in compared.remarks
        said = "unequal: 0.32 (bsp) and 0.16 (asp) epochs, given epochs 0.1 on mixture, global batch 256"
        for view in views(compared, tmp_path).values():
            assert said in " ".join(view.replace("\n", " ").split())
        headings, rows = compared.cells()
        assert [row[headings.index("epochs trained")] for row in rows] == ["0.32", "0.16", "0.32"]
        whole = ps.compare(compared.runs, equal="updates")
        assert (whole.no_test, "equal updates" in whole.budget) == ({}, True)

    @pytest.mark.parametrize(("samples", "reason"), [(2100, ""), (2101, "unequal: 2.1 and 2 epochs")])
    def test_more_than_5_percent_apart_is_unequal(self, samples, reason):
        """Of 1,000 samples, two epochs; in either order, and for the mean of several seeds."""
        given = toy_experiment(stop={"epochs": 2})

        def trained_on(samples: int) -> Run:
            log = EventLog()
            log.add(Kind.APPLY, 1.0, 0, 0, 1, samples, 1)
            return Run(given, log, {"dataset_size": 1000})

        base, other = [trained_on(2000)], [trained_on(samples)]
        assert unequal_epochs(other, base) == reason
        assert bool(unequal_epochs(base, other)) == bool(reason)
        assert unequal_epochs([trained_on(2000), trained_on(2 * samples - 2000)], base) == reason
        assert not unequal_epochs(other, base, "equal samples: 2 epochs")

    def test_a_run_that_reaches_its_target_early_had_the_same_budget(self):
        stop = {"epochs": 2, "target_accuracy": 0.01}
        runs = [made("bsp", stop=stop), made("asp", stop=stop)]
        assert ps.compare(runs).no_test == {}

    def test_of_runs_that_end_by_the_clock_there_is_none(self):
        """All of them take as long, whatever they have done by then."""
        by_seconds = {"seconds": 0.1}
        compared = ps.compare([made("bsp", stop=by_seconds), made("asp", stop=by_seconds)])
        assert compared.table()["speed_up"].isna().all()
        assert "speed-up" not in compared.cells()[0]
        ended = {"epochs": 2, "seconds": 1000}  # a limit that no run came to
        both = made("bsp", stop=ended), made("asp", stop=ended)
        assert ps.compare(both).no_speed_up == {}
        assert "speed-up" in ps.compare(both).cells()[0]
        assert "time_s_sd,speed_up," in ",".join(ps.compare(both).table())
        # only one of them comes to this
        between = {"epochs": 2, "seconds": sum(run.summary()["time_s"] for run in both) / 2}
        compared = ps.compare([made("bsp", stop=between), made("asp", stop=between)])
        assert "ended at their time limit" in compared.no_speed_up["asp"]

    @pytest.mark.by_day(1)
    @pytest.mark.slow
    @pytest.mark.parametrize("place", ["baseline", "other"])
    def test_of_a_run_that_was_stopped_there_is_none_and_every_view_says_so(
        self, place, tmp_path, monkeypatch
    ):
        # pixels are not looked at
        monkeypatch.setattr("vl_convert.vegalite_to_png", lambda *_, **__: b64decode(BLANK))
        runs = [stopped("bsp"), made("asp")] if place == "baseline" else [made("bsp"), stopped("asp")]
        compared = ps.compare(runs, baseline="bsp")
        assert compared.no_speed_up["asp"] == "not all of these runs are complete"
        shown = views(compared, tmp_path)
        assert [name for name, text in shown.items() if "stopped before its end, after" not in text] == []
        assert "not compared with bsp, not all of these runs are complete" in shown["report"]

    def test_a_chart_of_a_stopped_run_says_so(self):
        assert "stopped before its end" in str(stopped().chart("val_accuracy").to_dict()["title"])
        assert "title" not in made().chart("val_accuracy").to_dict()


class TestTargets:
    def runs(self) -> list[Run]:
        return [made("asp", seed) for seed in range(3)]

    def test_one_seed_of_three_that_reaches_it_is_said(self):
        runs = self.runs()
        best = sorted(run.summary()["best_val_accuracy"] for run in runs)
        compared = ps.compare(runs, target=best[-1])
        reached = sum(value >= best[-1] for value in best)
        assert 0 < reached < 3
        (row,) = compared.table().to_dict("records")
        assert row["time_to_target_s"] is None or row["time_to_target_s"] != row["time_to_target_s"]
        assert row["time_to_target_reached"] == reached
        times = [run.summary() for run in runs]
        known = [
            own["time_s"] if (at := ps.metrics.time_to_target(run.log, best[-1])) is None else at
            for run, own in zip(runs, times, strict=True)
        ]
        assert row["time_to_target_at_least_s"] == pytest.approx(sum(known) / 3)
        headings, ((*cells,),) = compared.cells()
        assert cells[headings.index("time to target (s)")].startswith(f"{reached} of 3, ≥ ")
        assert any(line.startswith("m of n, ≥ t: m of n seeds reached") for line in compared.remarks)
        # one row of two is enough
        reaching = [{"n": 2, "time_to_target_reached": reached} for reached in (2, 1)]
        for rows, lines in ((reaching, 2), (reaching[:1], 1)):
            assert len(of_target(Target(metric="accuracy", at_least=0.5), "", rows)) == lines

    def test_a_sweep_says_the_same(self):
        grid = {"strategy": ["asp"]}
        swept = ps.sweep(toy_experiment(), grid, seeds=3, processes=1, progress=False)
        best = max(run.summary()["best_val_accuracy"] for run in swept.runs)
        told = ps.Sweep(swept.outcomes, target=best)
        (row,) = told.table().to_dict("records")
        compared = ps.compare(self.runs(), target=best).table().to_dict("records")[0]
        for name in ("time_to_target_reached", "time_to_target_at_least_s"):
            assert row[name] == compared[name]
        assert f"{row['time_to_target_reached']} of 3, ≥ " in told.text(200)

    def test_a_sweep_warns_as_a_comparison_does_and_shows_no_noise(self):
        never = {"name": "strategy_switch", "rule": {"name": "empirical", "window": 50}}
        swept = ps.sweep(toy_experiment(), {"strategy": [never]}, seeds=2, processes=1, progress=False)
        shown = [
            swept.text(200),
            swept._repr_html_(),
            str(swept.lines("strategy", "time_s").to_dict()["title"]),
        ]
        for text in shown:
            assert "never switched" in text
        (compared,) = [w for w in ps.compare(swept.runs).warnings if "never switched" in w]
        assert compared.partition(": ")[2] in swept.text(400)
        assert "e-1" not in swept.text(200)


class TestGroups:
    @pytest.mark.parametrize(
        "change",
        [
            {"processes": 1},
            {"checkpoint_every": 1.0},
            {"recovery": {"keep": 1}},
            {"recovery": {"max_restarts": 9}},  # of processes, which a simulated run has none of
        ],
        ids=str,
    )
    def test_what_cannot_change_a_result_makes_no_group(self, change):
        runs = [made("asp"), made("asp", 1, **change), made("asp", **change)]
        assert runs[0].log.digest() == runs[2].log.digest()
        compared = ps.compare(runs[:2])
        assert {label: len(own) for label, own in compared.groups.items()} == {"asp": 2}
        assert compared.differences == {}

    @pytest.mark.parametrize("change", [{"batch_size": 24}, {"evaluate_every": 0.5}, {"stop": {"epochs": 3}}])
    def test_what_can_makes_one(self, change):
        assert len(ps.compare([made("asp"), made("asp", 1, **change)]).groups) == 2

    def test_labels_say_what_differs(self):
        base = toy_experiment().but(name="mine")
        strategies: list[Any] = ["bsp", "asp", {"name": "ssp", "staleness_bound": 1}, "ssp", "k_asp"]
        compared = ps.compare([base.but(strategy=strategy) for strategy in strategies])
        assert list(compared.groups) == [
            "mine (strategy=bsp)",
            "mine (strategy=asp)",
            "mine (strategy=ssp, staleness_bound=1)",
            "mine (strategy=ssp, staleness_bound=3)",
            "mine (strategy=k_asp)",
        ]
        assert "mine (strategy=k_asp)" in compared.chart("idle").to_dict()["datasets"].__repr__()

    def test_labels_name_parts_first_and_leave_out_what_tells_no_more(self):
        runs = [("bsp", 8), ("asp", 8), ("asp", 16)]
        specs = [{"batch_size": size, "strategy": {"name": name}} for name, size in runs]
        assert labels_of(["mine"] * 3, specs) == [
            "mine (strategy=bsp)",
            "mine (strategy=asp, batch_size=8)",
            "mine (strategy=asp, batch_size=16)",
        ]


def test_the_first_ctrl_c_ends_a_loop_over_runs(tmp_path):
    begun, sent = [], []

    def interrupt(log: Any) -> None:
        if len(log) > 20 and not sent:  # a second one would abort
            sent.append(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    def one(seed: int) -> Run:
        begun.append(seed)
        return ps.run(toy_experiment("asp", seed=seed), observer=interrupt, folder=tmp_path / str(seed))

    with pytest.raises(Interrupted, match="Ctrl-C stopped a run of asp") as ended:
        [one(seed) for seed in range(3)]
    assert begun == [0]
    assert isinstance(ended.value, KeyboardInterrupt)
    assert ended.value.run.meta["status"] == "stopped"
    assert Run.load(tmp_path / "0").log.digest() == ended.value.run.log.digest()
    assert ps.resume(tmp_path / "0").meta["status"] == "finished"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0123, "0.012"), (9.96, "10"), (99.4, "99"), (112.0, "112"), (0.398, "0.40"), (1e-7, "1.0e-07")],
)
def test_a_spread_has_two_digits_and_no_exponent_where_it_is_large(number, text):
    assert two_digits(number) == text


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (5.4512, 0.398, "5.45 ± 0.40"),
        (2.0534, 0.0131, "2.053 ± 0.013"),
        (1234.5, 112.0, "1234 ± 112"),
        (6.8, 0.55, "6.80 ± 0.55"),
        (0.5, 1e-6, "0.5 ± 1.0e-06"),
    ],
)
def test_a_mean_has_the_digits_of_its_interval(mean, half, text):
    assert as_text({"time_s": mean, "time_s_ci": half}, "time_s", deviation=False) == text


def test_a_result_has_its_interval_unless_that_is_only_rounding():
    shown = {
        half: as_text({"time_s": 2.5, "time_s_ci": half}, "time_s", deviation=False)
        for half in (0.5, 2.5e-12)
    }
    assert shown == {0.5: "2.50 ± 0.50", 2.5e-12: "2.5"}
    assert as_text({"time_s": 2.5, "time_s_ci": 0.0, "time_s_sd": 0.0}, "time_s") == "2.5 ± 0 (0)"
    assert as_text({"time_to_target_at_least_s": float("nan")}, "time_to_target_s") == "–"
    own = {"val_f1": 0.75, "val_f1_ci": 0.25, "val_f1_sd": 0.125}  # a metric of one's own is shown as it is
    assert as_text(own, "val_f1") == "0.75 ± 0.25 (0.12)"


def test_the_baseline_is_the_slowest_however_many_seeds_it_has():
    slow, quick = ({"workers": 2, "speed": [1.0, speed]} for speed in (0.7, 1.0))
    several = [made("all_reduce", seed, cluster=quick) for seed in (0, 1)]
    assert ps.compare([*several, made("bsp", cluster=slow)]).baseline.startswith("bsp")


def test_charts_have_all_warnings_but_that_of_few_seeds():
    compared = ps.compare([made("bsp"), made("asp", stop={"epochs": 1})])
    assert any("fewer than three seeds" in text for text in compared.warnings)
    words = compared.chart()._words()
    assert "compare with care" in words
    assert "fewer than three seeds" not in words


def test_a_table_that_is_too_wide_has_a_column_for_each_row():
    headings = ["strategy", "seconds", "updates", "accuracy"]
    text = table_text(headings, [["asp", "1" * 12, "2" * 12, "3" * 12]], [], width=30)
    found = dict(line.split() for line in text.splitlines() if line[:1].isalpha())
    assert found == {"strategy": "asp", "seconds": "1" * 12, "updates": "2" * 12, "accuracy": "3" * 12}
    rows = [["asp", *["57 ± 19 (7.7)\u00a0%"] * 3], ["bsp", *["8 ± 1 (0.5)\u00a0%"] * 3]]
    text = table_text(headings, rows, [], width=35)
    assert text.count(")\u00a0%") == 6  # a unit stands beside its number


def test_the_loss_is_shown_unless_all_have_an_accuracy():
    for accuracies, is_shown in (([0.9, None], True), ([0.9, 0.8], False)):
        rows = {"strategy": ["bsp", "asp"], "n": [1, 1], "val_accuracy": accuracies, "val_loss": [0.1, 0.2]}
        assert ("val. loss" in text_cells(pd.DataFrame(rows))[0]) == is_shown


def test_runs_that_are_compared_with_none_are_not_too_few():
    alone = ps.compare([made("bsp")])
    assert (alone.warnings, alone.aim) == ([], None)
    assert any("seeds" in each for each in ps.compare([made("bsp"), made("asp")]).warnings)


@pytest.mark.parametrize(
    "given", [{"target_accuracy": 0.4}, {"target": {"metric": "accuracy", "at_least": 0.4}}], ids=str
)
def test_the_target_that_all_were_given_is_the_one_of_the_table(given):
    """It is far below what both have reached by their first evaluation, which is the target otherwise."""
    runs = [made(each, stop={"epochs": 2} | given) for each in ("bsp", "asp")]
    same, other = ps.compare(runs), ps.compare([runs[0], made("asp")])
    assert same.target == 0.4
    assert "target: validation accuracy 40\u00a0%, at which all experiments stop" in same.remarks
    assert other.target > 0.4
    best = f"{100 * other.target:.4g}"
    assert f"target: validation accuracy {best}\u00a0%, the best that all runs reached" in other.remarks
    assert "target: validation accuracy 40\u00a0%" in ps.compare(runs, target=0.4).remarks  # of its author


def test_rates_of_one_strategy_that_differ_name_their_runs() -> None:
    def rates(*workers: int) -> list[str]:
        runs = [
            toy_experiment("asp", cluster={"workers": n}, name=f"{i}: {n}") for i, n in enumerate(workers)
        ]
        return [text for text in ps.compare(runs).remarks if "learning rate of" in text]

    assert [text.rpartition(" (")[2] for text in rates(3, 2)] == ["0: 3)", "1: 2)"]
    (alone,) = rates(3, 3)
    assert not alone.endswith(")")
    two = [made("bsp"), made("asp")]
    of_two = [text for text in ps.compare(two).remarks if "learning rate of" in text]
    assert of_two == [f"learning rate of {run.meta['lr_convention']}" for run in two]
