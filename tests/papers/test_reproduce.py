"""The commands: cost first, ours beside theirs, resumable, and stored runs that can be made again."""

import json
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hostile import faulty

from psbench.cli import main
from psbench.errors import DamagedFile, DataError
from psbench_papers import cells, session
from psbench_papers.library import load
from psbench_papers.outcome import best_rates
from psbench_papers.records import Store, read_records, records_in, write_records
from psbench_papers.session import data_of, draw, plan, reproduce, stored_records, stored_reproduction
from psbench_papers.text import how_to_run
from psbench_papers.verdict import VERDICTS

ROUNDS = ("thesis", "Sec. 3.2.2", "--scale", "smoke", "--processes", "1")


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """Four rows of the thesis, with two seeds."""
    folder = tmp_path_factory.mktemp("papers")
    return folder, reproduce(plan(load("thesis"), "smoke", 2, "Sec. 3.2.2"), folder, 1)


def test_the_command_says_the_cost_first_and_goes_on_where_it_was(capsys, rounds):
    folder, _ = rounds
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.json")}
    assert main(["reproduce", *ROUNDS, "--seeds", "2", "--out", str(folder), "--json"]) == 0
    out, err = capsys.readouterr()
    first, second, *_ = err.splitlines()
    assert first == "thesis, scale smoke: 8 results"
    assert second.startswith("expected: 2 s with 1 processes, 400 MB")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.json")} == before  # nothing was run
    content = json.loads(out)
    assert [row["row"] for row in content["rows"]] == [f"k-BSP round, k = {k} of 8" for k in (1, 2, 4, 8)]
    assert content["rows"][0]["theirs"] == {"value": 0.125, "relation": "=", "error": 0.00125 + 0.00005}
    (claim,) = content["claims"]
    assert (claim["claim"], claim["kind"], len(claim["rows"])) == ("round-times", "check", 4)
    assert claim["verdict"] in VERDICTS
    page = (folder / "report.html").read_text()
    assert "k-BSP round, k = 4 of 8" in page
    assert "Where each number is printed" in page


def test_a_stored_run_is_made_again_with_the_same_digest(capsys, rounds):
    folder, _ = rounds
    assert main(["verify", "thesis", "--out", str(folder), "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("the same: log ")


def test_a_stored_run_that_is_another_is_found(capsys, rounds, tmp_path):
    (record, *_) = records_in(rounds[0])
    Store(tmp_path).save(replace(record, digest="0" * 64))
    assert main(["verify", "thesis", "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("DIFFERENT")
    time_s = record.measures["time_s"]
    assert f"stored: time_s {time_s} and now {time_s}" in err  # what differs is the digest alone


def test_outcomes_have_ours_theirs_and_the_closed_form(rounds):
    _, found = rounds
    first = found.outcomes[0]
    assert first.theory == pytest.approx(0.125)
    assert first.ours.seeds == 2
    # 60 rounds of a mean of 0.125 s: within a quarter of it with all but one chance in ten thousand
    assert first.ours.mean == pytest.approx(0.125, rel=0.4)
    (claim,) = found.claims
    assert [row.published.row for row in claim.rows] == list(claim.claim.rows)
    assert found.counts("check")[claim.verdict] == 1
    assert not any(found.counts().values())  # a check of ours is no claim of the paper


def test_data_that_are_not_there_make_rows_that_were_not_run(monkeypatch, tmp_path):
    """The other rows are not held up."""
    monkeypatch.setenv("PSBENCH_DATA", str(tmp_path / "nothing"))
    planned = plan(load("dbs_sgd"), "quick", 1, "Fig. 11")
    found = reproduce(planned, tmp_path, 1)
    assert {each.verdict for each in found.claims} == {"not run"}
    assert "is missing" in found.outcomes[0].flags[0]
    assert "psbench reproduce dbs_sgd --scale quick --data DIR" in how_to_run(found)[1]


def test_verify_takes_the_folder_of_data_sets(capsys, tmp_path, monkeypatch):
    """The help's own example is of MNIST."""
    monkeypatch.setenv("PSBENCH_DATA", "")
    stored = stored_records("strategy_switch")
    seed = next(n for n in range(99) if "mnist" in draw(stored, n).spec)
    assert main(["verify", "strategy_switch", "--seed", str(seed), "--data", str(tmp_path)]) == 2
    assert f"error: mnist: {tmp_path}" in capsys.readouterr().err
    assert main(["verify", "strategy_switch", "--data", str(tmp_path / "none")]) == 2
    assert "none: there is no such folder" in capsys.readouterr().err


def test_verify_draws_another_run_where_data_are_not_there(capsys, monkeypatch):
    """The help's own example works without MNIST, and says what it left out."""
    stored = stored_records("strategy_switch")
    seed = next(n for n in range(99) if data_of(draw(stored, n)) == "mnist")

    def made(record):
        if data_of(record) == "mnist":
            raise DataError("mnist: a file is missing")
        return {"digest": record.digest, "params_digest": record.params_digest}

    monkeypatch.setattr(session, "again", made)
    assert main(["verify", "strategy_switch", "--seed", str(seed)]) == 0
    assert (
        "mnist: a file is missing; --data DIR gives the folder of the data sets. An"
        in capsys.readouterr().err
    )
    assert data_of(draw(stored, seed, ["mnist"])) != "mnist"
    with pytest.raises(DataError, match="all stored runs are of mnist; give --data DIR"):
        draw([draw(stored, seed)], 0, ["mnist"])


def test_stored_runs_are_judged_without_running(capsys, tmp_path):
    assert main(["reproduce", "thesis", "--stored", "--out", str(tmp_path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    found = stored_reproduction("thesis")
    assert content["verdicts"] == {"thesis": found.counts()}
    assert [each["verdict"] for each in content["claims"] if each["kind"] == "claim"] == [
        each.verdict for each in found.claims if each.claim.kind == "claim"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert main(["reproduce", "thesis", "--stored", "--seeds", "2"]) == 2
    assert "--stored judges all stored runs" in capsys.readouterr().err
    assert main(["reproduce", "thesis", "--stored", "--scale", "full"]) == 2
    assert "no runs of scale full come with psbench; run `psbench reproduce thesis" in capsys.readouterr().err


def test_a_paper_that_is_not_there_is_one_line(capsys):
    assert main(["reproduce", "hermess"]) == 2
    assert "unknown paper 'hermess'; did you mean 'hermes'?" in capsys.readouterr().err
    assert main(["reproduce", "hermes", "--all"]) == 2
    assert main(["reproduce"]) == 2


def test_records_come_back_from_parquet(rounds, tmp_path):
    stored = records_in(rounds[0])
    write_records(tmp_path / "quick.parquet", stored)
    assert read_records(tmp_path / "quick.parquet") == stored


def test_a_record_that_is_none_is_refused_with_its_file_and_place(rounds, tmp_path, capsys):
    (record, *_) = records_in(rounds[0])
    Store(tmp_path).save(record)
    (file,) = (tmp_path / "records").iterdir()
    whole = json.loads(file.read_text())
    for change, problem in {
        '"x"': "must be a mapping, got 'x'",
        "[" * 100_000: "its numbers or lists are too long",
        "{": "is not JSON, or is truncated, at line 1",
        json.dumps(whole | {"format": 7}): "format: must be 1, got 7",
        json.dumps(whole | {"seed": "many"}): "seed: must be a whole number, got 'many'",
        json.dumps(whole | {"curve": {"epoch": 3}}): "curve.epoch: must be a list, got 3",
        json.dumps(whole | {"spec": "[]"}): "spec is no specification of a run",
        json.dumps(whole | {"spec": '{"strategy": {"name": 3}, "data": {"name": "x"}}'}): "spec is no spec",
        json.dumps({key: value for key, value in whole.items() if key != "digest"}): "digest: is required",
        json.dumps(whole | {"more": 1}): "more: is not known",
    }.items():
        file.write_text(change)
        assert main(["verify", "thesis", "--out", str(tmp_path)]) == 2
        err = capsys.readouterr().err
        assert f"{file}: " in err
        assert problem in err


def test_best_rates_are_those_of_the_best_trial(rounds):
    """A run that diverged is never best, and of equal ones the common rate is taken."""
    (record, *_) = records_in(rounds[0])

    def trial(rate, accuracy, status="finished"):
        measures = record.measures | {"val_accuracy": accuracy}
        return replace(record, role="tuning", label=rate, measures=measures, status=status)

    assert best_rates([trial("0.5", 0.8), trial("1", 0.9), trial("2", 0.95)]) == {record.experiment: 2.0}
    assert best_rates([trial("0.5", 0.9), trial("1", 0.9), trial("2", 0.99, "diverged")]) == {
        record.experiment: 1.0
    }
    nothing = replace(trial("2", None), measures={})
    for best, edges in (("0.5", {record.experiment}), ("1", set()), ("2", {record.experiment})):
        trials = [replace(trial(rate, 0.9 if rate == best else 0.8), key=rate) for rate in ("0.5", "1", "2")]
        found = replace(rounds[1], records={each.key: each for each in trials})
        assert found.edges == edges
    assert best_rates([trial("0.5", 0.1), nothing]) == {record.experiment: 0.5}


def test_a_row_has_a_best_if_one_of_its_two_experiments_was_tuned():
    found = stored_reproduction("strategy_switch")
    row = next(each.published for each in found.outcomes if each.ours is not None and each.published.baseline)
    again = replace(found)
    vars(again)["rates"] = {row.experiment: 1.0}
    assert next(each for each in again.outcomes if each.published == row).best is not None


def test_every_tuned_experiment_gets_the_same_trials():
    trials = cells.tuning(load("strategy_switch"), "quick")
    counts = {
        name: [c.label for c in trials if c.experiment == name] for name in {c.experiment for c in trials}
    }
    assert set(map(tuple, counts.values())) == {("0.5", "1", "2")}
    assert {cell.seed for cell in trials} == {cells.TUNING_SEED}
    planned = plan(load("strategy_switch"), "quick")
    again = planned.most_best  # as many as there could be: none of them is the common rate's
    assert {(cell.experiment, cell.label) for cell in again} == {(name, "0.5") for name in counts}
    first, *_, last = planned.words(1)
    assert f"up to {len(again)} results at the best rates" in first
    assert last == "each experiment that is tuned gets 3 trials: rates x 0.5, 1, 2"


def test_smoke_of_a_whole_paper_draws_its_figures(tmp_path):
    """DBS-SGD: timing, training, figures, report."""
    from psbench_papers.figures import figures
    from psbench_papers.page import write_page

    found = reproduce(plan(load("dbs_sgd"), "smoke", 1), tmp_path, 1)
    without = {outcome.published.row: outcome.flags for outcome in found.outcomes if outcome.ours is None}
    nowhere = ("no run reached the target, so nothing can be said",)  # in so short a time
    assert {row: flags for row, flags in without.items() if flags != nowhere} == {
        row.row: () for row in load("dbs_sgd").rows if row.reason
    }
    assert {figure.name for figure in figures(found)} == {"fig10", "fig13", "fig8"}
    assert "near-linear" in write_page(tmp_path / "report.html", [found]).read_text()


def test_a_damaged_record_is_made_again_with_a_warning(rounds, tmp_path):
    (record, *_) = records_in(rounds[0])
    store = Store(tmp_path)
    store.save(record)
    (file,) = (tmp_path / "records").iterdir()
    cell = SimpleNamespace(key=record.key, spec=record.spec)
    assert store.find(cell) == record
    whole, rng = json.loads(file.read_text()), np.random.default_rng(0)
    for change in (
        "",
        "[]",
        json.dumps(whole | {"spec": record.spec + " "}),
        json.dumps(whole | {"seed": None}),
    ):
        file.write_text(change)
        with pytest.warns(DamagedFile, match=re.escape(str(file))):
            assert store.find(cell) is None
    for _ in range(100):
        file.write_text(json.dumps(faulty(whole, rng)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamagedFile)
            found = store.find(cell)
        assert found is None or found.key == record.key
