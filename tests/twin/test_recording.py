"""Live runs are recorded, and judged again."""

import json
import re

import pytest

import psbench as ps
from psbench.twin.measures import measures_of
from psbench.twin.pictures import quantiles, write_report
from psbench.twin.recording import Recorded, Sizes, record
from psbench.twin.validation import validate
from tests.twin.known import ASP, PLAIN, alike


def test_recorded_runs_are_judged_again_and_drawn(tmp_path, monkeypatch):
    """Other seeds of the known cluster in the place of live runs: right within the noise, and drawn."""
    runs = [ps.run(PLAIN.but(stop={"updates": 60})), ps.run(ASP.but(stop={"updates": 240}))]
    for run in runs:
        run.meta["coordinator"] = {"pushes": 240, "serving_s": 0.048, "handled_s": 0.072}
    live = [ps.run(PLAIN.but(strategy="k_bsp", seed=seed, stop={"epochs": 6})) for seed in (5, 6)]
    links = alike(1e-3, 1e6, seconds=[(10**6, 9e-3)])
    summed = PLAIN.but(strategy="all_reduce", stop={"updates": 60})
    sums = [ps.run(summed.but(seed=seed)) for seed in (7, 8, 9)]
    Recorded({"fit": runs, "live/k-sync": live}, load=0.5, links=links).save(tmp_path)
    assert Recorded.read(tmp_path).links == links
    played = []
    monkeypatch.setattr(
        "psbench.twin.validation.run_experiment", lambda twin: played.append(ps.run(twin)) or played[-1]
    )
    # of a fit without an All-Reduce its first live repeat is one more probe, and the others are judged
    for fit, repeats in ((runs, 2), ([*runs, ps.run(summed)], 3), (runs[:1], 2)):
        found = validate(Recorded({"fit": fit, "live/All-Reduce": sums, "live/k-sync": live}), seeds=2)
        assert found.fitted == {run.experiment.title: 1 for run in (*fit, *sums)}
        said = "fitted to runs of: bsp (1), asp (1), all_reduce (1)".replace("asp (1), " * (len(fit) < 2), "")
        assert said in str(found).splitlines()
        assert [(each.part, each.repeats) for each in found.cells] == [("b", repeats), ("c", 2)]
        assert all(abs(each.error) < found.allowed(each) for each in found.cells)
        assert found.plain()["fitted"] == found.fitted
    # a single repeat is judged
    found = validate(Recorded({"fit": runs, "live/k-sync": live, "live/All-Reduce": sums[:1]}), seeds=2)
    assert found.fitted == {"bsp": 1, "asp": 1}
    assert [(each.part, each.repeats) for each in found.cells] == [("c", 2), ("c", 1)]
    played.clear()
    found = validate(Recorded({"fit": runs, "live/k-sync": live}), seeds=2)
    (cell,) = found.cells
    assert (cell.part, cell.repeats, cell.bytes_equal) == ("c", 2, True)
    assert abs(cell.error) < found.allowed(cell) < 0.2
    assert abs(found.replays["k-sync"]) < 0.01
    one, two = (measures_of(each).update_s for each in played)
    assert cell.predicted_s == pytest.approx((one + two) / 2)
    half = 6.3138 * abs(one - two) * 0.75**0.5  # of t with one degree of freedom, from a table: 95 %
    assert cell.band_width * cell.predicted_s == pytest.approx(2 * half, rel=1e-4)
    text = write_report(found, tmp_path / "report.html").read_text()
    assert all(
        word in text
        for word in ("live 0", "twin 0", "quantiles", "k-sync", "noise floor", "bsp (1), asp (1)")
    )
    headings = re.findall(r"<h[12]>(.*?)</h", text.partition("<script")[0])
    assert len(set(headings)) == len(headings) == 5
    again = quantiles(live[0], live[0])
    assert (again["live_s"] == again["twin_s"]).all()
    facts = json.loads((tmp_path / "twin.json").read_text())
    for change, problem in {
        '{"version": 7, "runs": {}}': "version: must be 1, got 7",
        "3": "must be a mapping, got 3",
        "{": "is not JSON",
        json.dumps(facts | {"runs": {"fit": 10**8}}): "runs.fit: declares 100000000 runs, but .* has 2",
        json.dumps(
            facts | {"runs": {"fit": 2, "fit of 2": 1}}
        ): "runs.fit of 2: declares 1 runs, but .* has 0",
        json.dumps(facts | {"runs": {"fit": -1}}): "runs.fit: must be greater than 0, got -1",
        json.dumps(facts | {"runs": {"live/k-sync": 2}}): "runs: has no runs called fit",
        json.dumps(facts | {"runs": [2]}): "runs: must be a mapping",
        json.dumps(facts | {"links": [1, 2, {"x": 3}]}): "links.*: must be",
        json.dumps(facts | {"load": "much"}): "load: must be a number, got 'much'",
    }.items():
        (tmp_path / "twin.json").write_text(change)
        with pytest.raises(ps.DataError, match=f"{tmp_path / 'twin.json'}: {problem}"):
            Recorded.read(tmp_path)


def test_live_runs_are_kept_as_they_come(monkeypatch, tmp_path):
    """What fails after an hour, or Ctrl-C, leaves the runs before it."""
    runs = iter([ps.run(PLAIN), ps.run(ASP), ps.DataError("no push"), KeyboardInterrupt()])

    def run(_):
        found = next(runs)
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr("psbench.twin.recording.run_experiment", run)
    with pytest.raises(KeyboardInterrupt):
        record(sizes=Sizes(scaled=()), folder=str(tmp_path))
    found = Recorded.read(str(tmp_path))
    assert {name: len(kept) for name, kept in found.runs.items()} == {"fit": 2}


def test_live_runs_have_seeds_of_their_own(monkeypatch):
    """Strategies that share a seed share the luck of emulated machines, and their errors are one."""
    seen = []
    monkeypatch.setattr("psbench.twin.recording.run_experiment", lambda each: seen.append(each))
    record(sizes=Sizes(batches=20))
    assert len(seen) == len({each.seed for each in seen}) > 30
    assert [each.strategy.name for each in seen[:3]] == ["bsp", "asp", "all_reduce"]  # as of a calibration
