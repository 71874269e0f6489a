"""Checks as files: for otter-grader, in its format of doctests, and for plain pytest."""

from __future__ import annotations

from pathlib import Path

from psbench_course.key import checks

_PYTEST = '''"""Checks of assignment {number}; results.json is written by

    PSBENCH_SUBMISSION=assignment-{number}-STUDENT pytest {name}
"""

import json
import os
from pathlib import Path

import pytest

from psbench_course.collected import submission_of
from psbench_course.grading import Grade
from psbench_course.key import checks

NAMES = [name for name, _, _ in checks()[{number}]]


@pytest.fixture(scope="module")
def grade():
    found = Grade(submission_of(Path(os.environ["PSBENCH_SUBMISSION"])))
    yield found
    Path("results.json").write_text(json.dumps(found.results(), indent=1), encoding="utf-8")


@pytest.mark.parametrize("check", range(len(NAMES)), ids=NAMES)
def test_the_submission(grade, check):
    assert not (wrong := grade.check(check)), wrong
'''


def otter_tests(assignment: int) -> dict[str, str]:
    """Return the files of an assignment for otter-grader, by name: each a check of the notebook's `mine`."""
    files = {}
    for number, (_, points, _) in enumerate(checks()[assignment], 1):
        code = f">>> from psbench_course import check\n>>> check(mine, {number})\n'right'"
        case = {"code": code, "hidden": False, "locked": False}
        suite = {"cases": [case], "scored": True, "setup": "", "teardown": "", "type": "doctest"}
        test = {"name": f"q{number}", "points": points, "suites": [suite]}
        files[f"q{number}.py"] = f"OK_FORMAT = True\n\ntest = {test!r}\n"
    return files


def write_checks(assignment: int, stem: str, folder: Path) -> None:
    """Write `tests/NAME/q1.py` and so on for otter-grader, and `test_NAME.py` for pytest.

    Parameters
    ----------
    assignment : int
    stem : str
        The NAME.
    folder : path
    """
    place = folder / "tests" / stem
    place.mkdir(parents=True, exist_ok=True)
    for name, text in otter_tests(assignment).items():
        (place / name).write_text(text, encoding="utf-8")
    name = f"test_{stem}.py"
    (folder / name).write_text(_PYTEST.format(number=assignment, name=name), encoding="utf-8")
