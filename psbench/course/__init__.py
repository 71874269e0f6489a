"""Assignments: a student's and a solution's edition from one source, submissions, grades, a leaderboard."""

from psbench.course.grading import check
from psbench.course.submission import Submission

__all__ = ["Submission", "check"]
