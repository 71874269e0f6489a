"""The lecturer's key: the right answers of the quiz, and the checks of each assignment.

No wheel holds it. It is the folder `notebooks/assignments/key` of a clone, or a copy of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TypeAlias

import yaml

from psbench.errors import DataError
from psbench_course.quiz import options_of
from psbench_course.submission_check import Handed

#: names the folder where a clone has it elsewhere, or there is no clone
VARIABLE = "PSBENCH_COURSE_KEY"
#: returns what is wrong, in words; empty if nothing is
Check: TypeAlias = Callable[[Handed], str]
#: by assignment, each check with its name and its points
Checks: TypeAlias = Mapping[int, Sequence[tuple[str, float, Check]]]


def folder_of_key() -> Path:
    """Return the folder of the key.

    Raises
    ------
    DataError
        If there is none: students have no key.
    """
    named = os.environ.get(VARIABLE)
    found = Path(named) if named else Path(__file__).resolve().parents[1] / "key"
    if not (found / "checks.py").is_file():
        raise DataError(
            f"{found}: is not the lecturer's key, which only a clone has (notebooks/assignments/key); "
            f"set {VARIABLE} to a folder with a copy of it"
        )
    return found


@cache
def checks() -> Checks:
    """Return the checks of each assignment.

    Raises
    ------
    DataError
        See `folder_of_key`.
    """
    path = folder_of_key() / "checks.py"
    spec = spec_from_file_location("psbench_course_checks", path)
    if spec is None or spec.loader is None:
        raise DataError(f"{path}: cannot be loaded")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: Checks = module.CHECKS
    return found


@cache
def _right() -> dict[int, str]:
    found: dict[int, str] = yaml.safe_load((folder_of_key() / "quiz.yaml").read_text(encoding="utf-8"))
    return found


def right_letter(student: str, number: int) -> str:
    """Return the letter of the right answer to a question of the quiz, from 1 on, in the student's order."""
    options = options_of(student, number)
    return next(letter for letter, option in options.items() if option == _right()[number])


def points(student: str, answers: Mapping[str, object], numbers: Sequence[int]) -> int:
    """Return the number of correct answers among q1 and so on."""
    return sum(answers.get(f"q{number}") == right_letter(student, number) for number in numbers)
