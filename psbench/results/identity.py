"""The identity of a run, which every file that it writes carries.

The identity is random, and drawn when a run begins. It is no part of the specification, the log or any
digest, so that equal runs stay equal in everything that is compared; and it is not derived from
specification and seed, because two runs of one specification are two runs: live ones differ, and simulated
ones may have been made by different versions of a library. A run that is resumed in its folder keeps its
identity; resumed into another folder it is a new run.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection
from pathlib import Path

from psbench.checkpoints.file import Checkpoint
from psbench.errors import DataError, SpecError
from psbench.results.record_file import run_id_in_json
from psbench.results.storage import run_id_of_log
from psbench.system.files import check_writable

#: how the first line of a saved specification names the run
_COMMENT = re.compile(r"# run ([0-9a-f]+)")


def new_run_id() -> str:
    """Return a random identity: 128 bits from the system, not from a stream of the experiment."""
    return secrets.token_hex(16)


def resumed_run_id(checkpoint: Path, home: Path, folder: Path | None) -> str | None:
    """Return the identity of a run that resumes from a checkpoint.

    Parameters
    ----------
    checkpoint : Path
    home : Path
        The folder of the checkpoint's run.
    folder : Path or None
        Where the run is to be saved: at home it stays the same run.
    """
    if folder is None or folder.resolve() != home.resolve():
        return new_run_id()
    return Checkpoint.run_id_of(checkpoint)


def comment(run_id: str | None) -> str:
    """Return the line that names the run in a saved specification; empty for a run without identity."""
    return "" if run_id is None else f"# run {run_id}\n"


def run_id_in_yaml(path: Path) -> str | None:
    """Return the identity in a saved specification; None if that line was removed."""
    with path.open(encoding="utf-8") as file:
        found = _COMMENT.match(file.readline())
    return found.group(1) if found else None


#: the files that make a folder that of a run. A specification alone does not: users put theirs there
_READERS: dict[str, Callable[[Path], str | None]] = {
    "run.json": run_id_in_json,
    "log.parquet": run_id_of_log,
    "log.json": run_id_of_log,
    "model.npz": Checkpoint.run_id_of,
    "checkpoints/*.npz": Checkpoint.run_id_of,
}


def files_of_others(folder: Path, run_id: str | None, own: Collection[Path] = ()) -> list[Path]:
    found = [(path, read) for pattern, read in _READERS.items() for path in sorted(folder.glob(pattern))]
    return [path for path, read in found if path not in own and not _carries(path, read, run_id)]


def _carries(path: Path, read: Callable[[Path], str | None], run_id: str | None) -> bool:
    try:
        return read(path) == run_id
    except DataError:
        return False


def refuse_files_of_others(folder: Path, run_id: str | None, own: Collection[Path] = ()) -> None:
    """Raise if a folder holds files of another run, except the run's `own`.

    Raises
    ------
    SpecError
    """
    if found := files_of_others(folder, run_id, own):
        more = f" and {len(found) - 1} more files" if len(found) > 1 else ""
        raise SpecError(
            f"{folder}: holds another run ({found[0].relative_to(folder)}{more}); choose another folder, "
            "resume that run, or replace it (--overwrite, or overwrite=True)"
        )


def check_folder(folder: Path, run_id: str | None, *, overwrite: bool, own: Collection[Path] = ()) -> None:
    """Raise if a run cannot be saved to a folder: not writable, or with another run in it.

    Files that are its `own`, although they cannot be read, are no other run's.

    Raises
    ------
    SpecError
    """
    check_writable(folder)
    if not overwrite:
        refuse_files_of_others(folder, run_id, own)


def remove_files_of_others(folder: Path, run_id: str | None, own: Collection[Path] = ()) -> None:
    """Remove the files of other runs from a folder, except the `own` files.

    Raises
    ------
    SpecError
        If one cannot be removed.
    """
    try:
        for path in files_of_others(folder, run_id, own):
            path.unlink()
    except OSError as error:
        raise SpecError(f"{folder}: the run in it cannot be removed: {error.strerror}") from None
