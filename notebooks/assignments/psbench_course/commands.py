"""`psbench course`: editions of assignments, grades, a leaderboard, slides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Assignments: build editions, grade submissions, rank them, make slides.", no_args_is_help=True
)

Source = Annotated[Path, typer.Argument(metavar="SOURCE.md", help="An assignment in Markdown.")]
Paths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH...", help="Submissions, zip files of them, or folders with many of them."),
]
Seconds = Annotated[float, typer.Option(min=1, metavar="S", help="Seconds that one submission may take.")]


@app.command()
def build(source: Source, out: Annotated[Path, typer.Argument(metavar="OUT")]) -> None:
    """Write student/NAME.ipynb, solution/NAME.ipynb and the checks of an assignment into a folder."""
    from psbench.system.files import write_text
    from psbench_course.checkfiles import write_checks
    from psbench_course.editions import assignment_of, solution_edition, student_edition

    text = source.read_text(encoding="utf-8")
    assignment = assignment_of(text)
    # all is made before anything is written: a wrong source leaves no half of an assignment
    editions = {"student": student_edition(text), "solution": solution_edition(text)}
    for name, edition in editions.items():
        write_text(out / name / f"{source.stem}.ipynb", json.dumps(edition, indent=1))
    write_checks(assignment, source.stem, out)


@app.command()
def grade(
    paths: Paths,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="results.json for one submission, or the folder `grades` for several."
        ),
    ] = None,
    limit_s: Seconds = 300.0,
) -> None:
    """Grade one submission (results.json for Gradescope) or a class (a file for each, and grades.csv).

    Each submission is graded in its own process. A submission that is damaged or does not end gets no points;
    the others are graded as usual.

    \b
    Examples:
      psbench course grade assignment-1-ada
      psbench course grade handed-in --out grades
    """  # noqa: D301
    from psbench.errors import DataError
    from psbench.progress_events import tell
    from psbench.results.csv_file import csv_of_rows
    from psbench.system.files import check_new_file, write_text
    from psbench_course.collected import graded, submissions_in
    from psbench_course.key import checks

    checks()
    found = [each for path in paths for each in submissions_in(path)]
    if len(found) == 1:
        out = Path("results.json") if out is None else out
        check_new_file(out)
        write_text(out, json.dumps(graded(found[0], limit_s)["results"], indent=1))
        return
    out = Path("grades") if out is None else out
    table: list[list[Any]] = [["submission", "student", "score", "output"]]
    for number, path in enumerate(found, 1):
        tell(f"{path.name}, {number} of {len(found)}", number / len(found))
        try:
            done = graded(path, limit_s)
        except DataError as error:
            table.append([path.name, "", 0, str(error)])
            continue
        name = path.name.removesuffix(".zip")
        write_text(out / f"{name}.json", json.dumps(done["results"], indent=1))
        table.append([path.name, done["student"], done["results"]["score"], done["results"]["output"]])
    write_text(out / "grades.csv", csv_of_rows(table))


@app.command()
def leaderboard(paths: Paths, limit_s: Seconds = 300.0) -> None:
    """Print a CSV of the submissions with full points, with the time of each run relative to BSP."""
    from psbench.cli.app import put, say
    from psbench.errors import DataError
    from psbench_course.collected import graded, submissions_in
    from psbench_course.grading import ranking

    shares, assignments = [], set[int]()
    for found in [each for path in paths for each in submissions_in(path)]:
        try:
            done = graded(found, limit_s, has_share=True)
        except DataError as error:
            say(f"{found.name}: left out ({error})")
            continue
        assignments.add(done["assignment"])
        if "share" in done:
            shares.append((done["student"], done["share"]))
    if len(assignments) > 1:
        numbers = sorted(assignments)
        raise DataError(f"leaderboard: assignments {numbers} cannot be compared; give submissions of one")
    if assignments == {0}:
        raise DataError("leaderboard: the quiz, assignment 0, has no run to rank; give another assignment's")
    put(ranking(shares), end="")


@app.command()
def slides(
    source: Annotated[Path, typer.Argument(metavar="SOURCE.md", help="Slides in Markdown.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.html")],
) -> None:
    """Run the code of a Markdown source, and write slides as one file for any browser."""
    from psbench_course.slides import write_slides

    write_slides(source, out)
