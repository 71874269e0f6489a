"""Shrinks a failing schedule, and writes it as a test.

Source
------
Zeller and Hildebrandt (2002), "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2): ddmin.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

from psbench_fuzz.schedule import Schedule


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool], most_tries: int = 300) -> Schedule:
    """Return a failing schedule in which every single choice is needed.

    One that takes very long to fail is only made shorter, in `most_tries`.

    Parameters
    ----------
    schedule : Schedule
        One that fails.
    fails : callable
        Whether a schedule fails in the same way.
    """
    choices, parts, tries = list(schedule.choices), 2, 0
    while len(choices) >= 2 and tries < most_tries:
        size = -(-len(choices) // parts)
        for start in range(0, len(choices), size):
            rest = choices[:start] + choices[start + size :]
            tries += 1
            if fails(schedule.but(choices=tuple(rest))):
                choices, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(choices))
    if fails(schedule.but(choices=())):
        choices = []
    return schedule.but(choices=tuple(choices))


def form(error: BaseException) -> str:
    """Return the signature of a failure: its class, and its text without numbers.

    >>> form(ValueError("worker 3 at 0.5 s")) == form(ValueError("worker 12 at 7 s"))
    True
    """
    return f"{type(error).__name__}: {re.sub(r'[0-9.e+-]+', '#', str(error))[:80]}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:90]


def as_test(schedule: Schedule, error: BaseException) -> str:
    """Return a test that plays the schedule, for the suite; it fails until the bug is corrected."""
    choices = textwrap.wrap(schedule.text, 90) or [""]
    lines = "\n".join(f'        "{line} "' for line in choices)
    name = re.sub(r"\W+", "_", f"{schedule.strategy.get('name', 'strategy')}_{type(error).__name__}".lower())
    plain = Schedule({}, 1)
    own = ("batches", "momentum", "wrong", "ties")
    changed = {
        name: getattr(schedule, name) for name in own if getattr(schedule, name) != getattr(plain, name)
    }
    work = "".join(f", {name}={value!r}" for name, value in changed.items())
    return (
        "from psbench_fuzz import Schedule, play\n\n\n"
        f"def test_{name}_found_by_fuzzing():\n"
        f'    """{_first_line(error)}"""\n'
        f"    strategy = {dict(schedule.strategy)!r}\n"
        f"    choices = Schedule.parse(\n{lines}\n    )\n"
        f"    size = {schedule.workers}, {schedule.starters}\n"
        f"    play(Schedule(strategy, *size, {schedule.seed}, choices{work}))\n"
    )
