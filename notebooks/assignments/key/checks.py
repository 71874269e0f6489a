"""The checks of each assignment, on the student's own cluster, with their points."""

from __future__ import annotations

from functools import partial
from typing import Any

from psbench_course.key import Checks, right_letter
from psbench_course.quiz import NUMBERS
from psbench_course.submission import EPOCHS, bounded, switching
from psbench_course.submission_check import Handed, design_share

# -------------------------------------------------------------------- the quiz


def _known(handed: Handed, number: int) -> str:
    right = right_letter(handed.submission.student, number)
    return "" if handed.answer(f"q{number}") == right else "is not right"


# -------------------------------------------------------------------- 1: who waits for whom


def _predicted(handed: Handed) -> str:
    return "" if handed.submission.read("predictions") else "there is no prediction"


def _both_runs(handed: Handed) -> str:
    handed.run("bsp")
    handed.run("asp", strategy="asp")
    return ""


def _slowest(handed: Handed) -> str:
    found = handed.answer("slowest")
    return (
        ""
        if found == handed.submission.own["slow"]
        else f"slowest = {found!r} is not the worker that the others wait for"
    )


def _waiting(handed: Handed) -> str:
    shares = handed.run("bsp").summary()["idle_fraction"]
    others = [share for worker, share in enumerate(shares) if worker != handed.submission.own["slow"]]
    return handed.near("waiting", sum(others) / len(others))


def _times_as_fast(handed: Handed) -> str:
    before, after = handed.run("bsp"), handed.run("asp", strategy="asp")
    return handed.near("times_as_fast", before.summary()["time_s"] / after.summary()["time_s"])


# -------------------------------------------------------------------- 2: the staleness budget


def _within(handed: Handed) -> str:
    stalest = handed.run("ssp", **bounded(handed.answer("bound"))).summary()["staleness"]["max"]
    budget = handed.submission.own["budget"]
    return "" if stalest <= budget else f"a push was {stalest} versions stale, but the budget is {budget}"


def _largest(handed: Handed) -> str:
    if wrong := _within(handed):
        return wrong
    further = handed.timed(**bounded(handed.answer("bound") + 1)).summary()["staleness"]["max"]
    return "" if further > handed.submission.own["budget"] else "a larger bound also keeps the budget"


def _gain(handed: Handed) -> str:
    before, after = handed.timed(), handed.run("ssp", **bounded(handed.answer("bound")))
    return handed.near("times_as_fast", before.summary()["time_s"] / after.summary()["time_s"])


# -------------------------------------------------------------------- 3: when to switch


def _switched(handed: Handed) -> dict[str, Any]:
    return switching(handed.answer("epochs"))


def _share(handed: Handed, epochs: int) -> float:
    """Return the time of a run that switches after that many epochs, relative to All-Reduce alone."""
    times = (handed.timed(**switching(each)).summary()["time_s"] for each in (epochs, EPOCHS))
    return float(next(times) / next(times))


def _in_time(handed: Handed) -> str:
    handed.run("switched", **_switched(handed))
    share, most = _share(handed, handed.answer("epochs")), handed.submission.own["share"]
    return "" if share <= most else f"the run takes {share:.3f} of All-Reduce's time, but the limit is {most}"


def _latest(handed: Handed) -> str:
    if wrong := _in_time(handed):
        return wrong
    further = _share(handed, handed.answer("epochs") + 1)
    return "" if further > handed.submission.own["share"] else "a later switch also keeps the limit"


def _staleness(handed: Handed) -> str:
    run = handed.run("switched", **_switched(handed))
    return handed.near("staleness", run.summary()["staleness"]["mean"])


def _accuracy(handed: Handed) -> str:
    run = handed.run("switched", **_switched(handed))
    return handed.near("accuracy", run.summary()["final"]["val_accuracy"])


# -------------------------------------------------------------------- 4: a strategy for a cluster not seen

#: what a design has to reach, the mean of its time over BSP's on the clusters that are not seen
_BETTER, _GOOD = 0.9, 0.75


def _tried(handed: Handed) -> str:
    practice = handed.submission.practice
    handed.run("tried", practice, strategy=handed.answer("strategy"))
    return ""


def _faster(handed: Handed, than: float) -> str:
    share = design_share(handed)
    return (
        ""
        if share <= than
        else f"it takes {share:.2f} of BSP's time on the unseen clusters, but the limit is {than}"
    )


#: by assignment, of which 0 is the quiz, each check with what it is called and its points
CHECKS: Checks = {
    0: tuple((f"question {number}", 1, partial(_known, number=number)) for number in NUMBERS),
    1: (
        ("a prediction precedes the runs", 2, _predicted),
        ("both runs belong to your experiment", 2, _both_runs),
        ("the slowest worker", 2, _slowest),
        ("the share of time for which the others wait", 2, _waiting),
        ("the speed-up of ASP", 2, _times_as_fast),
    ),
    2: (
        ("a prediction precedes the runs", 2, _predicted),
        ("the run keeps the budget", 3, _within),
        ("no larger bound keeps the budget", 3, _largest),
        ("the speed-up over BSP", 2, _gain),
    ),
    3: (
        ("a prediction precedes the runs", 2, _predicted),
        ("the run keeps the time limit", 2, _in_time),
        ("no later switch keeps the time limit", 2, _latest),
        ("the mean staleness", 2, _staleness),
        ("the accuracy", 2, _accuracy),
    ),
    4: (
        ("a prediction precedes the runs", 2, _predicted),
        ("a run of the design on your own cluster", 2, _tried),
        (
            f"it reaches the target on unseen clusters in {_BETTER:.0%} of BSP's time",
            3,
            partial(_faster, than=_BETTER),
        ),
        (f"it reaches the target in {_GOOD:.0%} of BSP's time", 3, partial(_faster, than=_GOOD)),
    ),
}
