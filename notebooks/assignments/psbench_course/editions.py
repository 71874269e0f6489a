"""Two notebooks from one source in Markdown: the student's, without solutions, and the solution's."""

from __future__ import annotations

import re
from typing import Any

from psbench.errors import DataError
from psbench_course.collected import ASSIGNMENTS

_FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: a value that a student has to find
_VALUE = re.compile(r"^(\s*\w+\s*=\s*)(.*?)(,?)\s*# SOLUTION$", re.MULTILINE)
_BLOCK = re.compile(r"^( *)# BEGIN SOLUTION\n.*?# END SOLUTION\n", re.MULTILINE | re.DOTALL)
_HIDDEN = re.compile(r"^<!-- SOLUTION -->\n.*?^<!-- END -->\n", re.MULTILINE | re.DOTALL)
_MARKS = re.compile(r"^ *# (?:BEGIN|END) SOLUTION\n|^<!-- (?:SOLUTION|END) -->\n| *# SOLUTION$", re.MULTILINE)


def student_edition(source: str) -> dict[str, Any]:
    r"""Return the notebook in which solutions are left out.

    >>> cells = student_edition("text\n```python\nx = 3  # SOLUTION\n```\n")["cells"]
    >>> [cell["source"] for cell in cells]
    ['text', 'x = ...']
    """
    text = _HIDDEN.sub("", _BLOCK.sub(r"\1...  # your code\n", source))
    return notebook_of(_VALUE.sub(r"\1...\3", text))


def solution_edition(source: str) -> dict[str, Any]:
    """Return the notebook with solutions, without the marks around them."""
    return notebook_of(_MARKS.sub("", source))


def assignment_of(source: str) -> int:
    """Return the number of the assignment that a source is for.

    Raises
    ------
    DataError
        If it makes no submission, or one of an assignment that has no checks.
    """
    found = re.search(r"Submission\(assignment=(\d+)", source)
    if found is None:
        raise DataError("assignment: has no line such as `mine = Submission(assignment=1, student=...)`")
    number = int(found.group(1))
    if number not in ASSIGNMENTS:
        known = ", ".join(map(str, ASSIGNMENTS))
        raise DataError(f"assignment: there is no assignment {number}; give one of {known}")
    return number


def notebook_of(text: str) -> dict[str, Any]:
    """Return a notebook: fenced blocks are cells of code, all else is text.

    Raises
    ------
    DataError
        If a mark of a solution is left, or there is no code.
    """
    if "SOLUTION" in text:
        line = text[: text.index("SOLUTION")].count("\n") + 1
        raise DataError(f"assignment: a solution mark near line {line} has no end or marks no assignment")
    cells: list[dict[str, Any]] = []
    for number, part in enumerate(_FENCE.split(text)):
        if not part.strip():
            continue
        cell: dict[str, Any] = {"id": f"cell-{len(cells)}", "metadata": {}, "source": part.strip("\n")}
        code: dict[str, Any] = {"cell_type": "code", "execution_count": None, "outputs": []}
        cells.append({**cell, **(code if number % 2 else {"cell_type": "markdown"})})
    if not any(cell["cell_type"] == "code" for cell in cells):
        raise DataError("assignment: has no block that begins with ```python")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
