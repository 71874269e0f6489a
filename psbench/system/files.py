"""Files that are written whole or not at all, under names that cannot be guessed."""

from __future__ import annotations

import difflib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from psbench.errors import SpecError


def why_missing(path: Path) -> str:
    """Return an error message for a missing path, with the nearest existing name; empty if it exists."""
    if os.path.exists(path):  # not path.exists(), to which some names are an error
        return ""
    if not path.parent.is_dir():
        return f"{path}: there is no such file, nor a folder {path.parent}"
    there = [each.name for each in path.parent.iterdir()]
    near = difflib.get_close_matches(path.name, there, n=1, cutoff=0.5)
    hint = f"; did you mean {path.parent / near[0]}?" if near else ""
    return f"{path}: there is no such file or folder{hint}"


def temporary_name(folder: Path) -> Path:
    """Return a name in a folder that cannot be guessed, for a file that is renamed when it is complete."""
    return folder / f".psbench-{secrets.token_hex(8)}.part"


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Open a new file beside `path` for writing; it replaces `path` if the block succeeds.

    The folder is made if it is not there.
    The new file is created exclusively under a random name, so that a file or a link that others have put
    there is neither written to nor followed. Before it is renamed its content is forced to the disk: after a
    power failure there is the old file or the new one. A link called `path` is replaced, not followed.

    Raises
    ------
    SpecError
        If the file cannot be written there, or `path` is something else than a file; nothing is left then.
    """
    path = Path(path)
    part = temporary_name(path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and not (path.is_file() or path.is_symlink()):
            raise SpecError(f"{path}: is not a regular file and is not replaced; choose another name")
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _force_names(path.parent)
    except OSError as error:
        raise SpecError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    with atomic_write(path) as file:
        file.write(text.encode())
    return Path(path)


def _force_names(folder: Path) -> None:
    """Flush a folder's directory entries to disk, if the system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_new_file(path: Path) -> None:
    """Check that a file can be written, before its content is computed; leave no file behind.

    Raises
    ------
    SpecError
    """
    if path.is_dir():
        raise SpecError(f"{path}: is a folder; name a file in it")
    check_writable(path.parent)


def check_writable(folder: Path) -> None:
    """Check that a folder is writable, by writing a temporary file.

    Raises
    ------
    SpecError
    """
    made: list[Path] = []
    probe = temporary_name(folder)
    try:
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with probe.open("xb") as file:
            file.write(b"psbench")
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise SpecError(f"{folder}: cannot be written: {reason}; choose another output folder") from None
    finally:
        with suppress(OSError, ValueError):
            probe.unlink()
        for each in made:
            with suppress(OSError, ValueError):
                each.rmdir()
