"""Verdicts: on hand-made numbers, and on simulated papers whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from psbench_papers.claim import Claim
from psbench_papers.estimates import RunMeasure, estimate
from psbench_papers.schema import PublishedNumber
from psbench_papers.verdict import (
    ALPHA,
    RowTest,
    at_edge,
    bounds,
    controlled,
    drawn,
    examine,
    holm,
    judge,
    levels,
    power,
    separated_there,
    suspicious,
    together,
    undrawn,
    was_missed,
)

FOUND = {"confirmed", "confirmed in direction", "exceeds"}


def row(value, form="speed_up", **more):
    needs = {} if form == "value" else {"baseline": "b"}
    unit = "points" if form == "difference" else "x"
    return PublishedNumber(
        **{"exhibit": "T", "row": "r", "place": "p", "value": value, "unit": unit, "form": form},
        **{"experiment": "a", "measure": "time_s"} | needs | more,
    )


def claim(**more):
    return Claim(name="c", says="One is faster than the other.", rows=("r",), **more)


def paired(form, effects, rng=None, noise=0.1):
    """Return an estimate from seeds whose effects are given, with noise that both of a pair share."""
    shared = (rng or np.random.default_rng(0)).normal(0, noise, len(effects))
    if form == "difference":
        mine, other = [s + e for s, e in zip(shared, effects, strict=True)], shared
    elif form == "value":
        mine, other = effects, ()
    else:
        sign = -1 if form == "speed_up" else 1
        mine, other = np.exp(shared + sign * np.log(effects)), np.exp(shared)
    return estimate(form, [*map(RunMeasure, map(float, mine))], [*map(RunMeasure, map(float, other))])


def verdict(theirs, ours, **more):
    test = together([examine(claim(**more), theirs, ours)], [separated_there(theirs)])
    return judge([test])[0]


@pytest.mark.parametrize(
    ("theirs", "effects", "expected"),
    [
        (row("2.07"), [2.0, 2.05, 2.1], "confirmed"),
        (row("2.07"), [1.5, 1.52, 1.54], "confirmed in direction"),  # 2.07 / 1.25 = 1.66
        (row("2.07"), [3.0, 3.1, 3.2], "exceeds"),
        (row("2.07"), [0.8, 0.81, 0.82], "contradicted"),
        (row("2.07"), [0.5, 2.0, 7.0], "inconclusive"),
        (row("2.07"), [2.07], "inconclusive"),  # one seed
        (row("0.4", "ratio"), [0.99, 1.0, 1.01], "not found"),  # not there, and it would have been found
        (row("0.4", "ratio"), [0.5, 1.0, 2.0], "inconclusive"),
        (row("1.1"), [1.01, 1.0101, 1.0102], "confirmed in direction"),  # a tenth of the effect
        (row("0.4", "ratio"), [0.39, 0.4, 0.41], "confirmed"),
        (row("0.4", "ratio"), [0.1, 0.11, 0.12], "exceeds"),
        (row("0.4", "ratio"), [1.1, 1.11, 1.12], "contradicted"),
        (row("-0.9", "difference"), [-0.0088, -0.009, -0.0092], "confirmed"),  # ours are shares
        (row("0.9", "difference"), [0.0088, 0.009, 0.0092], "confirmed"),
        (row("-0.9", "difference"), [-0.02, -0.021, -0.022], "exceeds"),
        (row("-0.9", "difference"), [0.02, 0.021, 0.022], "contradicted"),  # better is no agreement
        (row("-1", "difference"), [0.0, 0.0, 0.0], "inconclusive"),  # the same runs, or both at 100 %
        (row("1", relation=">"), [1.2, 1.21, 1.22], "confirmed in direction"),  # no size was printed
        (row("1", relation=">"), [1.0001], "inconclusive"),
        (row("1", relation="<"), [1.2, 1.21, 1.22], "contradicted"),
    ],
)  # fmt: skip
def test_an_effect(theirs, effects, expected):
    assert verdict(theirs, paired(theirs.form, effects)) == expected


@pytest.mark.parametrize(
    ("better", "effects", "expected"),
    [
        ("higher", [0.001, 0.0012, 0.0008], "confirmed"),
        ("higher", [-0.02, -0.021, -0.022], "contradicted"),
        ("higher", [0.02, 0.021, 0.022], "exceeds"),
        ("", [0.02, 0.021, 0.022], "contradicted"),
        ("higher", [-0.02, 0.0, 0.02], "inconclusive"),  # holds both: no proof of equality
        ("higher", [0.0, 0.0, 0.0], "inconclusive"),  # the same runs, or both at 100 %
    ],
)
def test_the_same_is_a_test_of_equivalence(better, effects, expected):
    theirs = row("-0.1", "difference", better=better)
    assert verdict(theirs, paired("difference", effects), test="same", margin=0.5) == expected


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        ([8.5, 8.6, 8.7], "confirmed"),
        ([5.0, 5.1, 5.2], "contradicted"),
        ([1.0, 9.0, 80.0], "inconclusive"),
        ([9.12 - 2e9, 9.12, 9.12 + 2e9], "inconclusive"),  # +-1e9 says nothing
    ],
)
def test_a_number_alone_is_within_its_factor_or_not(effects, expected):
    theirs, ours = row("8.70", "value"), paired("value", effects)
    assert verdict(theirs, ours, test="number") == expected
    low, high = bounds(claim(test="number"), theirs)
    told, _ = power(claim(test="number"), [(theirs, ours)], ALPHA, "inconclusive")
    assert told == ours.within_power(low, 8.7, high, ALPHA)


@pytest.mark.parametrize("theirs", [row("2"), row("1", relation=">")])
def test_a_contradiction_in_one_row_is_never_hidden(theirs):
    """Two rows agree and one is significantly the other way round, whether a size was printed or not."""
    rows = [theirs] * 3
    ours = [paired("speed_up", [2.0, 2.01, 2.02])] * 2 + [paired("speed_up", [0.7, 0.701, 0.702])]
    assert judge([together([examine(claim(), *pair) for pair in zip(rows, ours, strict=True)])]) == [
        "contradicted"
    ]


def test_a_claim_takes_all_of_its_rows():
    """One of two rows holds both: the claim is inconclusive."""
    sure, unsure = paired("speed_up", [2.0, 2.01, 2.02]), paired("speed_up", [0.5, 2.0, 7.0])
    for pair in ((sure, unsure), (unsure, sure)):
        assert judge([together([examine(claim(), row("2"), ours) for ours in pair])]) == ["inconclusive"]
    both = together([RowTest(0.1, 0.9, 0.2, 0.3), RowTest(0.1, 0.9, 0.4, 0.1)])
    assert (both.sized, both.beyond) == (0.4, 0.3)


def test_what_a_correction_leaves_open_is_not_called_not_found():
    """Both rows lose, at p = .0019, less than printed: twenty other claims keep it open."""
    theirs = row("-9", "difference")
    ours = paired("difference", [-0.012, -0.009, -0.016, -0.006, -0.007])
    test = together([examine(claim(), theirs, ours)] * 2)
    values = [-0.012, -0.009, -0.016, -0.006, -0.007]
    assert test.agrees == pytest.approx(stats.ttest_1samp(values, 0, alternative="less").pvalue)
    assert 0.025 / 21 < test.agrees < 0.025
    assert judge([test]) == ["confirmed in direction"]
    assert judge([test], 21) == ["inconclusive"]
    # nor where one row is found and too small, and the other is merely noisy
    noisy = paired("difference", [-0.3, 0.2, -0.25, 0.1, 0.1])
    assert judge([together([examine(claim(), theirs, each) for each in (ours, noisy)])]) == ["inconclusive"]


@pytest.mark.parametrize("size", [1, 2, 5, 20, 100])
def test_no_verdict_is_stronger_because_the_correction_is_stricter(size):
    """A larger family gives the same verdict or a weaker one, whatever the effect."""
    rank = {
        "inconclusive": 0,
        "not found": 1,
        "confirmed in direction": 1,
        "confirmed": 2,
        "exceeds": 2,
        "contradicted": 2,
    }
    rng = np.random.default_rng(8)
    for effect in np.linspace(-1.5, 1.5, 31):
        ours = paired("ratio", np.exp(effect + rng.normal(0, 0.15, 5)))
        test = together([examine(claim(), row("2", "ratio"), ours)])
        ((loose,), (strict,)) = judge([test]), judge([test], size)
        weaker = {
            "contradicted": {"not found"},
            "confirmed": {"confirmed in direction"},
            "exceeds": {"confirmed in direction"},
        }
        allowed = {loose, "inconclusive"} | weaker.get(loose, set())
        assert strict in allowed, (effect, loose, strict)
        assert rank[strict] <= rank[loose]


def test_an_effect_is_not_found_only_with_power():
    """Of five runs with little noise it would have been found, of three with more it would not."""
    theirs = row("1.4", "ratio")
    for noise, missed in ((0.01, True), (0.12, False)):
        ours = replace(paired("ratio", [0.98, 1.0, 0.99]), error=noise, centre=-noise)
        test = together([examine(claim(), theirs, ours)])
        told = stats.nct.sf(stats.t.isf(ALPHA, 2), 2, np.log(1.4) / noise)
        assert (told >= 0.8) == missed
        assert was_missed(claim(), [(theirs, ours)], test, ALPHA) == missed


def test_the_levels_of_holm_are_those_at_which_a_claim_turns():
    """Found by trying: the p-value of one claim is raised until Holm no longer finds it."""
    values = [0.001, 0.004, 0.02, 0.3]
    for place, level in enumerate(levels(values, ALPHA, 6)):
        below, above = (
            [*values[:place], level * scale, *values[place + 1 :]] for scale in (1 - 1e-9, 1 + 1e-9)
        )
        assert holm(below, ALPHA, 6)[place] is not None
        assert holm(above, ALPHA, 6)[place] is None


def test_a_family_counts_the_tests_that_were_not_made():
    assert holm([0.005], 0.025) == [0.025]
    assert holm([0.005], 0.025, 5) == [0.005]
    assert holm([0.0051], 0.025, 5) == [None]
    assert holm([0.001, 0.006], 0.025, 5) == holm([0.001, 0.006, 1.0, 1.0, 1.0], 0.025)[:2]


def test_the_power_of_a_confirmation_is_that_of_its_size():
    """Of runs with the printed effect so many are confirmed; their direction is found far more often."""
    rng = np.random.default_rng(9)
    theirs, error = row("1.5"), 0.07
    exact = paired("speed_up", np.exp([-0.1, -0.05, 0.0, 0.05, 0.1]))
    pair = [(theirs, replace(exact, error=error))]
    sized, direction = (
        power(claim(), pair, ALPHA, word)[0] for word in ("confirmed", "confirmed in direction")
    )
    low, high = np.log(bounds(claim(), theirs))
    limit = stats.t.isf(ALPHA, 4)  # the noise known: its centre lies so far inside
    drawn_centres = np.log(1.5) + error * rng.standard_t(4, 40_000)
    share = np.mean((drawn_centres >= low + limit * error) & (drawn_centres <= high - limit * error))
    assert sized == pytest.approx(share, abs=0.01)
    assert sized < 0.6 < 0.95 < direction


def test_the_power_of_several_rows_is_not_that_of_one():
    ours, theirs = paired("speed_up", np.exp([0.4, 0.2, 0.5])), row("1.5")
    one, four = (power(claim(), [(theirs, ours)] * rows, ALPHA, "inconclusive")[0] for rows in (1, 4))
    assert four == pytest.approx(max(0.0, 1 - 4 * (1 - one)))
    assert power(claim(), [(theirs, ours), (row("1", relation=">"), ours)], ALPHA, "inconclusive") == (
        None,
        None,
    )


def test_a_size_that_holds_in_four_of_twelve_draws_is_not_confirmed():
    """The interval of the runs is 2.35 to 2.36; the assumed numbers move it from 1.7 to 4."""
    theirs, ours = row("2.28"), paired("speed_up", [2.35, 2.355, 2.36])
    assert verdict(theirs, ours) == "confirmed"
    start = paired("speed_up", [2.355])
    factors = [1.0, 1.05, 0.95, 1.1, 1.5, 0.75, 1.4, 0.72, 1.6, 0.7, 1.7, 0.65]
    draws = [ours.moved(start, paired("speed_up", [2.355 * factor])) for factor in factors]
    low, high = bounds(claim(), theirs)
    assert sum(low < each.low and each.high < high for each in draws) == 4
    own = examine(claim(), theirs, ours)
    test = drawn(own, [examine(claim(), theirs, each) for each in draws])
    assert judge([together([test])]) == ["confirmed in direction"]
    turned = [*draws[:10], *(ours.moved(start, paired("speed_up", [0.5])) for _ in range(2))]
    test = drawn(own, [examine(claim(), theirs, each) for each in turned])
    assert judge([together([test])]) == ["inconclusive"]  # two of twelve have another direction
    nothing = drawn(own, [own] * 10 + [None] * 2)
    assert judge([together([nothing])]) == ["inconclusive"]
    assert drawn(own, [own] * 11 + [None]).sized == own.sized
    assert judge([together([undrawn(claim(), own)])]) == ["confirmed in direction"]
    equal = examine(claim(test="same"), row("1.01"), paired("speed_up", [1.0, 1.01, 1.02]))
    assert judge([together([equal])]) == ["confirmed"]
    assert judge([together([undrawn(claim(test="same"), equal)])]) == ["inconclusive"]


@pytest.mark.parametrize(
    ("test", "before", "control", "after"),
    [
        ("same", "confirmed", "confirmed in direction", "confirmed"),
        ("same", "confirmed", "not found", "inconclusive"),
        ("same", "confirmed", "not testable here", "inconclusive"),
        ("same", "contradicted", "not run", "contradicted"),
        ("effect", "not found", "confirmed", "not found"),
        ("effect", "not found", "not run", "inconclusive"),
        ("effect", "confirmed", "not run", "confirmed"),
    ],
)
def test_no_difference_counts_beside_a_loss_that_is_found(test, before, control, after):
    assert controlled(claim(test=test), before, control) == after


@pytest.mark.parametrize(
    "word", ["confirmed", "confirmed in direction", "exceeds", "contradicted", "not found"]
)
def test_a_rate_at_the_edge_of_its_grid_decides_nothing(word):
    assert at_edge(word) == "inconclusive"


def test_what_their_own_deviations_do_not_separate_is_said():
    theirs = row("0.24", "difference", runs=5, sd=0.00736, baseline_sd=0.01086)
    p = stats.ttest_ind_from_stats(0.0024, 0.00736, 5, 0, 0.01086, 5, equal_var=False).pvalue
    assert separated_there(theirs) == pytest.approx(p)
    assert verdict(theirs, paired("difference", [-0.02, 0.0, 0.02])) == "underpowered there"
    # a significant effect of ours shows the direction, and no size of theirs
    assert verdict(theirs, paired("difference", [0.0024, 0.00241, 0.00242])) == "confirmed in direction"
    assert verdict(theirs, paired("difference", [-0.0024, -0.00241, -0.00242])) == "contradicted"
    spread = row("0.329", "sd_ratio", runs=5)
    f = stats.f(4, 4)
    assert separated_there(spread) == pytest.approx(2 * f.cdf(0.329**2))


def test_bounds_are_the_factor_and_half_of_the_effect():
    assert bounds(claim(), row("2.00")) == pytest.approx((1.995 / 1.25, 2.005 * 1.25))
    assert bounds(claim(), row("1.10")) == pytest.approx((1.095**0.5, 1.105**1.5))
    assert bounds(claim(), row("-1", "difference")) == pytest.approx((-0.0225, -0.0025))  # -0.5 to -1.5
    assert bounds(claim(), row("0.5", "difference")) == pytest.approx((0.00225, 0.00825))
    share = row("50", "value").model_copy(update={"unit": "%"})
    assert bounds(claim(test="number"), share) == pytest.approx((0.495 / 1.25, 0.505 * 1.25))
    assert bounds(claim(test="same", margin=0.5), row("-0.1", "difference")) == (-0.005, 0.005)
    assert bounds(claim(test="same", margin=1.25), row("1.1", "ratio")) == pytest.approx((0.8, 1.25))


@pytest.mark.parametrize("more", [{}, {"test": "same", "margin": 0.5}])
def test_runs_that_are_the_same_tell_nothing(more):
    ours = paired("difference", [0.0, 0.0, 0.0])
    assert examine(claim(**more), row("-1", "difference"), ours) == RowTest(1.0, 1.0)
    ours = paired("difference", [0.001, 0.0012, 0.0008])  # both p-values are near 1
    assert examine(claim(test="same", margin=0.5), row("-0.1", "difference"), ours).opposes == 1.0


def test_one_seed_has_no_interval_no_power_and_no_verdict():
    ours = paired("difference", [0.001])
    theirs = row("0.1", "difference", better="higher")
    same = claim(test="same", margin=0.5)
    assert verdict(theirs, ours, test="same", margin=0.5) == verdict(theirs, ours) == "inconclusive"
    for each in (same, claim()):
        assert power(each, [(theirs, ours)], ALPHA / 3, "inconclusive") == (0.0, None)


@pytest.mark.parametrize(
    ("theirs", "more"),
    [
        (row("1.2"), {}),
        (row("0.5", "sd_ratio"), {}),
        (row("0.1", "difference"), {"test": "same", "margin": 0.5}),
    ],
)
def test_seeds_needed_are_the_fewest_that_have_the_power(theirs, more):
    groups = np.random.default_rng(6).lognormal(0, 0.01 if more else 0.2, (2, 5))
    ours = estimate(theirs.form, *([RunMeasure(float(value)) for value in group] for group in groups))

    def told(found):
        return power(claim(**more), [(theirs, found)], ALPHA / 3, "inconclusive")

    chance, needed = told(ours)
    if not more:
        assert chance == pytest.approx(ours.power(float(theirs.value), ALPHA / 3))
    chances = [told(ours.with_seeds(n))[0] for n in (needed - 1, needed)]
    assert chances[0] < 0.8 <= chances[1]


def test_holm_is_the_step_down_test():
    assert holm([0.01, 0.02, 0.04], 0.05) == [0.05 / 3, 0.05 / 2, 0.05]
    assert holm([0.02, 0.02, 0.04], 0.05) == [None, None, None]


# ---- simulated papers, whose truth is known

NOISE = (1e-6, 0.003, 0.1, 1.0, 30.0)


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("form", ["speed_up", "ratio", "difference"])
def test_mirror(form, noise):
    """An effect that is turned round loses its verdict, whatever the noise."""
    theirs = row("-2", form) if form == "difference" else row("0.5", form)
    rng = np.random.default_rng(1)
    for _ in range(10):
        shifts = rng.normal(0, noise, 5)
        if form == "difference":
            pair = paired(form, -0.02 + shifts), paired(form, 0.02 - shifts)
        else:
            pair = paired(form, np.exp(shifts) / 2), paired(form, 2 / np.exp(shifts))
        before, after = (verdict(theirs, ours) for ours in pair)
        assert before not in FOUND or after == "contradicted"
        assert after not in FOUND or before == "contradicted"
        if noise < 0.01 * (1 if form != "difference" else 0.1):
            assert before == "confirmed"
            assert after == "contradicted"


def share_with(finding, papers):
    """Return in how many of simulated papers any claim has one of these verdicts."""
    return np.mean([any(each in finding for each in judge(paper)) for paper in papers])


def null_papers(form, censored=False, claims=5, papers=300):
    """Yield papers whose claims have no effect: two samples of the same distribution."""
    rng = np.random.default_rng(2)
    theirs = {"difference": row("1", form), "sd_ratio": row("0.5", form)}.get(form, row("1.5", form))
    for _ in range(papers):
        found = []
        for _ in range(claims):
            groups = rng.lognormal(0, 0.4, (2, 5))
            if censored:
                runs, other = ([RunMeasure(x if x < 1.2 else None, 1.2) for x in group] for group in groups)
            else:
                runs, other = ([RunMeasure(float(x)) for x in group] for group in np.log(groups) + 9)
            ours = estimate(form, runs, other)
            if ours is not None:
                found.append(together([examine(claim(), theirs, ours)]))
        yield found


@pytest.mark.parametrize("form", ["speed_up", "difference", "sd_ratio", "censored"])
def test_null(form):
    """Of papers without any effect at most 5 % have a claim found, and at most 5 % one turned round."""
    papers = [*(null_papers("speed_up", True, papers=60) if form == "censored" else null_papers(form))]
    assert share_with(FOUND, papers) <= 0.05
    turned = [any(holm([test.opposes for test in tests], ALPHA)) for tests in papers]
    assert np.mean(turned) <= 0.05


def test_null_of_equality():
    """Strategies that differ by just the margin are called the same in at most 5 % of papers."""
    rng = np.random.default_rng(3)
    same, theirs = claim(test="same", margin=0.5), row("0.1", "difference", better="higher")
    papers = [
        [together([examine(same, theirs, paired("difference", rng.normal(-0.005, 0.004, 5)))])] * 3
        for _ in range(300)
    ]
    assert share_with(FOUND, papers) <= 0.05


@pytest.mark.parametrize("effect", [1.1, 1.3])
def test_a_known_effect_is_found_with_the_printed_power(effect):
    rng = np.random.default_rng(4)
    theirs = row(str(effect))
    claims = 3
    found, printed = [], []
    exact = paired("speed_up", np.exp([-0.1, -0.05, 0.0, 0.05, 0.1]))
    scale = 0.1 / (exact.error * np.sqrt(5))
    known = replace(exact, error=exact.error * scale)
    told, _ = power(claim(), [(theirs, known)], ALPHA / claims, "confirmed in direction")
    for _ in range(800):
        ours = paired("speed_up", effect * np.exp(rng.normal(0, 0.1, 5)))
        test = together([examine(claim(), theirs, ours)])
        others = [replace(test, agrees=0.9)] * (claims - 1)  # Holm's first step
        found.append(judge([test, *others])[0] in FOUND)
        (level, *_) = levels([test.agrees for test in (test, *others)], ALPHA)
        printed.append(power(claim(), [(theirs, ours)], level, "confirmed in direction")[0])
    error = 4 * np.sqrt(told * (1 - told) / 800)
    assert np.mean(found) == pytest.approx(told, abs=error)
    assert np.median(printed) == pytest.approx(told, abs=0.15)  # each is printed from its own noise


def test_the_power_of_equality_is_that_of_both_tests():
    rng = np.random.default_rng(5)
    same, theirs = claim(test="same", margin=0.5), row("0.1", "difference")
    exact = paired("difference", [-0.002, -0.001, 0.0, 0.001, 0.002])
    told, _ = power(same, [(theirs, replace(exact, error=0.0015 / np.sqrt(5)))], ALPHA, "confirmed")
    found = [
        verdict(theirs, paired("difference", rng.normal(0, 0.0015, 5)), test="same", margin=0.5) in FOUND
        for _ in range(600)
    ]
    # the printed power takes the noise as known, so it is nearer to 0 or 1 than the share that is found
    assert np.mean(found) == pytest.approx(told, abs=0.12)


def test_suspicion_is_welchs_one_sided_test():
    better, sync = [0.97, 0.98, 0.975], [0.95, 0.96, 0.955]
    p = stats.ttest_ind(better, sync, equal_var=False, alternative="greater").pvalue
    assert suspicious(better, sync, less_is_better=False) == pytest.approx(p)
    assert suspicious(sync, better, less_is_better=False) is None
    assert suspicious(sync, better, less_is_better=True) == pytest.approx(p)
    assert suspicious([0.97], sync, less_is_better=False) is None  # one run says nothing
    assert suspicious([0.97, 0.971], [0.95, 0.951], less_is_better=False) < 0.001
    assert suspicious([0.97, 0.97], [0.95, 0.951], less_is_better=False) < 0.01
    assert suspicious([0.97, 0.97], [0.95, 0.95], less_is_better=False) is None  # nor do runs that are alike
