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


def _carry_out(given: argparse.Namespace) -> None:
    if given.command == "build":
        source = given.source.read_text(encoding="utf-8")
        for name, edition in (("student", student_edition), ("solution", solution_edition)):
            path = given.out / name / f"{given.source.stem}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(edition(source), indent=1), encoding="utf-8")
        write_checks(assignment_of(source), given.source.stem, given.out)
    elif given.command == "grade":
        given.out.write_text(json.dumps(grade(submission_of(given.folder)), indent=1), encoding="utf-8")
    elif given.command == "slides":
        write_slides(given.source, given.out, given.reveal)
    else:
        print(leaderboard([submission_of(folder) for folder in given.folders]), end="")


if __name__ == "__main__":
    main()
