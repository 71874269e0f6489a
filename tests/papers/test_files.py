"""The files of the papers: every row has its place, its claim, and its runs or why there are none."""

import csv
import html
import json
import re
import shutil
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import stale_momentum
import yaml
from golden_files import is_rewritten
from scipy import stats

from psbench.errors import DataError, SpecError, UnknownName
from psbench.experiment import Experiment
from psbench.runs.execution import run
from psbench_papers import cells
from psbench_papers.claim import SCALES
from psbench_papers.closed_forms import FORMULAS
from psbench_papers.figures import figures
from psbench_papers.library import FILES, NAMES, load, parse, stored
from psbench_papers.measures import TARGETS, measure
from psbench_papers.outcome import Reproduction, RowOutcome
from psbench_papers.page import _compared, _paper, _percent, _seeds, write_page
from psbench_papers.session import plan
from psbench_papers.session import stored_reproduction as _stored_reproduction
from psbench_papers.text import (
    cells as cells_of,
)
from psbench_papers.text import (
    counts_line,
    how_to_run,
    readme_row,
    remarks,
    sentence,
    summary,
    verdict_words,
)
from psbench_papers.verdict import ALPHA, VERDICTS, bounds

ROOT = Path(__file__).parents[2]
PAPERS = [load(name) for name in NAMES]
names = pytest.mark.parametrize("paper", PAPERS, ids=NAMES)
#: judging a paper's stored runs takes a second, and no test changes what it finds
stored_reproduction = cache(_stored_reproduction)


@cache
def sensitivity(name, scale):
    """Return the runs with drawn numbers, of which there are many."""
    return cells.sensitivity(load(name), scale)


@names
def test_every_row_has_a_place_and_runs_or_a_reason(paper):
    for row in paper.rows:
        assert len(row.place) > 5, row.row
        assert bool(row.experiment) != (len(row.reason) > 10), row.row
    assert any(row.experiment for row in paper.rows)


@names
def test_what_differs_is_said_at_every_scale(paper):
    for name, setup in paper.setups.items():
        assert {*setup.differs, "medium"} == set(SCALES), name
        assert {"smoke", "quick"} <= set(setup.seconds), name  # measured, not computed
        assert bool(setup.medium) <= ("medium" in setup.differs), name
        assert len(setup.called) > 3, name


@pytest.mark.by_day(9)
@names
@pytest.mark.parametrize("scale", ["smoke", "quick", "medium"])
def test_every_experiment_is_valid(paper, scale):
    """Nothing is found to be wrong after hours of running."""
    planned = cells.results(paper, scale, 1)
    assert {cell.experiment for cell in planned} >= {
        row.experiment for row in paper.rows if cells.runs_at(paper, row, scale)
    }
    assert len({cell.key for cell in planned}) == len(planned)
    if scale != "quick":  # those are looked at below
        sensitivity(paper.name, scale)


@names
def test_rows_with_a_target_have_one(paper):
    for row in paper.rows:
        if row.measure in TARGETS:
            assert paper.setups[paper.experiments[row.experiment].setup].target, row.row


@names
def test_closed_forms_are_known(paper):
    used = [t.formula for t in paper.theories] + [d.formula for d in paper.drawings if d.formula]
    assert set(used) <= set(FORMULAS)


def test_measures_are_known():
    """A mistyped measure would leave a row without a number."""
    experiment = cells.experiment_of(load("thesis"), "round_1", "smoke", 0)
    done = run(experiment)
    known = {*measure(done, done.summary(), "val_accuracy", 0.9), *TARGETS}
    assert {row.measure for paper in PAPERS for row in paper.rows if row.measure} <= known


def test_assumed_numbers_are_drawn_alike_for_all_experiments_of_a_paper():
    """Each from the range that its factors say; nothing else of the specification changes."""
    paper = load("strategy_switch")
    plain = cells.experiment_of(paper, "c2_b1_ps", "quick", 0).spec()["cluster"]
    factors = {}
    for cell in sensitivity(paper.name, "quick"):
        drawn = json.loads(cell.spec)
        assert drawn["strategy"] == cells.experiment_of(paper, cell.experiment, "quick", 0).spec()["strategy"]
        ratio = drawn["cluster"]["bandwidth_mbit_s"] / plain["bandwidth_mbit_s"]
        factors.setdefault(cell.label, set()).add(round(ratio, 4))
        assert 0.5 <= drawn["cluster"]["core_scaling"] <= 1.0
    assert all(len(found) == 1 for found in factors.values())  # the same for both of a comparison
    drawn = [found.pop() for found in factors.values()]
    assert len(set(drawn)) == len(cells.DRAWS)
    assert min(drawn) < 0.8 < 1.25 < max(drawn)


@pytest.mark.by_day(3)
@names
def test_every_assumed_number_of_a_sensitive_row_is_drawn(paper):
    """Each for the strategies that have it; and no run ends before a target for want of time."""
    planned = sensitivity(paper.name, "quick")
    used = {paper.experiments[cell.experiment].setup for cell in planned}
    whole = {name: cells.experiment_of(paper, name, "quick", 0) for name in {c.experiment for c in planned}}
    drawn = set()
    for cell in planned:
        spec, plain = json.loads(cell.spec), whole[cell.experiment].spec()
        drawn |= {guess.path for guess in paper.guesses if _at(spec, guess.path) != _at(plain, guess.path)}
        assert (spec["stop"].get("seconds") or 0) == 2 * (plain["stop"].get("seconds") or 0)
    assert drawn == {guess.path for guess in paper.guesses if used & {*guess.setups}}
    assert all(json.loads(cell.spec)["timing_only"] for cell in sensitivity(paper.name, "full"))
    if planned:
        with pytest.raises(SpecError, match=r"there is no cluster\.nothing"):
            cells.experiment_of(paper, planned[0].experiment, "quick", 0, {"cluster.nothing": 2.0})


def _at(spec, path):
    for key in path.split("."):
        spec = spec.get(key, {})
    return spec


def test_tables_are_found_however_they_are_written():
    paper = load("hermes")
    assert cells.rows_of(paper, "quick", "table iii") == cells.rows_of(paper, "quick", "Table III")
    with pytest.raises(UnknownName, match=r"'Table 3'.*Table III"):
        cells.rows_of(paper, "quick", "Table 3")
    with pytest.raises(UnknownName, match="did you mean 'hermes'"):
        load("hermis")


def test_a_paper_of_ones_own_is_a_folder(tmp_path):
    for file in FILES:
        shutil.copy(stored("sharding").with_name(file), tmp_path)
    assert load(str(tmp_path)).rows == load("sharding").rows
    (tmp_path / "claims.yaml").unlink()
    with pytest.raises(DataError, match=r"claims.yaml'; a paper has experiments.yaml, claims.yaml, pub"):
        load(str(tmp_path))
    (tmp_path / "claims.yaml").write_text("- [")
    with pytest.raises(DataError, match="no YAML"):
        load(str(tmp_path))


@cache  # planned and stored are mostly the same
def _whole(spec: str) -> str:
    return json.dumps(Experiment.from_spec(json.loads(spec)).spec(), sort_keys=True)


@pytest.mark.by_day(3)
@pytest.mark.filterwarnings("ignore::psbench.errors.DoubtfulComposition")  # an update as it is printed
@pytest.mark.parametrize("paper", [p for p in PAPERS if stored(p.name).is_file()], ids=lambda p: p.name)
def test_what_comes_with_psbench_is_of_this_plan(paper):
    """Stored quick runs: what can be run at that scale has been, as the files now say it."""
    found = stored_reproduction(paper.name)
    assert stored(paper.name).stat().st_size < 200_000
    planned = cells.results(paper, "quick", 1) + cells.tuning(paper, "quick")
    planned += cells.best(paper, "quick", 1, found.rates) + sensitivity(paper.name, "quick")
    kept = {
        # as it is said today: a field that is new since then has its default
        (record.role, _whole(record.spec))
        for record in found.records.values()
        if record.seed in (0, cells.TUNING_SEED)
    }
    assert kept == {(cell.role, _whole(cell.spec)) for cell in planned}
    for name in {record.experiment for record in found.records.values()}:
        for role in {"result", "best"} & {cell.role for cell in planned if cell.experiment == name}:
            seeds = [record.seed for record in found.runs(name, role)]
            assert seeds == [*range(cells.seeds_of(paper, name, "quick", None))], (name, role)
            assert len(seeds) >= 5, (name, role)


@pytest.mark.parametrize(("rows", "said"), [(2, "r0; r1"), (3, "3 rows")])
def test_rows_are_named_unless_a_remark_is_about_most(rows, said):
    outcomes = [
        SimpleNamespace(flags=("late",) * (i < rows), published=SimpleNamespace(row=f"r{i}", reason=""))
        for i in range(5)
    ]
    found = SimpleNamespace(records={}, outcomes=outcomes, scale="quick")
    assert remarks(found) == [f"late: {said}"]


def test_a_line_counts_conditional_claims_that_were_run():
    given = dict.fromkeys(VERDICTS, 0) | {"confirmed": 2, "contradicted": 1, "not run": 4}
    found = SimpleNamespace(paper=SimpleNamespace(name="toy"), counts=lambda kind="claim": given)
    assert readme_row(found)[-1] == "2 of 3"


@pytest.mark.parametrize(
    ("power", "seeds", "said"),
    [
        (0.8, 5, "80 %"),
        (0.79, 7, "79 %; 80 % would take 7 seeds"),
        (0.2, None, "20 %; 80 % would take over 2,000 seeds"),
        (0.99, 5, "99 %"),
        (0.991, 5, "over 99 %"),
    ],
)
def test_a_page_says_how_many_seeds_would_give_four_fifths(power, seeds, said):
    assert _percent(power) + _seeds(SimpleNamespace(power=power, seeds=seeds)) == said


def test_a_page_compares_twelve_rows_of_a_claim():
    row = RowOutcome("toy", PAPERS[0].rows[0])
    found = SimpleNamespace(claim=SimpleNamespace(rates="common"), rows=[row] * 12)
    assert len(_compared(found)) == 12
    found.rows = [row] * 13
    assert _compared(found)[12:] == ["and 1 more, in the appendix."]


@pytest.mark.parametrize("name", [name for name in NAMES if stored(name, "medium").is_file()])
def test_what_comes_with_psbench_of_scale_medium_is_of_its_plan(name):
    """Seed by seed, so that any number of runs may be there."""
    planned = {cell.key for cell in cells.results(load(name), "medium", None)}
    assert {*stored_reproduction(name, "medium").records} <= planned


def test_what_was_not_run_is_said_and_the_seeds_that_all_have_are_judged():
    found = stored_reproduction("adacomm")
    left = next(key for key, r in found.records.items() if (r.experiment, r.seed) == ("printed_sync", 3))
    again = replace(found, records={key: r for key, r in found.records.items() if key != left})
    assert [(cell.experiment, cell.seed) for cell in again.unfinished()] == [("printed_sync", 3)]
    assert not found.unfinished()
    assert "`psbench reproduce adacomm --scale quick --data DIR` makes them" in how_to_run(again)[0]
    row = next(each for each in again.outcomes if each.published.experiment == "printed_adacomm")
    assert row.ours.seeds == 4
    assert "4 of 5 seeds were run" in row.flags


def test_scale_medium_has_whole_claims():
    """Rows of a claim that are not run there are among those left out, and not forgotten."""
    rows = {row.row: row for row in cells.rows_of(load("sync_switch"), "medium")}
    run = [
        cells.runs_at(load("sync_switch"), row, "medium")
        for name, row in rows.items()
        if " BSP minus BSP" in name
    ]
    assert (run.count(True), run.count(False)) == (5, 4)
    assert not cells.rows_of(load("thesis"), "medium")
    *_, line = how_to_run(Reproduction(load("sync_switch"), "medium", None, {}))
    where, _, left = line.partition(": ")
    assert where.startswith("not run at scale medium but at quick or full (`psbench reproduce sync_switch --")
    assert left.split("; ") == [f"ResNet-32/CIFAR-10, {share} % BSP minus BSP" for share in (20, 15, 5, 4)]


def test_a_forecast_says_what_it_was_computed_from():
    """ResNet-20 takes 5.3 ms an image: 50,000 of them 182 times are 48,230 s."""
    cell = next(
        c for c in cells.results(load("strategy_switch"), "full", 1) if c.experiment == "c1_b1_ar_acc"
    )
    assert (cell.seconds, cell.source) == (48_230, "9,100,000 images x 5.3 ms (resnet20)")
    words = plan(load("thesis"), "full", 1).words(2)
    assert words[1].startswith("expected: at least ")
    assert "  9 runs: not known: logistic on synthetic_table" in words
    # twelve workers whose speeds add up to some number of samples a second, at most, for so many seconds
    most = next(c for c in cells.results(load("hermes"), "full", 1) if c.experiment == "cifar_bsp")
    speeds = sum(
        machine.speed
        for machine in cells.experiment_of(load("hermes"), "cifar_bsp", "full", 0).cluster.machines()
    )
    assert most.seconds == pytest.approx(40_000 * speeds / 0.00031 * 0.0024)
    assert most.source.startswith("at most ")
    assert plan(load("thesis"), "medium").words(2) == ["thesis, scale medium: there is nothing to run"]


def test_the_measurements_show_the_stored_results():
    shown = (Path(__file__).parents[2] / "notebooks/site/measurements.md").read_text(encoding="utf-8")
    found = [stored_reproduction(name) for name in NAMES]
    for each in found:
        assert f"| {' | '.join(readme_row(each))} |" in shown, each.paper.name
    totals = [sum(each.counts()[verdict] for each in found) for verdict in VERDICTS]
    assert f"| all | {' | '.join(map(str, totals))} | |" in shown
    assert counts_line(found) in " ".join(shown.split())


def test_the_page_of_stale_momentum_shows_the_stored_results():
    """Its map, and the table of the same by counterfactuals."""
    page = (ROOT / "notebooks/site/explanations/stale_momentum.md").read_text(encoding="utf-8")
    outcomes = {each.published.row: each.ours for each in stored_reproduction("stale_momentum").outcomes}
    kinds = ", momentum .9: stale minus fresh", ", no momentum: stale minus fresh", ": what momentum adds"
    points = [row.removesuffix(kinds[2]) for row in outcomes if row.endswith(kinds[2])]
    assert len(points) == 16
    for point in points:
        found = [outcomes[point + kind] for kind in kinds]
        numbers = [f"{each.mean:.3g} ± {(each.high - each.low) / 2:.2g}" for each in found]
        problem, rate = point.split(", rate ")
        assert f"| {problem} | {rate} | {' | '.join(numbers)} |" in page
    lines = [*stale_momentum.table()]
    assert len(lines) == 6
    for line in lines:
        assert line in page


@pytest.mark.nightly
def test_stored_counterfactuals_of_stale_momentum_are_made_again():
    """At a rate where training is stable, so that other processors come close."""
    with stale_momentum.FILE.open(encoding="utf-8") as file:
        expected = [row for row in csv.DictReader(file) if (row["rate"], row["seed"]) == ("0.25", "3")]
    made = [*stale_momentum.rows("0p25", stale_momentum.answer("0p25", seeds=1, seed=3))]
    assert [row["replaced"] for row in made] == [row["replaced"] for row in expected]
    losses = [[float(row["val_loss"]) for row in rows] for rows in (made, expected)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


def test_the_notebook_shows_the_counts_of_the_claims_page():
    """Its table is of the stored results and today's verdicts, as the page's sentence is."""
    notebook = json.loads(
        (Path(__file__).parents[2] / "notebooks/15_reproduce.ipynb").read_text(encoding="utf-8")
    )
    cell = next(c for c in notebook["cells"] if "each.counts() for" in "".join(c["source"]))
    shown = "".join(cell["outputs"][0]["data"]["text/html"])
    assert re.findall(r"<th>([^<]+)</th>", shown)[: len(VERDICTS)] == [*VERDICTS]
    counts = [stored_reproduction(name).counts().values() for name in NAMES]
    assert re.findall(r"<td>(\d+)</td>", shown) == [str(count) for each in counts for count in each]


def toy(claims, numbers, tried=()):
    """Return a paper of two strategies, whose validation accuracies are given, with trials of rates."""
    bsp, asp = ({"setup": "a", "spec": {"strategy": name}} for name in ("bsp", "asp"))
    plain = [{key: value for key, value in each.items() if key not in ("value", "of")} for each in claims]
    content = CONTENT | {"experiments": {"bsp": bsp, "asp": asp}, "claims": plain}
    lines = [
        f"T{n},{each['rows'][0]},p,{each['value']},,points,,asp,bsp,{each['of']},difference,,\n"
        for n, each in enumerate(claims)
    ]
    paper = parse("toy", content, HEAD + "".join(lines))
    records = {
        (name, role, label, seed): SimpleNamespace(
            **{"experiment": name, "seed": seed, "role": role, "label": label, "status": "finished"},
            spec=json.dumps({"strategy": {"name": name}}),
            measures=measures,
            params_digest=name,
        )
        for name, role, label, runs in [*numbers, *tried]
        for seed, measures in enumerate(runs)
    }
    return Reproduction(paper, "quick", None, records)


def accuracies(name, *values, role="result", label=""):
    return name, role, label, [{"val_accuracy": a, "train_accuracy": b} for a, b in values]


LOSES = {"name": "loses", "says": "One loses accuracy in validation.", "rows": ["v"], "value": -5}
SAME = {
    "name": "same",
    "says": "Both train equally well.",
    "rows": ["t"],
    "value": 0,
    "test": "same",
    "margin": 1.0,
}
BASE = accuracies("bsp", (0.90, 0.90), (0.91, 0.91), (0.92, 0.92), (0.90, 0.90))


def found_of(*claims, loss=0.05):
    of = ("val_accuracy", "train_accuracy")
    given = [each | {"of": name} for each, name in zip(claims, of, strict=False)]
    worse = accuracies(
        "asp",
        *(
            (r["val_accuracy"] - loss + s, r["train_accuracy"] + s)
            for r, s in zip(BASE[3], SHIFTS, strict=True)
        ),
    )
    return {each.claim.name: each for each in toy(given, [BASE, worse]).claims}


SHIFTS = (0.001, -0.001, 0.0005, 0.0)


def test_equality_counts_where_a_loss_could_be_found():
    """What asynchronous training learns as well shows nothing of equality, nor that a loss is not there."""
    beside = SAME | {"control": "loses"}
    found = found_of(LOSES, beside)
    assert (found["loses"].verdict, found["same"].verdict) == ("confirmed", "confirmed")
    found = found_of(LOSES, beside, loss=0.0)
    assert (found["loses"].verdict, found["same"].verdict) == ("inconclusive", "inconclusive")
    assert "nor was the loss" in found["same"].because[0]
    alone = found_of(LOSES, SAME)["same"]  # no control was named
    assert (alone.verdict, alone.because) == (
        "inconclusive",
        ("No difference was found, and there is no claim of a loss that shows that there can be one.",),
    )
    lost = SAME | {"name": "small", "value": -3, "test": "effect", "control": "loses"}
    del lost["margin"]
    found = found_of(LOSES, lost)
    assert (found["loses"].verdict, found["small"].verdict) == ("confirmed", "not found")
    assert found_of(LOSES, lost, loss=0.0)["small"].verdict == "inconclusive"
    with pytest.raises(DataError, match="control 'none' is not one of"):
        parse("toy", CONTENT | {"claims": [CLAIM | {"control": "none"}]}, HEAD + LINE)


def test_what_a_setup_cannot_test_has_no_verdict_at_that_size():
    """Whichever way its runs turn out, and it is no control either."""
    why = "All strategies fit every sample."
    for scale, verdict in (("quick", "not testable here"), ("full", "confirmed")):
        for loss in (0.05, -0.05):
            found = found_of(LOSES | {"untestable": {scale: why}}, SAME | {"control": "loses"}, loss=loss)
            expected = verdict if loss > 0 or scale == "quick" else "contradicted"
            assert found["loses"].verdict == expected
            assert found["loses"].because == ((why,) if scale == "quick" else ())
            assert found["same"].verdict == ("confirmed" if expected == "confirmed" else "inconclusive")
    with pytest.raises(DataError, match=r"claims\.0\.untestable\.huge"):
        parse("toy", CONTENT | {"claims": [CLAIM | {"untestable": {"huge": why}}]}, HEAD + LINE)


@pytest.mark.parametrize(
    ("best", "verdict"), [("0.5", "inconclusive"), ("1", "confirmed"), ("2", "inconclusive")]
)
@pytest.mark.parametrize("tuned", ["bsp", "asp"])
def test_a_claim_at_the_edge_of_the_rates_says_so_and_is_never_confirmed(best, verdict, tuned):
    tried = [
        accuracies(tuned, (0.9 if rate == best else 0.8, 0.5), role="tuning", label=rate)
        for rate in ("0.5", "1", "2")
    ]
    own = [
        BASE,
        accuracies("asp", *((r["val_accuracy"] - 0.05 + s, 0) for r, s in zip(BASE[3], SHIFTS, strict=True))),
    ]
    again = [(name, "best", best, runs) for name, _, _, runs in own]
    for rates in ("best", "common"):
        claims = [LOSES | {"of": "val_accuracy", "rates": rates}]
        (claim,) = toy(claims, [*own, *again], tried).claims
        assert claim.verdict == (verdict if rates == "best" else "confirmed")
        assert any(tuned in said and "edge" in said for said in claim.because) == (
            claim.verdict != "confirmed"
        )


def test_one_table_is_judged_by_the_family_of_the_paper():
    """A claim of a table alone is tested as strictly as among all claims of its paper."""
    claims = [
        LOSES | {"name": f"c{n}", "rows": [f"r{n}"], "says": f"One loses accuracy, for the {n}th time."}
        for n in range(9)
    ]
    of = [
        "val_accuracy",
        "train_accuracy",
        "train_loss",
        "val_loss",
        "time_s",
        "epochs",
        "updates",
        "steps",
        "busy",
    ]
    noisy = (-0.05, -0.02, -0.06, -0.015)
    p = stats.ttest_1samp(noisy, 0, alternative="less").pvalue
    assert ALPHA / 9 < p < ALPHA
    runs = [("bsp", "result", "", [dict.fromkeys(of, 0.0)] * 4)]
    runs += [("asp", "result", "", [dict.fromkeys(of, 0.0) | {"val_accuracy": value} for value in noisy])]
    whole = toy([each | {"of": measure} for each, measure in zip(claims, of, strict=True)], runs)
    alone = replace(whole, table="T0")
    assert (whole.claims[0].verdict, [each.verdict for each in alone.claims]) == (
        "inconclusive",
        ["inconclusive"],
    )
    assert whole.claims[0].test.agrees == pytest.approx(p)
    assert alone.claims[0].power == whole.claims[0].power


@pytest.mark.by_day(3)
@names
def test_a_size_that_assumed_numbers_affect_is_confirmed_over_their_draws(paper):
    """Nine in ten keep it, counted from the stored runs themselves."""
    found = stored_reproduction(paper.name)
    for claim in found.claims:
        rows = [row for row in claim.rows if row.assumes and row.ours is not None]
        if claim.claim.kind in ("claim", "conditional") and rows and claim.verdict == "confirmed":
            assert all(row.draws for row in rows), claim.claim.name
            assert min(_kept(found, claim.claim, row.published) for row in rows) >= 11, claim.claim.name


def _kept(found, claim, row):
    """Return in how many draws the number, from the records alone, has the printed size."""
    drawn = [record for record in found.records.values() if record.role == "sensitivity"]
    of = {(record.experiment, record.label): record.measures[row.measure] for record in drawn}
    low, high = bounds(claim, row)
    pairs = [[of[name, label] for name in row.experiments] for label in cells.DRAWS]
    ratios = [pair[0] / pair[1] if row.form == "ratio" else pair[-1] / pair[0] for pair in pairs if all(pair)]
    return sum(low <= ratio <= high for ratio in ratios)


def test_the_report_says_every_claim_with_its_verdict_and_needs_no_jargon(tmp_path):
    found = [stored_reproduction(name) for name in ("hermes", "strategy_switch")]
    page = html.unescape(write_page(tmp_path / "report.html", found).read_text(encoding="utf-8"))
    for each in found:
        for claim in each.claims:
            if claim.claim.kind in ("claim", "conditional"):
                said = f"<h3>{sentence(claim)}</h3><p><strong>{verdict_words(claim).capitalize()}."
                assert page.count(said) == 1, claim.claim.name
        assert summary(each) in page
    assert f"torch {version('torch')}" in page
    assert "nan" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL).lower().split()
    assert "Every 3th" not in page
    prose = page[: page.index("Appendix")]
    for word in ("WI", "guess", "cifar_hermes"):
        assert word not in re.findall(r"[\w_]+", prose.split("</style>")[1]), word
    study = next(figure for figure in figures(found[1]) if figure.name == "order")
    assert "Strategy-Switch, momentum kept" in set(study.table["experiment"])


def said_of(found):
    """Return the texts, tables and drawn numbers of a paper's section of the report, a line each."""
    shown = _paper(found)
    drawn, claims = shown.pop("figures"), shown.pop("claims")
    for claim in claims:
        yield from map(str, [*claim.values()][:-1])
        yield from claim["lines"]
    for title, value in shown.items():
        rows = [value[0], *value[1]] if isinstance(value, tuple) else value
        rows = rows if isinstance(rows, list) else [rows]
        yield from (f"{title}: {' | '.join(row) if isinstance(row, (list, tuple)) else row}" for row in rows)
    for figure in drawn:
        yield from (figure.name, figure.note, *figure.table[::9].to_csv(float_format="%.4g").splitlines())


@pytest.mark.by_day(3)
@pytest.mark.parametrize("name", ["strategy_switch", "sync_switch", "dbs_sgd", "adacomm"])
def test_what_is_said_of_stored_results_is_as_reviewed(name):
    golden = Path(__file__).parent / "stored" / f"{name}.txt"
    lines = list(said_of(stored_reproduction(name)))
    if is_rewritten(golden.exists()):
        golden.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == golden.read_text(encoding="utf-8").splitlines()


@pytest.mark.by_day(3)
@names
def test_no_two_curves_of_a_figure_look_alike(paper):
    """Strategies of a family share a colour; their lines then differ in the dash, in the legend too."""
    for figure in figures(stored_reproduction(paper.name)):
        spec = figure.chart.to_dict()
        lines = [layer for layer in spec.get("layer", []) if "strokeDash" in layer["encoding"]]
        for line in (layer["encoding"] for layer in lines):
            colours, dashes = line["color"]["scale"], line["strokeDash"]["scale"]
            assert colours["domain"] == dashes["domain"]
            assert line["color"]["legend"] == line["strokeDash"]["legend"]  # one legend, not two
            drawn = {*zip(colours["range"], map(tuple, dashes["range"]), strict=True)}
            assert len(drawn) == len(colours["domain"]), figure.name
        assert bool(lines) == (next(d for d in paper.drawings if d.id == figure.name).kind == "curves")


def test_rates_are_spoken_of_only_where_rates_were_tried(tmp_path):
    pages = [
        write_page(tmp_path / f"{name}.html", [stored_reproduction(name)]).read_text(encoding="utf-8")
        for name in ("hermes", "sync_switch")
    ]
    assert ["Rates were tried" in page for page in pages] == [False, True]


LINE = "Fig. 1,r,p,2,,x,,bsp,,time_s,,,\n"
CLAIM = {"name": "c", "says": "One is faster than the other.", "rows": ["r"]}
HEAD = "exhibit,row,place,value,relation,unit,reading_error,experiment,baseline,measure,form,better,reason\n"
CONTENT = {
    **{
        "title": "t",
        "source": "s",
        "reading": [],
        "guesses": [],
        "claims": [CLAIM],
        "about": "Whether one is faster than the other, and why.",
    },
    "setups": {
        "a": {
            "spec": {},
            "differs": dict.fromkeys(SCALES, "nothing"),
            "seconds": dict.fromkeys(SCALES, 1),
        }
    },
    "experiments": {"bsp": {"setup": "a", "spec": {"strategy": "bsp"}}},
}


@pytest.mark.parametrize(
    ("measured", "measures", "selection", "flagged"),
    [
        # of the synchronous one and of the other: as many epochs in less time, fewer epochs in more time
        ("time_to_target_s", {"time_to_target_s": (9, 1), "epochs_to_target": (4, 4)}, None, False),
        ("time_to_target_s", {"time_to_target_s": (1, 9), "epochs_to_target": (4, 2)}, None, True),
        ("val_accuracy", {"val_accuracy": (0.4, 0.6), "epochs_to_target": (4, 4)}, None, True),
        ("val_accuracy", {"val_accuracy": (0.4, 0.4), "epochs_to_target": (4, 2)}, None, False),
        ("time_s", {"time_s": (9, 1), "epochs_to_target": (4, 2)}, None, False),
        # which samples are taken: that is meant to teach more
        ("val_accuracy", {"val_accuracy": (0.4, 0.6)}, {"name": "online_batch"}, False),
    ],
)
def test_learning_more_than_synchronous_training_is_flagged(measured, measures, selection, flagged):
    """Of a time to a target its epochs are looked at, of an accuracy the value itself."""
    unit, form = ("%", "difference") if measured == "val_accuracy" else ("x", "speed_up")
    content = CONTENT | {
        "experiments": CONTENT["experiments"] | {"asp": {"setup": "a", "spec": {"strategy": "asp"}}}
    }
    paper = parse("toy", content, HEAD + f"Fig. 1,r,p,2,,{unit},,asp,bsp,{measured},{form},,\n")
    records = {
        (name, seed): SimpleNamespace(
            **{"experiment": name, "seed": seed, "role": "result", "label": "", "status": "finished"},
            spec=json.dumps({"strategy": {"name": name} | ({"selection": selection} if place else {})}),
            measures={"time_s": 9.0} | {key: pair[place] + seed / 100 for key, pair in measures.items()},
            params_digest=name,
        )
        for place, name in enumerate(("bsp", "asp"))
        for seed in range(3)
    }
    (outcome,) = Reproduction(paper, "quick", 3, records).outcomes
    assert outcome.ours.seeds == 3
    assert any(flag.startswith("learns more from a sample") for flag in outcome.flags) == flagged


@pytest.mark.parametrize(("scales", "said"), [(["smoke"], []), (["smoke", "full"], ["full"])])
def test_what_only_scale_smoke_runs_is_run_nowhere_else(scales, said):
    """It shows that everything runs, and is no reason to run anything."""
    bsp = {"setup": "a", "spec": {"strategy": "bsp"}, "scales": scales}
    content = CONTENT | {"experiments": {"bsp": bsp}, "claims": [CLAIM | {"test": "number"}]}
    found = Reproduction(parse("toy", content, HEAD + LINE), "quick", None, {})
    assert how_to_run(found) == [
        f"not run at scale quick but at {scale} (`psbench reproduce toy --scale {scale} --data DIR`): r"
        for scale in said
    ]


def test_conditions_of_claims_are_told_as_data():
    written = yaml.safe_load(stored("hermes").with_name("claims.yaml").read_text())
    told = {each.claim.name: each.as_dict()["given"] for each in stored_reproduction("hermes").claims}
    assert told == {each["name"]: each.get("given") for each in written}
    assert 0 < sum(given is None for given in told.values()) < len(told)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Fig. 1,r,p,2,,x,,,,,,,", "'r': give an experiment, or the reason why there is none"),
        ("Fig. 1,r,p,2,,x,,bsp,,time_s,,,because", "'r': give an experiment, or the reason"),
        ("Fig. 1,r,p,2,,x,,bsp,,,,,", "which measure of 'bsp' is compared"),
        ("Fig. 1,r,p,2,,x,,bsp,,time_s,speed_up,,", "form 'speed_up' and baseline '' do not go together"),
        ("Fig. 1,r,p,2,,miles,,bsp,,time_s,,,", "unit 'miles' is not one of"),
        ("Fig. 1,r,,2,,x,,bsp,,time_s,,,", "rows.0.place"),
        ("Fig. 1,r,p,two,,x,,bsp,,time_s,,,", "rows.0.value"),
        ("Fig. 1,r,p,2,,x,,bps,,time_s,,,", "experiment 'bps' is not one of: bsp"),
        ("Fig. 1,r,p,2,,x,,bsp,,time_s,,,", "claim 'c': 'r' stands alone: test it as a number"),
        ("Fig. 1,r,p,1.0,,x,,bsp,bsp,time_s,speed_up,,", "'r' prints no effect: test it as the same"),
        ("Fig. 1,r,p,0,,%,,bsp,bsp,val_accuracy,difference,,", "'r' prints no effect: test it as the same"),
    ],
)
def test_a_bad_row_is_refused_in_one_line(line, message):
    with pytest.raises(DataError) as caught:
        parse("toy", CONTENT, HEAD + line + "\n")
    assert message in str(caught.value)


SECOND = {"name": "d", "says": "The other is slower than the one.", "rows": ["q"]}
TWO = "Fig. 1,r,p,2,,x,,bsp,asp,time_s,speed_up,,\nFig. 1,q,p,{value},,x,,{mine},{other},time_s,{form},,\n"


@pytest.mark.parametrize(
    ("claims", "row", "message"),
    [
        ([CLAIM], ("3", "bsp", "asp", "speed_up"), "rows of no claim: ['q']"),
        ([CLAIM, SECOND | {"rows": ["q", "r"]}], ("3", "bsp", "asp", "speed_up"), "rows of two claims"),
        ([CLAIM, SECOND], ("3", "bsp", "asp", "speed_up"), "comparisons of two claims"),
        ([CLAIM, SECOND], ("0.5", "asp", "bsp", "speed_up"), "comparisons of two claims"),
        ([CLAIM, SECOND], ("0.5", "bsp", "asp", "ratio"), "comparisons of two claims"),
        ([CLAIM | {"rows": ["r", "q"]}], ("2", "bsp", "asp", "speed_up"), "claim 'c': rows"),
        ([CLAIM, CLAIM | {"rows": ["q"]}], ("3", "asp", "bsp", "ratio"), "claims named twice: ['c']"),
        ([CLAIM, SECOND | {"rows": ["s"]}], ("3", "asp", "bsp", "ratio"), "row 's' is not one of: r, q"),
        ([CLAIM, SECOND | {"given": "a number"}], ("3", "asp", "bsp", "ratio"), "a conditional claim"),
        ([CLAIM, SECOND | {"margin": 0.5}], ("3", "asp", "bsp", "ratio"), "margin 0.5 must be a factor"),
    ],
)  # fmt: skip
def test_what_would_count_twice_or_not_at_all_is_refused(claims, row, message):
    value, mine, other, form = row
    experiments = CONTENT["experiments"] | {"asp": {"setup": "a", "spec": {"strategy": "asp"}}}
    content = CONTENT | {"claims": claims, "experiments": experiments}
    with pytest.raises(DataError) as caught:
        parse("toy", content, HEAD + TWO.format(value=value, mine=mine, other=other, form=form))
    assert message in str(caught.value)


def test_evidence_may_stand_beside_a_claim():
    """What is not judged is not counted, so the same comparison may be shown again."""
    content = CONTENT | {"claims": [CLAIM, SECOND | {"kind": "evidence"}]}
    content |= {"experiments": CONTENT["experiments"] | {"asp": {"setup": "a", "spec": {"strategy": "asp"}}}}
    paper = parse("toy", content, HEAD + TWO.format(value="0.5", mine="bsp", other="asp", form="ratio"))
    assert [claim.kind for claim in paper.claims] == ["claim", "evidence"]


def test_a_row_that_prints_no_value_is_evidence_and_nothing_else():
    """Such as an ablation that a paper announces; ours stands alone beside "not printed"."""
    silent = {"name": "silent", "says": "Nothing was printed of this.", "rows": ["v"], "value": ""}
    worse = accuracies("asp", *((r["val_accuracy"] - 0.05, 0.9) for r in BASE[3]))
    found = toy([silent | {"of": "val_accuracy", "kind": "evidence"}], [BASE, worse])
    (outcome,) = found.outcomes
    assert cells_of(found.outcomes)[0][1:3] == ["not printed", "-5 (-5 to -5) pt"]
    assert outcome.as_dict()["theirs"] == {"value": None, "relation": "=", "error": 0.0}
    assert found.claims[0].test is None
    with pytest.raises(DataError, match="'v' has no printed value: it can be evidence only"):
        toy([silent | {"of": "val_accuracy"}], [BASE, worse])
