"""Location of data files."""

from __future__ import annotations

import os
from pathlib import Path

#: the environment variable that names the folder of data sets
VARIABLE = "PSBENCH_DATA"


def data_folder(root: str | None) -> Path:
    """Return the given folder, else that of PSBENCH_DATA, else a cache in the user's home.

    >>> data_folder("somewhere").name
    'somewhere'
    """
    chosen = root or os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "psbench"


def how_to_get(folder: Path, files: str) -> str:
    """Return the remedy that a message about missing files ends with."""
    return (
        f"set download: true, or put {files} into the folder given by the parameter root or the "
        f"environment variable {VARIABLE} (now {folder})"
    )
