"""Number of cores for this process, limited by machine, container and environment variable."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from psbench.errors import ParameterError

#: the environment's variable that caps them: where many users share a machine
CAP = "PSBENCH_CORES"
#: where JupyterHub says what a user's server may use
_HUB = "CPU_LIMIT"


def cores() -> int:
    """Return the number of cores for this process, at least 1.

    That is the least of: its affinity, the quotas of its control groups (of a container, or a batch system),
    JupyterHub's `CPU_LIMIT`, and `PSBENCH_CORES`. A part of a core counts as one.

    Raises
    ------
    ParameterError
        If `PSBENCH_CORES` is not a positive number.
    """
    found = [*_variables(os.environ), *_quotas(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))]
    return max(1, math.ceil(min([_affinity(), *found])))


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _variables(environment: Mapping[str, str]) -> Iterator[float]:
    for name in (CAP, _HUB):
        number = math.nan
        with suppress(ValueError):
            number = float(environment.get(name, ""))
        if number > 0:
            yield number
        elif name == CAP and environment.get(name):
            raise ParameterError(f"{CAP}: expected a number of cores such as 2, got {environment[name]!r}")


def _quotas(membership: Path, mounted: Path) -> Iterator[float]:
    """Yield the core limits of this process's control groups and their ancestors."""
    with suppress(OSError):  # no control groups on this system
        for line in membership.read_text().splitlines():
            _, controllers, own = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            # inside a container a group's own folder may not be there, and the mounted one is the container's
            group = Path(own.lstrip("/"))
            for folder in (group, *group.parents):
                if (quota := _quota([mounted / controllers / folder / name for name in files])) > 0:
                    yield quota


def _quota(files: list[Path]) -> float:
    """Return quota over period, from one file or two; 0 if unlimited."""
    try:
        quota, period = (float(word) for file in files for word in file.read_text().split())
    except (OSError, ValueError):  # no such group, or "max"
        return 0.0
    return quota / period
