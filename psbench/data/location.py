"""Where data files lie."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

#: the environment variable that names the folder of data sets
VARIABLE = "PSBENCH_DATA"


def data_folder(root: str | None) -> Path:
    """Return the folder asked for, else the one PSBENCH_DATA names, else a cache of the user's.

    >>> data_folder("somewhere").name
    'somewhere'
    """
    chosen = root or os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "psbench"


def how_to_get(folder: Path, files: str) -> str:
    """Return the remedy that a message about missing files ends with."""
    return (
        f"set download: true, or put {files} under the folder that the parameter root or the environment "
        f"variable {VARIABLE} names (now {folder})"
    )


def nearest_file(file: Path) -> str:
    """Return what a message about a missing file ends with: the file that may be meant, if there is one."""
    if not file.parent.is_dir():
        return f", nor a folder {file.parent}"
    there = [each.name for each in file.parent.iterdir() if each.is_file()]
    near = difflib.get_close_matches(file.name, there, n=1, cutoff=0.5)
    return f"; did you mean {file.parent / near[0]}?" if near else ""
