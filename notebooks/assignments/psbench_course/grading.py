"""Grades as Gradescope reads them, and a leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psbench.errors import DataError, PsbenchError
from psbench.results.csv_file import csv_of_rows
from psbench_course.key import checks, points
from psbench_course.quiz import NUMBERS
from psbench_course.submission import EPOCHS, Submission, bounded, switching
from psbench_course.submission_check import Handed, design_share


class Grade:
    """The grade of a submission, check by check, in any order.

    Parameters
    ----------
    submission : Submission
    """

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self._handed = Handed(submission)
        self._checks = checks()[submission.assignment]
        self._tests: dict[int, dict[str, Any]] = {}

    def check(self, number: int) -> str:
        """Run a check, 0 for the first, and return a description of the mistake; empty if there is none.

        No check has points if the work is not the student's own. What a check raises is its own failure,
        and no other's.
        """
        name, most, check = self._checks[number]
        try:
            wrong = self._handed.not_own or check(self._handed)
        except (PsbenchError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            wrong = str(error)
        score = 0.0 if wrong else most
        self._tests[number] = {"name": name, "score": score, "max_score": most, "output": wrong}
        return wrong

    def results(self) -> dict[str, Any]:
        """Return the content of Gradescope's `results.json`, for the completed checks."""
        tests = [test for _, test in sorted(self._tests.items())]
        output = f"assignment {self.submission.assignment} of {self.submission.student}"
        if self.submission.assignment == 0:
            output += f": {self._before()} of {len(NUMBERS)} before the course"
        return {"score": sum(test["score"] for test in tests), "tests": tests, "output": output}

    def _before(self) -> int:
        try:
            return points(self.submission.student, self.submission.read("predictions"), NUMBERS)
        except DataError:  # a damaged file has no right answer
            return 0


def grade(submission: Submission) -> dict[str, Any]:
    """Return the whole grade of a submission, as Gradescope's `results.json` has it."""
    found = Grade(submission)
    for number in range(len(checks()[submission.assignment])):
        found.check(number)
    return found.results()


def has_all_points(results: dict[str, Any]) -> bool:
    """Return whether every check of a grade was passed."""
    return all(test["score"] == test["max_score"] for test in results["tests"])


def ranking(shares: Sequence[tuple[str, float]]) -> str:
    """Return a CSV of students and their times over BSP's, the shortest first."""
    ranked = enumerate(sorted(shares, key=lambda row: row[::-1]), 1)
    rows = [[rank, student, f"{share:.4f}"] for rank, (student, share) in ranked]
    return csv_of_rows([["rank", "student", "time relative to BSP"], *rows])


def share_of_bsp(submission: Submission) -> float:
    """Return the time of a student's run over BSP's.

    Of assignment 4 that is the mean time to the target, on the clusters that were not seen.
    """
    handed = Handed(submission)
    answers = submission.read("answers")
    if submission.assignment == 4:
        return design_share(handed)
    if submission.assignment == 3:
        changes, without = switching(answers["epochs"]), switching(EPOCHS) | {"strategy": "bsp"}
    else:
        changes = bounded(answers["bound"]) if submission.assignment == 2 else {"strategy": "asp"}
        without = {}
    times = (handed.timed(**each).summary()["time_s"] for each in (changes, without))
    return float(next(times) / next(times))
