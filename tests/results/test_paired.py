"""Which differences are real: against scipy's paired test, and Holm's worked numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

import psbench as ps
from psbench.errors import ParameterError
from psbench.results.identity import comment
from psbench.results.paired import in_words, paired_tests
from psbench.testing import toy_experiment


def _runs(times, accuracies, first=0):
    return {
        seed: {"time_s": time, "time_to_target_s": None, "val_accuracy": accuracy, "val_loss": None}
        for seed, (time, accuracy) in enumerate(zip(times, accuracies, strict=True), first)
    }


@pytest.fixture(scope="module")
def drawn():
    """A baseline, a strategy that is really faster, and one that is not, over eight seeds alike."""
    rng = np.random.default_rng(3)
    common = rng.normal(10, 3, 8).clip(2)
    return {
        "bsp": _runs(common, rng.normal(0.9, 0.01, 8)),
        "fast": _runs(common * rng.normal(0.8, 0.02, 8), rng.normal(0.9, 0.01, 8)),
        "same": _runs(common * rng.normal(1.0, 0.02, 8), rng.normal(0.9, 0.01, 8)),
    }


def test_a_difference_that_never_varies_is_certain():
    """There is nothing that chance could have done: p is 0, and 1 where there is no difference."""
    runs = {
        "bsp": _runs([1.0, 2.0, 4.0], [0.5, 0.25, 0.75]),
        "asp": _runs([2.0, 4.0, 8.0], [0.5, 0.25, 0.75]),
    }
    found = paired_tests(runs, "bsp", {}).set_index("measure")
    assert found["p"].to_dict() == {"time": 0.0, "validation accuracy": 1.0}
    for measure, difference in (("time", 2.0), ("validation accuracy", 0.0)):
        assert found.loc[measure, ["difference", "low", "high"]].tolist() == pytest.approx([difference] * 3)


def test_a_target_that_is_met_at_the_start_has_no_ratio():
    runs = [ps.run(toy_experiment(each, seed=seed)) for each in ("bsp", "asp") for seed in (0, 1)]
    compared = ps.compare(runs, test=True, target=0.1)
    assert set(compared.tests()["measure"]) == {"time", "validation accuracy", "validation loss"}
    assert "nan" not in json.dumps(compared.to_dict(), allow_nan=False)


def test_each_row_is_that_of_scipy(drawn):
    found = paired_tests(drawn, "bsp", {}).set_index(["strategy", "measure"])
    assert len(found) == 4
    for label in ("fast", "same"):
        for name, words, scale in (
            ("time_s", "time", np.log),
            ("val_accuracy", "validation accuracy", np.asarray),
        ):
            own, other = (scale([run[name] for run in drawn[each].values()]) for each in (label, "bsp"))
            test = stats.ttest_rel(own, other)
            low, high = test.confidence_interval(0.95)
            row = found.loc[(label, words)]
            back = np.exp if name == "time_s" else float
            expected = [back(np.mean(own - other)), back(low), back(high), test.pvalue]
            assert row[["difference", "low", "high", "p"]].to_list() == pytest.approx(expected, rel=1e-9)
            assert row["seeds"] == 8
    p = found.xs("time", level="measure")["p"].sort_values()
    corrected = found.xs("time", level="measure")["p_holm"]
    assert corrected[p.index[0]] == pytest.approx(2 * p.iloc[0])
    assert corrected[p.index[1]] == pytest.approx(max(2 * p.iloc[0], p.iloc[1]))
    assert found["is_real"].to_dict()[("fast", "time")]
    assert found["is_real"].sum() == 1
    lines = in_words(paired_tests(drawn, "bsp", {}), "bsp")
    assert lines[0].startswith("fast against bsp, time: 0.8")
    assert lines[0].endswith(": a difference")
    assert lines[2].endswith(": no difference is shown")


@pytest.mark.nightly
def test_chance_is_found_real_in_one_of_twenty_at_most():
    rng = np.random.default_rng(0)
    real = 0
    for _ in range(300):
        runs = {label: _runs(rng.lognormal(0, 0.3, 5), rng.normal(0, 1, 5)) for label in "abcd"}
        found = paired_tests(runs, "a", {})
        real += bool(found.loc[found["measure"] == "time", "is_real"].any())
    assert real <= 0.05 * 300 + 3 * np.sqrt(300 * 0.05 * 0.95)


def test_times_that_do_not_compare_and_missing_numbers_are_left_out(drawn):
    found = paired_tests(drawn, "bsp", {"fast": "unequal budgets"})
    assert list(zip(found["strategy"], found["measure"], strict=True)) == [
        ("fast", "validation accuracy"),
        ("same", "time"),
        ("same", "validation accuracy"),
    ]


def test_a_metric_of_one_s_own_called_time_is_another_measure():
    runs = {
        label: {seed: row | {"val_time": factor * (seed + 1)} for seed, row in own.items()}
        for label, factor, own in (
            ("bsp", 1.0, _runs([1, 2, 4], [0, 0, 0])),
            ("asp", 3.0, _runs([2, 1, 3], [0, 0, 0])),
        )
    }
    found = paired_tests(runs, "bsp", {}).set_index("measure")
    assert found.loc["val_time", "difference"] == pytest.approx(2 * (1 + 2 + 3) / 3)
    assert found.loc["time", "p_holm"] == found.loc["time", "p"]
    assert " x (" not in next(line for line in in_words(found.reset_index(), "bsp") if "val_time" in line)


def test_words_have_the_unit_of_what_they_measure():
    """A ratio of times, points of accuracy, and a plain difference of losses; two seeds are enough."""
    numbers = {
        "bsp": {"time_s": 2.0, "time_to_target_s": None, "val_accuracy": 0.5, "val_loss": 1.5},
        "asp": {"time_s": 1.0, "time_to_target_s": None, "val_accuracy": 0.625, "val_loss": 1.25},
    }
    found = paired_tests({label: {0: own, 1: own} for label, own in numbers.items()}, "bsp", {})
    assert in_words(found, "bsp")[:-1] == [
        "asp against bsp, time: 0.5 x (0.5 to 0.5), p = 0: a difference",
        "asp against bsp, validation accuracy: +12.50 points (+12.50 to +12.50), p = 0: a difference",
        "asp against bsp, validation loss: -0.25 (-0.25 to -0.25), p = 0: a difference",
    ]


def test_runs_without_common_seeds_are_refused():
    runs = {"bsp": _runs([1, 2], [0, 0]), "asp": _runs([1, 2], [0, 0], first=1)}
    with pytest.raises(ParameterError, match=r"asp shares 1 with bsp \(seeds 1, 2; seeds 0, 1\)"):
        paired_tests(runs, "bsp", {})
    with pytest.raises(ParameterError, match="seeds >= 2, not 1"):
        ps.compare([toy_experiment("asp"), toy_experiment("bsp")], test=True)


def test_a_comparison_says_it_in_its_remarks_and_as_data():
    found = ps.compare([toy_experiment("asp"), toy_experiment("bsp")], seeds=3, test=True)
    assert any(line.startswith("asp against bsp, time: ") for line in found.remarks)
    assert found.to_dict()["tests"][0]["strategy"] == "asp"
    assert found.renamed({"asp": "ours"}).tests()["strategy"].iloc[0] == "ours"
    assert "tests" not in ps.compare(found.runs).to_dict()


def test_the_line_of_a_run_names_it_or_is_not_there():
    assert (comment(None), comment("abc")) == ("", "# run abc\n")


def test_words_are_of_the_corrected_p():
    rng = np.random.default_rng(3)
    base = rng.lognormal(0, 0.1, 8)
    factors = {"bsp": 1.0, "fast": 0.8 * rng.lognormal(0, 0.2, 8), "same": rng.lognormal(0, 0.2, 8)}
    lacking = dict.fromkeys(["time_to_target_s", "val_accuracy", "val_loss"])
    runs = {
        name: {seed: {"time_s": float(time_s)} | lacking for seed, time_s in enumerate(base * factor)}
        for name, factor in factors.items()
    }
    found = paired_tests(runs, "bsp", {})
    assert (found["p_holm"] > 1.2 * found["p"]).any()
    for line, row in zip(in_words(found, "bsp"), found.to_dict("records"), strict=False):
        assert f"p = {row['p_holm']:.2g}: " in line
