"""From the source of an assignment to a grade: editions, a student's work, results, and what is copied."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import nbformat
import pytest

from psbench.course.__main__ import main
from psbench.course.editions import student_edition
from psbench.course.grading import submission_of
from psbench.course.submission import Submission, own_of
from psbench.errors import DataError, ParameterError

SOURCES = sorted((Path(__file__).parents[2] / "notebooks" / "assignments").glob("*.md"))
#: what a student who knows it puts in the place of the dots
KNOWN = {
    "predict(\n    waiting=...,\n    times_as_fast=...": "predict(\n    waiting=0.5,\n    times_as_fast=2",
    "...  # your code\n": "idle = bsp.summary()['idle_fraction']\n",
    "slowest=...": "slowest=min(range(4), key=idle.__getitem__)",
    "times_as_fast=...": "times_as_fast=bsp.summary()['time_s'] / asp.summary()['time_s']",
    "waiting=...": "waiting=(sum(idle) - min(idle)) / 3",
}


def editions(source, out):
    main(["build", str(source), str(out)])
    read = (nbformat.read(out / which / f"{source.stem}.ipynb", 4) for which in ("student", "solution"))
    for notebook in (found := list(read)):
        nbformat.validate(notebook)
    return found


def worked(notebook, student, monkeypatch, folder, known=()):
    """Run a notebook's cells as that student, and return the grade of what was handed in."""
    monkeypatch.chdir(folder)
    space = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            text = cell.source.replace("your-id", student)
            for dots, answer in dict(known).items():
                text = text.replace(dots, answer)
            exec(text, space)
    return graded(space["mine"].folder)


def graded(folder):
    main(["grade", str(folder), "--out", "results.json"])
    return json.loads(Path("results.json").read_text())


@pytest.mark.parametrize("source", SOURCES, ids=lambda each: each.stem)
def test_the_solution_has_all_points_and_the_student_edition_none(source, tmp_path, monkeypatch):
    student, solution = editions(source, tmp_path)
    assert "SOLUTION" not in json.dumps([student, solution])
    assert "..." in json.dumps(student)
    for words in ("You will be able to", "It takes", "GB"):
        assert words in student.cells[0].source
    found = worked(solution, "ada", monkeypatch, tmp_path)
    assert [test["output"] for test in found["tests"]] == [""] * len(found["tests"])
    assert found["score"] == 10


def test_a_student_s_edition_is_worked_through_graded_and_ranked(tmp_path, monkeypatch, capsys):
    student, _ = editions(SOURCES[0], tmp_path)
    found = worked(student, "ada@uni", monkeypatch, tmp_path, KNOWN)
    assert (found["score"], [test["score"] for test in found["tests"]]) == (10, [2] * 5)
    careless = worked(student, "bob", monkeypatch, tmp_path, KNOWN | {"waiting=...": "waiting=0.1"})
    assert [test["score"] for test in careless["tests"]] == [2, 2, 2, 0, 2]
    capsys.readouterr()
    main(["leaderboard", "assignment-1-ada@uni", "assignment-1-bob"])
    rows = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert [row[:2] for row in rows] == [["rank", "student"], ["1", "ada@uni"]]
    assert 0 < float(rows[1][2]) < 1


def test_what_is_copied_or_changed_has_no_points(tmp_path, monkeypatch):
    student, _ = editions(SOURCES[0], tmp_path)
    worked(student, "ada", monkeypatch, tmp_path, KNOWN)
    other = next(f"eve{n}" for n in range(9) if own_of(f"eve{n}")["slow"] != own_of("ada")["slow"])
    shutil.copytree("assignment-1-ada", f"assignment-1-{other}")
    copied = graded(f"assignment-1-{other}")
    assert [test["score"] for test in copied["tests"]] == [2, 0, 0, 0, 0]
    assert "is not of your experiment" in copied["tests"][1]["output"]
    mine = Submission(1, "ada")
    with pytest.raises(ParameterError, match="predictions are kept"):
        mine.predict(waiting=0.6, times_as_fast=2)
    with pytest.raises(ParameterError, match="say what you expect first"):
        Submission(1, "new").run("bsp")
    with pytest.raises(ParameterError, match="is not a valid id"):
        Submission(1, "your-id").answer(slowest=1)
    with pytest.raises(DataError, match="give a folder assignment-N-STUDENT"):
        submission_of(tmp_path / "assignment-7-ada")
    with pytest.raises(DataError, match="a mark of a solution near line 2 has no end"):
        student_edition("```python\n# BEGIN SOLUTION\nx = 1\n```\n")
