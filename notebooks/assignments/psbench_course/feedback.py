"""Feedback for students: whether a submission is complete and their own, not whether it is correct."""

from __future__ import annotations

from psbench.errors import DataError, PsbenchError
from psbench_course.key import checks
from psbench_course.quiz import NUMBERS
from psbench_course.submission import Submission
from psbench_course.submission_check import Handed

#: by assignment, the runs and answers that it asks for
_RUNS = {0: (), 1: ("bsp", "asp"), 2: ("ssp",), 3: ("switched",), 4: ("tried",)}
_ANSWERS = {
    0: tuple(f"q{number}" for number in NUMBERS),
    1: ("slowest", "waiting", "times_as_fast"),
    2: ("bound", "times_as_fast"),
    3: ("epochs", "staleness", "accuracy"),
    4: ("strategy",),
}


def check(submission: Submission, number: int | None = None) -> str:
    """Return "complete", or the first missing item of a submission; with the lecturer's key, one result.

    Parameters
    ----------
    submission : Submission
    number : int or None
        Of a check, 1 for the first, which only the lecturer's key can carry out: "right", or what is wrong.

    Raises
    ------
    DataError
        If the assignment has no such check, or there is no key.
    """
    if number is None:
        return _missing(submission) or "complete"
    from psbench_course.grading import Grade

    count = len(checks()[submission.assignment])
    if not 1 <= number <= count:
        raise DataError(f"check: assignment {submission.assignment} has checks 1 to {count}, not {number}")
    return Grade(submission).check(number - 1) or "right"


def _missing(submission: Submission) -> str:
    try:
        if not submission.read("predictions"):
            return "enter your predictions first: mine.predict(...)"
        for name in _RUNS[submission.assignment]:
            if not (submission.folder / name / "run.json").is_file():
                return f"there is no run {name!r}"
        if wrong := Handed(submission).not_own:
            return wrong
        answers = submission.read("answers")
    except PsbenchError as error:
        return str(error)
    lacking = [name for name in _ANSWERS[submission.assignment] if name not in answers]
    return f"there is no answer {lacking[0]!r}" if lacking else ""
