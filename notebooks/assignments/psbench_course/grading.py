"""Feedback for students (`check`), grades as Gradescope reads them, and a leaderboard."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psbench.errors import DataError, PsbenchError
from psbench_course.checks import CHECKS, design_share
from psbench_course.handed import Handed
from psbench_course.quiz import NUMBERS, points
from psbench_course.submission import EPOCHS, Submission, bounded, switching


class Grade:
    """The grade of a submission, check by check, in any order.

    Parameters
    ----------
    submission : Submission
    """

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self._handed = Handed(submission)
        self._checks = CHECKS[submission.assignment]
        self._tests: dict[int, dict[str, Any]] = {}

    def check(self, number: int) -> str:
        """Carry out a check, 0 for the first, and return what is wrong; empty if nothing is.

        What a check raises is its own failure, and no other's.
        """
        name, most, check = self._checks[number]
        try:
            wrong = check(self._handed)
        except (PsbenchError, TypeError, ValueError) as error:
            wrong = str(error)
        score = 0.0 if wrong else most
        self._tests[number] = {"name": name, "score": score, "max_score": most, "output": wrong}
        return wrong

    def results(self) -> dict[str, Any]:
        """Return what Gradescope reads as `results.json`, of the checks that were carried out."""
        tests = [test for _, test in sorted(self._tests.items())]
        output = f"assignment {self.submission.assignment} of {self.submission.student}"
        if self.submission.assignment == 0:
            before = points(self.submission.student, self.submission.read("predictions"))
            output += f": {before} of {len(NUMBERS)} before the course"
        return {"score": sum(test["score"] for test in tests), "tests": tests, "output": output}


def grade(submission: Submission) -> dict[str, Any]:
    """Return the whole grade of a submission, as Gradescope's `results.json` has it."""
    found = Grade(submission)
    for number in range(len(CHECKS[submission.assignment])):
        found.check(number)
    return found.results()


def check(submission: Submission, number: int | None = None) -> str:
    """Return "right", or what is wrong by a check (1 for the first) or by the first one that fails.

    Raises
    ------
    DataError
        If the assignment has no such check.
    """
    found, count = Grade(submission), len(CHECKS[submission.assignment])
    if number is not None and not 1 <= number <= count:
        raise DataError(f"check: assignment {submission.assignment} has checks 1 to {count}, not {number}")
    checks = range(count) if number is None else [number - 1]
    return next((wrong for each in checks if (wrong := found.check(each))), "right")


def leaderboard(submissions: Sequence[Submission]) -> str:
    """Return a CSV of all who have every point: rank, student, and the time of their run over BSP's.

    Of assignment 4 that is the mean time to the target, on the clusters that were not seen.

    Raises
    ------
    DataError
        If they are of several assignments, or of the quiz, which has no run.
    """
    assignments = sorted({each.assignment for each in submissions})
    if len(assignments) > 1:
        raise DataError(f"leaderboard: assignments {assignments} do not compare; give submissions of one")
    if assignments == [0]:
        raise DataError("leaderboard: the quiz, assignment 0, has no run to rank; give another assignment's")
    rows = []
    for each in submissions:
        found = grade(each)
        if all(test["score"] == test["max_score"] for test in found["tests"]):
            rows.append((_share_of_bsp(Handed(each)), each.student))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "student", "time over that of BSP"])
    for rank, (share, student) in enumerate(sorted(rows), 1):
        writer.writerow([rank, student, f"{share:.4f}"])
    return text.getvalue()


def _share_of_bsp(handed: Handed) -> float:
    answers = handed.submission.read("answers")
    if handed.submission.assignment == 4:
        return design_share(handed)
    if handed.submission.assignment == 3:
        changes, without = switching(answers["epochs"]), switching(EPOCHS) | {"strategy": "bsp"}
    else:
        changes = bounded(answers["bound"]) if handed.submission.assignment == 2 else {"strategy": "asp"}
        without = {}
    times = (handed.timed(**each).summary()["time_s"] for each in (changes, without))
    return float(next(times) / next(times))


def submission_of(folder: Path) -> Submission:
    """Return the submission that a folder is, by its name.

    Raises
    ------
    DataError
        If it has another name.
    """
    begin, _, student = folder.name.removeprefix("assignment-").partition("-")
    if not folder.is_dir() or not begin.isdecimal() or int(begin) not in CHECKS or not student:
        known = ", ".join(map(str, CHECKS))
        raise DataError(f"{folder}: is no submission; give a folder assignment-N-STUDENT, N of {known}")
    return Submission(int(begin), student, folder.parent)
