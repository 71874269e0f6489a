"""Claims of folders: one process at a time writes a run to a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psbench.errors import SpecError

#: name of the file that a run locks in its folder
CLAIM = ".psbench-claim"


class ClaimLost(SpecError):
    """Another process has taken the claim of this one over."""


class Writer:
    """A process that writes a run to a folder; this one is replaced by no other.

    Attributes
    ----------
    owner : str
        Processes of one owner, each of which continues the work of the one before, may take a claim over from
        each other; empty for none.
    """

    owner = ""

    def check(self) -> None:
        """Raise if this process may not write any more, as another one goes on with the run."""


@contextmanager
def claimed(folder: Path, owner: str = "") -> Iterator[Callable[[], None]]:
    """Lock a folder against other runs until the block ends, across processes, even if this one is killed.

    The folder is made if it is not there; a folder in which nothing was put is removed. Yields a function
    that raises `ClaimLost` if another process has taken the claim over.

    Raises
    ------
    SpecError
        If another has claimed it, or it cannot be written.
    """
    made = not folder.exists()
    claim = folder / CLAIM
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _locked(claim, owner)
    except OSError as error:
        raise SpecError(f"{folder}: cannot be written: {error.strerror}; choose another folder") from None
    if descriptor is None:
        raise SpecError(f"{folder}: another run is being written to it now; choose another folder")

    def check() -> None:
        if not _is_file_at(claim, descriptor):
            raise ClaimLost(f"{folder}: another process goes on with this run, and writes to the folder")

    try:
        yield check
    finally:
        if _is_file_at(claim, descriptor):
            with suppress(OSError):
                claim.unlink()
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # processes that were forked meanwhile have the file open, too
        os.close(descriptor)
        if made:
            with suppress(OSError):
                folder.rmdir()


def take_over(folder: Path, owner: str) -> bool:
    """Void the claim of a process of this owner, frozen or cut off; return whether it has the claim.

    That process cannot be asked: it finds out before it writes the next file.
    """
    claim = folder / CLAIM
    with suppress(OSError):
        if owner and claim.read_text() == owner:
            claim.unlink()
            return True
    return False


def _locked(claim: Path, owner: str) -> int | None:
    """Return the descriptor of the claim's file, locked and signed; None if another has locked it."""
    while True:
        descriptor = os.open(claim, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, owner.encode(), 0)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        if _is_file_at(claim, descriptor):
            return descriptor
        os.close(descriptor)  # whoever had it has removed it meanwhile


def _is_file_at(path: Path, descriptor: int) -> bool:
    """Return whether a path names the file of a descriptor."""
    try:
        found = os.open(path, os.O_RDONLY)  # a network file system looks again when a file is opened
    except OSError:
        return False
    try:
        return os.path.samestat(os.fstat(found), os.fstat(descriptor))
    finally:
        os.close(found)
