"""The files of the papers: every row has its place, and its runs or the reason why there are none."""

import html
from pathlib import Path

import pytest

from psbench.errors import DataError, UnknownName
from psbench.papers import cells
from psbench.papers.closed_forms import FORMULAS
from psbench.papers.figures import figures
from psbench.papers.library import NAMES, load, parse, stored
from psbench.papers.measures import TARGETS, measure
from psbench.papers.page import write_page
from psbench.papers.schema import SCALES
from psbench.papers.session import stored_reproduction
from psbench.papers.text import headline
from psbench.runs.execution import run

PAPERS = [load(name) for name in NAMES]
names = pytest.mark.parametrize("paper", PAPERS, ids=NAMES)


@names
def test_every_row_has_a_place_and_runs_or_a_reason(paper):
    for row in paper.rows:
        assert len(row.place) > 5, row.row
        assert bool(row.experiment) != (len(row.reason) > 10), row.row
    assert any(row.experiment for row in paper.rows)


@names
def test_what_differs_is_said_at_every_scale(paper):
    for name, setup in paper.setups.items():
        assert set(setup.differs) == set(setup.seconds) == set(SCALES), name


@names
@pytest.mark.parametrize("scale", ["smoke", "quick"])
def test_every_experiment_is_valid(paper, scale):
    """Nothing is found to be wrong after hours of running."""
    planned = cells.results(paper, scale, 1)
    assert {cell.experiment for cell in planned} >= {
        row.experiment for row in paper.rows if cells.runs_at(paper, row, scale)
    }
    assert len({cell.key for cell in planned}) == len(planned)
    assert all(len(guess.factors) for guess in paper.guesses)
    cells.sensitivity(paper, scale)


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


def test_guesses_halved_and_doubled_keep_the_rest():
    paper = load("strategy_switch")
    plain = cells.experiment_of(paper, "c2_b1_ps", "quick", 0).spec()
    doubled = cells.experiment_of(paper, "c2_b1_ps", "quick", 0, {"cluster.bandwidth_mbit_s": 2.0}).spec()
    assert doubled["cluster"].pop("bandwidth_mbit_s") == 2 * plain["cluster"].pop("bandwidth_mbit_s")
    assert doubled == plain


def test_tables_are_found_however_they_are_written():
    paper = load("hermes")
    assert cells.rows_of(paper, "quick", "table iii") == cells.rows_of(paper, "quick", "Table III")
    with pytest.raises(UnknownName, match=r"'Table 3'.*Table III"):
        cells.rows_of(paper, "quick", "Table 3")
    with pytest.raises(UnknownName, match="did you mean 'hermes'"):
        load("hermis")


@pytest.mark.parametrize("paper", [p for p in PAPERS if stored(p.name).is_file()], ids=lambda p: p.name)
def test_what_comes_with_psbench_is_of_this_plan(paper):
    """Stored quick runs: every row that can be run at that scale has a number."""
    found = stored_reproduction(paper.name)
    assert stored(paper.name).stat().st_size < 200_000
    for outcome in found.outcomes:
        can_run = cells.runs_at(paper, outcome.published, "quick")
        assert (outcome.verdict != "not run") == can_run, outcome.published.row


def test_the_readme_shows_the_stored_results():
    shown = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    for name in NAMES:
        if stored(name).is_file():
            assert f"| {' | '.join(headline(stored_reproduction(name)))} |" in shown, name


def test_the_report_shows_every_row_with_its_verdict_and_each_note_once(tmp_path):
    found = [stored_reproduction(name) for name in ("hermes", "strategy_switch")]
    page = write_page(tmp_path / "report.html", found).read_text(encoding="utf-8")
    for each in found:
        notes = {
            o.note for o in each.outcomes if o.note and o.verdict in ("direction only", "not reproduced")
        }
        assert notes
        assert all(page.count(f": {html.escape(note)}</li>") == 1 for note in notes)
    assert page.count("<td>never in 1 of 3 runs</td><td>not reproduced</td>") == 1
    assert "±nan" not in page.replace(" ", "")
    study = next(figure for figure in figures(found[1]) if figure.name == "order")
    assert "Strategy-Switch, momentum kept" in set(study.table["experiment"])


HEAD = "exhibit,row,place,value,relation,unit,reading_error,experiment,baseline,measure,form,better,reason\n"
CONTENT = {
    **{"title": "t", "source": "s", "headline": "r", "reading": [], "guesses": []},
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
    ("line", "message"),
    [
        ("Fig. 1,r,p,2,,x,,,,,,,", "'r': give an experiment, or the reason why there is none"),
        ("Fig. 1,r,p,2,,x,,bsp,,time_s,,,because", "'r': give an experiment, or the reason"),
        ("Fig. 1,r,p,2,,x,,bsp,,,,,", "which measure of 'bsp' is compared"),
        ("Fig. 1,r,p,2,,x,,bsp,,time_s,speed_up,,", "form 'speed_up' and baseline '' do not go together"),
        ("Fig. 1,r,p,2,,miles,,bsp,,time_s,,,", "unit 'miles' is none of"),
        ("Fig. 1,r,,2,,x,,bsp,,time_s,,,", "rows.0.place"),
        ("Fig. 1,r,p,two,,x,,bsp,,time_s,,,", "rows.0.value"),
        ("Fig. 1,r,p,2,,x,,bps,,time_s,,,", "experiment 'bps' is none of: bsp"),
    ],
)
def test_a_bad_row_is_refused_in_one_line(line, message):
    with pytest.raises(DataError) as caught:
        parse("toy", CONTENT, HEAD + line + "\n")
    assert message in str(caught.value)
