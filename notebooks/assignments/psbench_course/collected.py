"""Submissions of a class: folders or zip files, each graded in its own process with a time limit."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from psbench.errors import DataError
from psbench_course.submission import Submission

#: seconds that grading a submission may take, unless another limit is given
LIMIT_S = 300.0
#: assignments that there are, 0 for the quiz
ASSIGNMENTS = range(5)
#: of a zip file, unpacked: a submission of these assignments has 3 MB
_MOST_BYTES = 500_000_000
_GRADE = "import sys; from psbench_course.collected import print_grade; print_grade(sys.argv[1], sys.argv[2])"


def submission_of(folder: Path) -> Submission:
    """Return the submission that a folder is, by its name.

    Raises
    ------
    DataError
        If it has another name.
    """
    begin, _, student = folder.name.removeprefix("assignment-").partition("-")
    known = begin.isdecimal() and int(begin) in ASSIGNMENTS
    if not folder.is_dir() or not known or not student:
        numbers = ", ".join(map(str, ASSIGNMENTS))
        raise DataError(
            f"{folder}: is not a submission; give a folder assignment-N-STUDENT (N of {numbers}) "
            "or a zip of it"
        )
    return Submission(int(begin), student, folder.parent)


def submissions_in(path: Path) -> list[Path]:
    """Return a submission, or the submissions in a class's folder: folders and zips `assignment-N-STUDENT`.

    Raises
    ------
    DataError
        If there is none.
    """
    if path.suffix == ".zip" or path.name.startswith("assignment-"):
        return [path]
    found = sorted(each for each in path.glob("assignment-*") if each.is_dir() or each.suffix == ".zip")
    if not found:
        raise DataError(f"{path}: contains no submission (assignment-N-STUDENT, or a zip of it)")
    return found


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield the folder of a submission; a zip file is unpacked for the duration of the block.

    Raises
    ------
    DataError
        If the file is no zip, is too large, or has files beside one folder `assignment-N-STUDENT`.
    """
    if path.suffix != ".zip":
        yield path
        return
    with TemporaryDirectory() as place:
        try:
            with zipfile.ZipFile(path) as packed:
                if sum(each.file_size for each in packed.infolist()) > _MOST_BYTES:
                    raise DataError(f"{path}: unpacks to more than {_MOST_BYTES} bytes")
                # macOS adds a folder of its own
                names = [name for name in packed.namelist() if not name.startswith("__MACOSX/")]
                roots = {PurePosixPath(name).parts[0] for name in names}
                if len(roots) != 1:
                    raise DataError(f"{path}: holds {len(roots)} folders, and not only assignment-N-STUDENT")
                packed.extractall(place, names)  # keeps names below the folder
        except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            raise DataError(f"{path}: cannot be unpacked ({error})") from None
        yield Path(place) / roots.pop()


def graded(path: Path, limit_s: float, has_share: bool = False) -> dict[str, Any]:
    """Grade a submission in its own process, with a time limit.

    Returns
    -------
    dict
        "student", "assignment", "results" as Gradescope reads them and, if asked for and every check was
        passed, "share": the time relative to BSP. What cannot be graded has no points, and says why.
    """
    with unpacked(path) as folder:
        submission = submission_of(folder)
        found: dict[str, Any] = {"student": submission.student, "assignment": submission.assignment}
        command = [sys.executable, "-c", _GRADE, str(folder), str(int(has_share))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return found | {"results": _no_points(f"grading took longer than {limit_s:g} s")}
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return found | {"results": _no_points(f"grading failed ({last})")}
        found.update(json.loads(done.stdout.splitlines()[-1]))
        return found


def print_grade(folder: str, has_share: str) -> None:
    """Print a grade as a line of JSON; the process that grades calls this."""
    from psbench_course.grading import grade, has_all_points, share_of_bsp

    submission = submission_of(Path(folder))
    found: dict[str, Any] = {"results": grade(submission)}
    if int(has_share) and has_all_points(found["results"]):
        found["share"] = share_of_bsp(submission)
    print(json.dumps(found))


def _no_points(why: str) -> dict[str, Any]:
    return {"score": 0.0, "tests": [], "output": why}
