"""A submission that is graded: its runs and answers, compared with its student's own experiment.

What an event log of these assignments says about time and order does not depend on gradients, so a run is
simulated once more without any (`timing_only`), and must have the same times. That holds for every version of
torch and every system. Digests of such simulations were the same under torch 2.13 and 2.15, NumPy 2.4 and
2.5, Python 3.11 and 3.13, and with and without a CPU's wide instructions. Digests of whole logs have losses
in them: they were the same for all these versions on one machine, and not without its wide instructions,
where losses differ in the seventh digit. So no digest is asked for: a student's machine may be another one.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.core.log import Kind
from psbench.errors import DataError, ParameterError, in_short
from psbench.specfile import read_yaml
from psbench_course.submission import Submission, time_to_target

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
        from psbench.results.run import Run
        from psbench.runs.replaying import replay

        folder = self.submission.folder / name
        wanted = (experiment or self.submission.experiment).but(**changes)
        if not _is_like(folder, wanted, free=()) or (found := Run.load(folder)).experiment != wanted:
            raise DataError(f"run {name!r} does not belong to your experiment")
        replay(found)
        if wanted.stop.target_accuracy:  # when it ends is for its gradients to say
            return found
        again = self.timed(**changes)
        times, expected = (run.log.of_kind(Kind.APPLY)["time_s"] for run in (found, again))
        if len(times) != len(expected) or not np.allclose(times, expected, rtol=1e-9):
            raise DataError(f"the times of run {name!r} differ from those of your experiment")
        return found

    @cached_property
    def not_own(self) -> str:
        """The sign that the work is not the student's own: a run on another cluster, later predictions."""
        if self.submission.assignment == 0:
            return ""
        own = self.submission.practice if self.submission.assignment == 4 else self.submission.experiment
        folders = [path.parent for path in sorted(self.submission.folder.glob("*/run.json"))]
        if not folders:
            return "there is no run"
        for folder in folders:
            if not _is_like(folder, own, free=("strategy", "stop")):
                return f"run {folder.name!r} does not belong to your experiment"
            if _recorded(folder) != self.submission.predictions_digest():
                return f"run {folder.name!r} was made after predictions that differ from those handed in"
        return ""

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
        """Return the error in a numeric answer; empty if it is close enough."""
        value = self.answer(name)
        margin = _NEAR * abs(expected)
        # in this order NaN is not near, and no whole number is too large for a float
        if isinstance(value, (int, float)) and expected - margin <= value <= expected + margin:
            return ""
        return f"{name} = {in_short(value)} differs from the event log"


def _is_like(folder: Path, wanted: Experiment, free: tuple[str, ...]) -> bool:
    """Return whether a run's specification is the wanted one except for the fields in `free`.

    It is compared before any object is made of it: a specification can name code to import.
    """
    found, expected = read_yaml(folder / "experiment.yaml"), wanted.spec()
    names = {*found, *expected} - {*free, "name", "timing_only"}
    return all(found.get(name) == expected.get(name) for name in names)


def _recorded(folder: Path) -> Any:
    """Return the digest of the predictions that a run was made after."""
    path = folder / "run.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["meta"]["predictions"]
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise DataError(f"{path}: does not say which predictions were made before it ({error})") from None


def design_share(handed: Handed) -> float:
    """Return the mean time to the target of a design over BSP's, on clusters that the student has not seen.

    Raises
    ------
    ParameterError
        If it does not get to the target on one of them.
    """
    if handed.share is None:
        strategy = handed.answer("strategy")
        shares = []
        for number, experiment in enumerate(handed.submission.unseen(handed.secret)):
            times = [time_to_target(experiment.but(strategy=each)) for each in (strategy, "bsp")]
            if times[0] is None:
                raise ParameterError(f"it misses the target on unseen cluster {number + 1}")
            shares.append(times[0] / (times[1] or times[0]))
        handed.share = sum(shares) / len(shares)
    return handed.share
