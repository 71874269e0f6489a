"""Editions of assignments, grades, a leaderboard, slides: `python -m psbench.course --help`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from psbench.course.checkfiles import write_checks
from psbench.course.editions import assignment_of, solution_edition, student_edition
from psbench.course.grading import grade, leaderboard, submission_of
from psbench.course.slides import REVEAL, write_slides
from psbench.errors import PsbenchError
from psbench.system.files import check_new_file, write_text


def main(arguments: list[str] | None = None) -> None:
    """Carry out a command."""
    parser = argparse.ArgumentParser(prog="python -m psbench.course", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="write student/NAME.ipynb, solution/NAME.ipynb, and checks")
    build.add_argument("source", type=Path, help="an assignment in Markdown")
    build.add_argument("out", type=Path)
    graded = commands.add_parser("grade", help="write a submission's results.json, for Gradescope")
    graded.add_argument("folder", type=Path)
    graded.add_argument("--out", type=Path, default=Path("results.json"))
    ranked = commands.add_parser("leaderboard", help="print a CSV of the submissions that have all points")
    ranked.add_argument("folders", type=Path, nargs="+")
    shown = commands.add_parser("slides", help="write slides (reveal.js) from a source in Markdown")
    shown.add_argument("source", type=Path)
    shown.add_argument("out", type=Path)
    shown.add_argument("--reveal", default=REVEAL, help="where reveal.js lies: an address, or a folder")
    given = parser.parse_args(arguments)
    try:
        _carry_out(given)
    except PsbenchError as error:
        parser.exit(1, f"{error}\n")
    except OSError as error:  # a source that is not there
        parser.exit(1, f"{error.filename}: {(error.strerror or 'cannot be read').lower()}\n")


def _carry_out(given: argparse.Namespace) -> None:
    if given.command == "build":
        source = given.source.read_text(encoding="utf-8")
        assignment = assignment_of(source)
        # all is made before anything is written: what cannot be leaves no half of an assignment
        editions = {"student": student_edition(source), "solution": solution_edition(source)}
        for name, edition in editions.items():
            write_text(given.out / name / f"{given.source.stem}.ipynb", json.dumps(edition, indent=1))
        write_checks(assignment, given.source.stem, given.out)
    elif given.command == "grade":
        submission = submission_of(given.folder)
        check_new_file(given.out)
        write_text(given.out, json.dumps(grade(submission), indent=1))
    elif given.command == "slides":
        write_slides(given.source, given.out, given.reveal)
    else:
        print(leaderboard([submission_of(folder) for folder in given.folders]), end="")


if __name__ == "__main__":
    main()
