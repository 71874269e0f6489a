"""Assignments: a student's and a solution's edition from one source, submissions, grades, a leaderboard."""

from typing import TYPE_CHECKING

from psbench.system.lazy import lazy_names

if TYPE_CHECKING:
    from psbench_course.feedback import check
    from psbench_course.submission import Submission

__all__ = ["Submission", "check"]
__getattr__ = lazy_names(__name__, {"Submission": "submission", "check": "feedback"})
