"""Backends by name: entry points of the group `psbench.backends`, psbench's own among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

from psbench.errors import BackendError, UnknownName
from psbench.system.plugins import points_of

GROUP = "psbench.backends"


@dataclass(frozen=True)
class Backend:
    """A backend: an implementation that executes experiments.

    A package adds one by an entry point of the group `psbench.backends`, whose name is the value of a
    specification's `backend` and whose object is an instance of this class.

    Parameters
    ----------
    run : callable
        `run(workload, log, control, observer, checkpoints, start, client)` runs the experiment of
        `workload` (`psbench.training.build.Workload`), appends the rows of the run to `log`
        (`psbench.core.log.EventLog`), stops when `control` says so, and returns a
        `psbench.backends.outcome.Outcome`. `observer`, `checkpoints`, `start` and `client` may be None.
    check : callable
        `check(experiment)` raises `psbench.errors.ParameterError` for a setting that the backend cannot
        carry out. It is called whenever an experiment is built, so it must be quick.
    takes_client : bool
        Whether `run` uses a Dask client of the caller's.
    """

    run: Callable[..., Any]
    check: Callable[[Any], None]
    takes_client: bool = False


def backend_names() -> tuple[str, ...]:
    """Return the names of all installed backends, psbench's own first."""
    return tuple(_installed())


@cache
def backend_of(name: str) -> Backend:
    """Load a backend by its name.

    Raises
    ------
    UnknownName
        If no installed package has one of that name.
    BackendError
        If the package cannot be imported, or its object is no `Backend`.
    """
    if not _installed():
        raise BackendError("no backend is registered: install psbench again (pip install -e . in a clone)")
    if name not in _installed():
        raise UnknownName("backend", name, backend_names())
    point = _installed()[name]
    try:
        found = point.load()
    except Exception as error:
        raise BackendError(f"backend {name!r} ({point.value}) cannot be loaded: {error}") from error
    if not isinstance(found, Backend):
        raise BackendError(f"backend {name!r} ({point.value}) is a {type(found).__name__}, not a Backend")
    return found


@cache
def _installed() -> dict[str, EntryPoint]:
    points = {point.name: point for point in points_of(GROUP)}
    own = {name: points[name] for name in ("simulated", "dask") if name in points}
    return own | dict(sorted(points.items()))
