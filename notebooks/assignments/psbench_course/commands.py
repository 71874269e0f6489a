"""`psbench course`: editions of assignments, grades, a leaderboard, slides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Assignments: build editions, grade submissions, rank them, make slides.", no_args_is_help=True
)

Source = Annotated[Path, typer.Argument(metavar="SOURCE.md", help="An assignment in Markdown.")]
Folders = Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Submissions.")]


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
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A submission.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the result goes.")] = Path("results.json"),
) -> None:
    """Grade a submission, and write results.json for Gradescope."""
    from psbench.system.files import check_new_file, write_text
    from psbench_course.grading import grade as grade_submission
    from psbench_course.grading import submission_of

    submission = submission_of(folder)
    check_new_file(out)
    write_text(out, json.dumps(grade_submission(submission), indent=1))


@app.command()
def leaderboard(folders: Folders) -> None:
    """Print a CSV of the submissions that have all points."""
    from psbench_course.grading import leaderboard as ranked
    from psbench_course.grading import submission_of

    print(ranked([submission_of(folder) for folder in folders]), end="")


@app.command()
def slides(
    source: Annotated[Path, typer.Argument(metavar="SOURCE.md", help="Slides in Markdown.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.html")],
    reveal: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where reveal.js lies: an address, or a folder.")
    ] = None,
) -> None:
    """Write reveal.js slides from a source in Markdown, whose code is run."""
    from psbench_course.slides import REVEAL, write_slides

    write_slides(source, out, REVEAL if reveal is None else reveal)
