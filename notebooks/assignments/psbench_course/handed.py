"""A submission that is graded: its runs and answers, read and compared with what its student was given.

What an event log of these assignments says about time and order does not depend on gradients, so a run is
simulated once more without any (`timing_only`), and must have the same times. That holds for every version of
torch and every system. Digests of such simulations were the same under torch 2.13 and 2.15, NumPy 2.4 and
2.5, Python 3.11 and 3.13, and with and without a CPU's wide instructions. Digests of whole logs have losses
in them: they were the same for all these versions on one machine, and not without its wide instructions,
where losses differ in the seventh digit. So no digest is asked for: a student's machine may be another one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.core.log import Kind
from psbench.errors import DataError, in_short
from psbench_course.submission import Submission

if TYPE_CHECKING:
    from psbench.experiment import Experiment
    from psbench.results.run import Run

#: relative error of an answer that is right
_NEAR = 0.02


@dataclass
class Handed:
    """A submission that is graded; runs are read when a check asks for them."""

    submission: Submission
    #: the lecturer's word, from which the clusters are drawn that a student has not seen
    secret: str = field(default_factory=lambda: os.environ.get("PSBENCH_COURSE_SECRET", "practice"))
    #: the design's time over BSP's there, once it is known
    share: float | None = None

    def run(self, name: str, experiment: Experiment | None = None, **changes: Any) -> Run:
        """Return a run, which must be of the student's experiment (or that given) with these changes.

        Raises
        ------
        DataError
            If it is missing, another's, or not what the specification gives.
        """
        from psbench.backends.replay import replay
        from psbench.results.run import Run

        found = Run.load(self.submission.folder / name)
        wanted = (experiment or self.submission.experiment).but(**changes)
        if found.experiment != wanted:
            raise DataError(f"run {name!r} is not of your experiment")
        replay(found)
        if wanted.stop.target_accuracy:  # when it ends is for its gradients to say
            return found
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
        margin = _NEAR * abs(expected)
        # in this order NaN is not near, and no whole number is too large for a float
        if isinstance(value, (int, float)) and expected - margin <= value <= expected + margin:
            return ""
        return f"{name} = {in_short(value)} is not what the event log says"
