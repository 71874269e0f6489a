"""From the source of an assignment to a grade: editions, a student's work, results, and what is copied."""

from __future__ import annotations

import csv
import doctest
import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import nbformat
import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from psbench.cli import main
from psbench.errors import DataError, ParameterError
from psbench_course import check, key, quiz
from psbench_course.collected import submission_of
from psbench_course.editions import student_edition
from psbench_course.grading import grade
from psbench_course.submission import Submission, own_of

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "notebooks" / "assignments").glob("*.md"))
#: what a student who knows it puts in the place of the dots
KNOWN = {
    "predict(\n    waiting=...,\n    times_as_fast=...": "predict(\n    waiting=0.5,\n    times_as_fast=2",
    "...  # your code\n": "idle = bsp.summary()['idle_fraction']\n",
    "slowest=...": "slowest=min(range(4), key=idle.__getitem__)",
    "times_as_fast=...": "times_as_fast=bsp.summary()['time_s'] / asp.summary()['time_s']",
    "waiting=...": "waiting=(sum(idle) - min(idle)) / 3",
}


def command(*words):
    return main(["course", *map(str, words)])


def editions(source, out):
    assert command("build", source, out) == 0
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
    return json.loads(json.dumps(grade(submission_of(Path(folder)))))


#: many runs, or runs to a target on several clusters
LONG = [pytest.param(each, marks=pytest.mark.nightly, id=each.stem) for each in SOURCES[3:]]


@pytest.mark.parametrize("source", [*SOURCES[:3], *LONG], ids=lambda each: each.stem)
def test_the_solution_has_all_points_and_the_student_edition_none(source, tmp_path, monkeypatch):
    student, solution = editions(source, tmp_path)
    assert "SOLUTION" not in json.dumps([student, solution])
    assert "..." in json.dumps(student)
    for words in ("You will be able to", "It takes", "GB"):
        assert words in student.cells[0].source
    found = worked(solution, "ada", monkeypatch, tmp_path)
    assert [test["output"] for test in found["tests"]] == [""] * len(found["tests"])
    assert found["score"] == (15 if source.stem == "0_quiz" else 10)


@pytest.fixture(scope="module")
def ada(tmp_path_factory):
    """Assignment 1 as students get it, the folder where one worked it through, and the grade."""
    folder = tmp_path_factory.mktemp("ada")
    student, _ = editions(SOURCES[1], folder)
    with pytest.MonkeyPatch.context() as patched:
        return student, folder, worked(student, "ada@uni", patched, folder, KNOWN)


@pytest.mark.nightly
def test_a_student_s_edition_is_worked_through_graded_and_ranked(ada, monkeypatch, capsys):
    student, folder, found = ada
    assert (found["score"], [test["score"] for test in found["tests"]]) == (10, [2] * 5)
    careless = worked(student, "bob", monkeypatch, folder, KNOWN | {"waiting=...": "waiting=0.1"})
    assert [test["score"] for test in careless["tests"]] == [2, 2, 2, 0, 2]
    capsys.readouterr()
    assert command("leaderboard", "assignment-1-ada@uni", "assignment-1-bob") == 0
    rows = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert [row[:2] for row in rows] == [["rank", "student"], ["1", "ada@uni"]]
    assert 0 < float(rows[1][2]) < 1
    assert command("grade", "assignment-1-bob") == 0
    assert json.loads(Path("results.json").read_text()) == careless
    by_otter_and_pytest(folder, monkeypatch, "assignment-1-bob", ["", "", "", "waiting = 0.1", ""])
    for value in (float("nan"), float("inf"), 10**400, "0.5", None):
        submission_of(folder / "assignment-1-bob").answer(slowest=0, waiting=value, times_as_fast=value)
        assert [test["score"] for test in graded("assignment-1-bob")["tests"][3:]] == [0, 0]


def by_otter_and_pytest(out, monkeypatch, folder, wrong):
    """The files for otter-grader and for pytest find what `grade` finds, and nothing else."""
    mine = submission_of(out / folder)
    for number, expected in enumerate(wrong, 1):
        space = {}
        exec((out / "tests" / SOURCES[1].stem / f"q{number}.py").read_text(), space)
        # what otter's OKTestFile.from_spec asks for
        test = space["test"]
        (suite,) = test["suites"]
        assert (space["OK_FORMAT"], test["name"], test["points"]) == (True, f"q{number}", 2)
        assert (suite["type"], suite["setup"], suite["teardown"]) == ("doctest", "", "")
        example = doctest.DocTestParser().get_doctest(
            suite["cases"][0]["code"], {"mine": mine}, "q", None, None
        )
        told = []
        failed = doctest.DocTestRunner(verbose=False).run(example, out=told.append).failed
        assert bool(failed) == bool(expected)
        assert expected in "".join(told)
    monkeypatch.setenv("PSBENCH_SUBMISSION", folder)
    told = json.loads(json.dumps(grade(mine)))
    options = ["-q", "-c", os.devnull, f"--rootdir={out}", "-p", "no:cacheprovider", "-p", "no:randomly"]
    assert pytest.main([*options, str(out / f"test_{SOURCES[1].stem}.py")]) == (1 if any(wrong) else 0)
    assert json.loads(Path("results.json").read_text()) == told


def test_what_is_copied_or_changed_has_no_points(ada, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = next(f"eve{n}" for n in range(9) if own_of(f"eve{n}")["slow"] != own_of("ada@uni")["slow"])
    for student in ("ada@uni", other):
        shutil.copytree(ada[1] / "assignment-1-ada@uni", f"assignment-1-{student}")
    copied = graded(f"assignment-1-{other}")
    assert [test["score"] for test in copied["tests"]] == [0] * 5
    assert {test["output"] for test in copied["tests"]} == {"run 'asp' does not belong to your experiment"}
    mine = Submission(1, "ada@uni")
    with pytest.raises(ParameterError, match="predictions cannot be changed"):
        mine.predict(waiting=0.6, times_as_fast=2)
    with pytest.raises(ParameterError, match="enter your predictions first"):
        Submission(1, "new").run("bsp")
    with pytest.raises(ParameterError, match="is not a valid id"):
        Submission(1, "your-id").answer(slowest=1)
    with pytest.raises(DataError, match="give a folder assignment-N-STUDENT"):
        submission_of(tmp_path / "assignment-7-ada")
    with pytest.raises(DataError, match="a solution mark near line 2 has no end"):
        student_edition("```python\n# BEGIN SOLUTION\nx = 1\n```\n")


def test_the_quiz_counts_before_and_after_in_each_student_s_order(tmp_path):
    mine = Submission(0, "ada", tmp_path)
    right = {f"q{number}": key.right_letter("ada", number) for number in quiz.NUMBERS}
    assert len(right) == 15
    mine.predict(**(right | {"q1": "e", "q2": "e", "q3": ...}))
    mine.answer(**(right | {"q1": "e"}))
    found = grade(mine)
    assert (found["score"], found["output"]) == (14, "assignment 0 of ada: 12 of 15 before the course")
    assert check(mine, 15) == "right"
    for number in (0, 16):
        with pytest.raises(DataError, match=f"assignment 0 has checks 1 to 15, not {number}"):
            check(mine, number)
    assert sum(key.right_letter("bob", number) != right[f"q{number}"] for number in quiz.NUMBERS) > 5
    shown = quiz.shown("ada")
    assert f"- **{right['q5']}** BSP" in shown
    assert all(len(set(options)) == 4 for _, options in quiz.QUESTIONS)


@pytest.mark.nightly
def test_what_does_not_compare_is_not_ranked(tmp_path, capsys):
    folders = [tmp_path / f"assignment-{name}" for name in ("0-ada", "1-ada")]
    for folder in folders:
        folder.mkdir()
    for given, says in (
        (folders[:1], "the quiz, assignment 0, has no run to rank"),
        ([tmp_path], "[0, 1] cannot be compared"),
    ):
        assert command("leaderboard", *given) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("error")) == ("", 1)
        assert says in err


#: a module that leaves a trace where it is imported
TRACE = "import pathlib; pathlib.Path('imported').touch()\ndef make(): ...\n"
#: fields of a specification that name it; an optimizer's class is imported where a specification is read
CODE = {
    "model": {"name": "import", "target": "trace:make"},
    "optimizer": {"name": "torch", "type": "trace:make", "lr": 0.1},
}


@pytest.mark.nightly
@pytest.mark.slow
def test_what_is_wrong_with_one_submission_costs_no_other_its_grade(ada, tmp_path, monkeypatch, capsys):
    """A class as it is handed in: a zip, 100,000 brackets, a file that is no zip, a run that names code."""
    monkeypatch.chdir(tmp_path)
    handed_in = tmp_path / "class"
    own = ada[1] / "assignment-1-ada@uni"
    shutil.make_archive(str(handed_in / own.name), "zip", ada[1], own.name)
    (handed_in / "assignment-1-deep").mkdir()
    (handed_in / "assignment-1-deep" / "answers.json").write_text("[" * 100_000)
    (handed_in / "assignment-1-torn.zip").write_bytes(b"PK")
    (tmp_path / "trace.py").write_text(TRACE)
    spec = yaml.safe_load((own / "bsp" / "experiment.yaml").read_text())
    imports = []
    for name, change in CODE.items():
        imports.append(Path(shutil.copytree(own, handed_in / f"assignment-1-{name}")))
        (imports[-1] / "bsp" / "experiment.yaml").write_text(yaml.safe_dump(spec | {name: change}))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert command("grade", handed_in) == 0
    grades = Path("grades/grades.csv").read_text().splitlines()
    rows = {row["submission"]: row for row in csv.DictReader(grades)}
    assert {name: float(row["score"]) for name, row in rows.items()} == {
        f"{own.name}.zip": 10,
        **dict.fromkeys(("assignment-1-deep", *(each.name for each in imports), "assignment-1-torn.zip"), 0),
    }
    assert "cannot be unpacked" in rows["assignment-1-torn.zip"]["output"]
    assert json.loads(Path("grades/assignment-1-ada@uni.json").read_text())["score"] == 10
    assert not (tmp_path / "imported").exists()
    capsys.readouterr()
    shutil.rmtree(handed_in / "assignment-1-deep")
    for each in imports:
        shutil.rmtree(each)
    assert command("leaderboard", handed_in) == 0
    out, err = capsys.readouterr()
    assert [row[:2] for row in csv.reader(out.splitlines())][1:] == [["1", "ada@uni"]]
    assert "assignment-1-torn.zip: left out" in err


@pytest.mark.slow
def test_a_submission_that_does_not_end_has_no_points(ada, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("grade", ada[1] / "assignment-1-ada@uni", "--limit-s", "1") == 0
    found = json.loads(Path("results.json").read_text())
    assert (found["score"], found["output"]) == (0, "grading took longer than 1 s")


def test_predictions_made_after_the_runs_have_no_points(ada, tmp_path):
    own = Path(shutil.copytree(ada[1] / "assignment-1-ada@uni", tmp_path / "assignment-1-ada@uni"))
    mine = submission_of(own)
    assert check(mine) == "complete"
    (own / "predictions.json").unlink()
    mine.predict(waiting=0.61, times_as_fast=2)
    found = grade(mine)
    assert found["score"] == 0
    assert "was made after predictions that differ" in found["tests"][0]["output"]
    assert check(mine) == found["tests"][0]["output"]


def test_students_have_no_key(tmp_path, monkeypatch, capsys):
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path)))
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        pages = [packed.read(name).decode() for name in names if name.endswith(".md")]
    assert {"psbench_course/quiz.md", "psbench/tutorials/01_first_run.ipynb"} <= set(names)
    assert [name for name in names if "/key/" in name or name.endswith(("/checks.py", "quiz.yaml"))] == []
    assert [page for page in pages if "SOLUTION" in page] == []
    right = yaml.safe_load((ROOT / "notebooks/assignments/key/quiz.yaml").read_text())
    places = [options.index(right[number]) for number, (_, options) in enumerate(quiz.QUESTIONS, 1)]
    assert len(set(places)) == 4  # no place in the list gives the answer away
    monkeypatch.setenv(key.VARIABLE, str(tmp_path))
    key.checks.cache_clear()
    assert command("grade", tmp_path) == 2
    assert "is not the lecturer's key" in capsys.readouterr().err


SOLVED = "```python\nx = 1  # SOLUTION\n```\n"


@pytest.mark.parametrize(
    ("name", "source", "says"),
    [
        ("build", None, "source.md: no such file"),
        ("slides", None, "source.md: no such file"),
        ("build", SOLVED, "has no line such as `mine = submission("),
        ("build", f"Submission(assignment=9)\n{SOLVED}", "there is no assignment 9; give one of 0"),
        ("build", "Submission(assignment=1)\n", "has no block that begins with"),
    ],
)
def test_a_source_that_cannot_be_is_a_line_and_leaves_no_file(name, source, says, tmp_path, capsys):
    path = tmp_path / "source.md"
    if source is not None:
        path.write_text(source)
    assert command(name, path, tmp_path / "out") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert says in err.lower()
    assert not (tmp_path / "out").exists()


def test_slides_begin_at_headings_and_show_figures_without_code(tmp_path, capsys):
    source = tmp_path / "slides.md"
    source.write_text(
        "# One\n\ntext\n\n## Two\n\n```python\nimport altair\naltair.__name__\n```\n\n## Three\n"
    )
    assert command("slides", source, tmp_path / "slides.html") == 0
    page = (tmp_path / "slides.html").read_text()
    assert page.count("<section>") == 3
    assert "<pre>altair</pre>" in page
    assert "import altair" not in page
    loaded = r"<(?:script|img|iframe)[^>]* src=[\"'](?!data:)|<link|@import|url\([\"']?(?!data:)"
    shown = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert re.findall(loaded, shown) == []  # a class may have no internet
    assert shown.count("<script") == 0
    source.write_text("```python\nx = 1\n```\n")
    assert command("slides", source, tmp_path / "slides.html") == 2
    assert "must end with the figure to show" in capsys.readouterr().err
