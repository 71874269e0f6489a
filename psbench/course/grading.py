"""Grades of submissions, as Gradescope reads them, from event logs and within tolerances.

What an event log of these assignments says about time and order does not depend on gradients, so every run is
simulated once more without any (`timing_only`), and must have the same times. That holds for every version of
torch and every system; digests of whole logs have losses in them, and need not be equal there.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from psbench.core.log import Kind
from psbench.course.submission import Submission
from psbench.errors import DataError, PsbenchError

if TYPE_CHECKING:
    from psbench.results.run import Run

#: returns what is wrong, in words; empty if nothing is
Check: TypeAlias = Callable[["Handed"], str]
#: relative error of an answer that is right
_NEAR = 0.02


@dataclass
class Handed:
    """A submission that is graded; runs are read when a check asks for them."""

    submission: Submission

    def run(self, name: str, **changes: Any) -> Run:
        """Return a run, which must be of the student's experiment with these changes.

        Raises
        ------
        DataError
            If it is missing, another's, or not what the specification gives.
        """
        from psbench.backends.replay import replay
        from psbench.results.run import Run

        found = Run.load(self.submission.folder / name)
        if found.experiment != self.submission.experiment.but(**changes):
            raise DataError(f"run {name!r} is not of your experiment")
        replay(found)
        again = self.timed(**changes)
        times, expected = (run.log.of_kind(Kind.APPLY)["time_s"] for run in (found, again))
        if len(times) != len(expected) or not np.allclose(times, expected, rtol=1e-9):
            raise DataError(f"run {name!r} has other times than your experiment has")
        return found

    def timed(self, **changes: Any) -> Run:
        """Simulate the student's experiment without gradients."""
        from psbench.runs.execution import run

        return run(self.submission.experiment.but(timing_only=True, **changes))

    def answer(self, name: str) -> Any:
        """Return an answer.

        Raises
        ------
        DataError
            If there is none.
        """
        answers = self.submission.read("answers")
        if name not in answers:
            raise DataError(f"no answer {name!r}")
        return answers[name]

    def near(self, name: str, expected: float) -> str:
        """Return what is wrong with an answer that is a number."""
        value = self.answer(name)
        if not isinstance(value, (int, float)) or abs(value - expected) > _NEAR * abs(expected):
            return f"{name} = {value!r} is not what the event log says"
        return ""


# -------------------------------------------------------------------- 1: who waits for whom


def _predicted(handed: Handed) -> str:
    return "" if handed.submission.read("predictions") else "nothing was predicted"


def _both_runs(handed: Handed) -> str:
    handed.run("bsp")
    handed.run("asp", strategy="asp")
    return ""


def _slowest(handed: Handed) -> str:
    found = handed.answer("slowest")
    return "" if found == handed.submission.own["slow"] else f"slowest = {found!r} is not waited for"


def _waiting(handed: Handed) -> str:
    shares = handed.run("bsp").summary()["idle_fraction"]
    others = [share for worker, share in enumerate(shares) if worker != handed.submission.own["slow"]]
    return handed.near("waiting", sum(others) / len(others))


def _times_as_fast(handed: Handed) -> str:
    before, after = handed.run("bsp"), handed.run("asp", strategy="asp")
    return handed.near("times_as_fast", before.summary()["time_s"] / after.summary()["time_s"])


# -------------------------------------------------------------------- 2: the staleness budget


def _bounded(bound: Any) -> dict[str, Any]:
    return {"strategy": {"name": "ssp", "staleness_bound": bound}}


def _within(handed: Handed) -> str:
    stalest = handed.run("ssp", **_bounded(handed.answer("bound"))).summary()["staleness"]["max"]
    budget = handed.submission.own["budget"]
    return "" if stalest <= budget else f"a push was {stalest} versions stale, and the budget is {budget}"


def _largest(handed: Handed) -> str:
    if wrong := _within(handed):
        return wrong
    further = handed.timed(**_bounded(handed.answer("bound") + 1)).summary()["staleness"]["max"]
    return "" if further > handed.submission.own["budget"] else "a larger bound keeps the budget too"


def _gain(handed: Handed) -> str:
    before, after = handed.timed(), handed.run("ssp", **_bounded(handed.answer("bound")))
    return handed.near("times_as_fast", before.summary()["time_s"] / after.summary()["time_s"])


#: by assignment, each check with what it is called and its points
CHECKS: Mapping[int, Sequence[tuple[str, float, Check]]] = {
    1: (
        ("a prediction was made first", 2, _predicted),
        ("both runs are of your experiment", 2, _both_runs),
        ("the slowest worker", 2, _slowest),
        ("the share of time that the others wait", 2, _waiting),
        ("how many times as fast ASP is", 2, _times_as_fast),
    ),
    2: (
        ("a prediction was made first", 2, _predicted),
        ("the run keeps the budget", 3, _within),
        ("and no larger bound does", 3, _largest),
        ("how many times as fast as BSP it is", 2, _gain),
    ),
}


def grade(submission: Submission) -> dict[str, Any]:
    """Return the grade of a submission, as Gradescope's `results.json` has it.

    What a check raises is its own failure, and no other's.
    """
    handed = Handed(submission)
    tests = []
    for name, points, check in CHECKS[submission.assignment]:
        try:
            wrong = check(handed)
        except (PsbenchError, TypeError, ValueError) as error:
            wrong = str(error)
        score = 0.0 if wrong else points
        tests.append({"name": name, "score": score, "max_score": points, "output": wrong})
    return {
        "score": sum(test["score"] for test in tests),
        "tests": tests,
        "output": f"assignment {submission.assignment} of {submission.student}",
    }


def leaderboard(submissions: Sequence[Submission]) -> str:
    """Return a CSV of all who have every point: rank, student, and the time of their run over BSP's."""
    rows = []
    for each in submissions:
        found = grade(each)
        if all(test["score"] == test["max_score"] for test in found["tests"]):
            changes = (
                _bounded(each.read("answers").get("bound")) if each.assignment == 2 else {"strategy": "asp"}
            )
            handed = Handed(each)
            share = handed.timed(**changes).summary()["time_s"] / handed.timed().summary()["time_s"]
            rows.append((share, each.student))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "student", "time over that of BSP"])
    for rank, (share, student) in enumerate(sorted(rows), 1):
        writer.writerow([rank, student, f"{share:.4f}"])
    return text.getvalue()


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
