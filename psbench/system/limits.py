"""Available memory and disk space, and errors before a computation would exceed them."""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from psbench.errors import ParameterError

#: of control groups, version 2 and 1: the folder, and its files with the limit of memory and what is used
_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
#: lines of their `memory.stat` that count cached files: used, and given up when memory is needed
_CACHED = ("inactive_file", "active_file")
#: share of the memory available that a run may be estimated to need: an estimate leaves small things out
SHARE = 0.9


def available_memory() -> int:
    """Return the bytes of available memory: of the machine or, if less, of the container."""
    import psutil  # here: a browser has none, and opens recorded runs

    left = (_left_in_container(Path(folder), *files) for folder, *files in _CGROUPS)
    return min([int(psutil.virtual_memory().available), *(each for each in left if each is not None)])


def machine_memory() -> tuple[str, int]:
    """Return a name of this machine or container, and its available memory in bytes."""
    files = ""
    with suppress(OSError):  # containers of one machine have file systems of their own
        files = os.readlink("/proc/self/ns/mnt")
    return f"{socket.gethostname()} {files}", available_memory()


def _left_in_container(folder: Path, limit: str, used: str) -> int | None:
    """Return the memory that a control group leaves to this process; None without a limit."""
    try:
        most, now = (int((folder / name).read_text()) for name in (limit, used))
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        stat = {name: int(value) for name, value in lines}
    except (OSError, ValueError):  # no such group, or the limit is "max"
        return None
    cached = sum(stat.get(name, 0) for name in _CACHED)
    return max(most - now + cached, 0)


def free_disk(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, or of its nearest existing parent."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
    return shutil.disk_usage(there).free


def check_memory(needed: int, what: str, remedy: str) -> None:
    """Raise if a computation would exceed the available memory.

    Parameters
    ----------
    needed : int, bytes
        An estimate.
    what : str
        What needs it: names the parameter and its value.
    remedy : str
        What to do about it.

    Raises
    ------
    ParameterError
        Naming what needs the memory, the estimate, and what is available.
    """
    available = available_memory()
    if needed > SHARE * available:
        raise ParameterError(
            f"{what} would need about {size(needed)} of memory, and {size(available)} are available; {remedy}"
        )


def check_disk(folder: Path, needed: int, what: str, remedy: str) -> None:
    """Raise if a computation would exceed the free disk space; see `check_memory`.

    Raises
    ------
    ParameterError
    """
    free = free_disk(folder)
    if needed > free:
        raise ParameterError(
            f"{what} would take about {size(needed)} of disk in {folder}, and {size(free)} are free; {remedy}"
        )


def size(count: int) -> str:
    """Return a number of bytes in words.

    >>> size(1_500), size(7_200_000_000), size(10**400)
    ('1.5 kB', '7.2 GB', '1e+282 EB')
    """
    value = float(min(count, 10**300))
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} EB"
