"""All uses of private APIs of other libraries, with their reasons.

No library promises these, so a new version of one may end them: `tests/system/test_insides.py` has a test for
each, which fails then and names what was needed. Each imports its library when it is called, so that the
command line and a notebook's first cell do not.
"""

from __future__ import annotations

import importlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from altair import InlineData
    from distributed import LocalCluster, Worker

#: jsonschema's, for addresses in any script; Jupyter's dependencies install it
NAME = "rfc3987_syntax"
_MAIN = threading.Lock()
_CHECKS = threading.Lock()
_before = list[bool]()  # of each block without checks that has begun


# -------------------------------------------------------------------- Python


@contextmanager
def without_main() -> Iterator[None]:
    """Keep processes started in this block from running the user's script again.

    Python has every new process import the script that was started, so that it finds what is defined there;
    a script that does not guard its beginning would start its run once more. Needs that `multiprocessing`
    finds the script as ``sys.modules["__main__"]`` when it starts a process.
    """
    with _MAIN:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


# -------------------------------------------------------------------- Dask


def keep_preloaded() -> None:
    """Keep Dask from changing the fork server's list of imports.

    Else Dask imports pandas for a list of its own, which comes too late to replace ours. Needs
    `distributed.utils._forkserver_preload_set`, which says that this was done.
    """
    import distributed.utils

    distributed.utils._forkserver_preload_set = True


def patient_cluster(seconds: float) -> type[LocalCluster]:
    """Return a local cluster that waits that long for a lost process to return.

    On a busy machine that takes more than Dask's 15 s, a setting that holds for all clusters of a process.
    Needs `LocalCluster._update_worker_status`, which reads it when a process is lost.
    """
    import dask
    from distributed import LocalCluster

    class Patient(LocalCluster):
        def _update_worker_status(self, op: str, msg: str) -> None:
            with dask.config.set({"distributed.deploy.lost-worker-timeout": f"{seconds}s"}):
                super()._update_worker_status(op, msg)

    return Patient


def replace_close(worker: Worker, replacement: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a Dask worker's `close`, including its handler for the scheduler's request.

    Needs that Dask calls `Worker.close` of the object, with its `reason`, and not of the class; and that what
    the scheduler can ask for is in `Worker.stream_handlers`, by its name.
    """
    worker.close = worker.stream_handlers["close"] = replacement(worker.close)


def look_up_certificates() -> None:
    """Load the system's certificates once for all forks of this process, which do not use them.

    Needs `tornado.netutil._client_ssl_defaults`, which keeps what it found; without it nothing is kept.
    """
    with suppress(ImportError):
        from tornado.netutil import _client_ssl_defaults

        _client_ssl_defaults()


# -------------------------------------------------------------------- Typer


def wrong_usage() -> type[Exception]:
    """Return the exception for a wrong command line; Typer exports only a subclass of it.

    Needs that it is the base of `typer.BadParameter`, and has `format_message` and `ctx`.
    """
    import typer

    base: type[Exception] = typer.BadParameter.__bases__[0]
    return base


# -------------------------------------------------------------------- jsonschema


def defer_grammar() -> None:
    """Import the package `NAME` at its first use instead of with jsonschema.

    Altair imports jsonschema, which imports the package where it is installed, and that builds its grammar at
    once: 1.7 of the 2 s of CPU of ``import altair`` in JupyterLab's environment, in every process that draws.
    A check of such an address still gets its answer, and waits for the grammar then. Needs that whoever
    checks one calls `rfc3987_syntax.is_valid_syntax`, or looks names up in the package.
    """
    if NAME in sys.modules or (spec := find_spec(NAME)) is None:
        return
    stand_in = types.ModuleType(NAME)

    def whole() -> types.ModuleType:
        if sys.modules.get(NAME) is stand_in:
            del sys.modules[NAME]
        return importlib.import_module(NAME)

    def is_valid_syntax(term: str, value: str) -> bool:
        return bool(whole().is_valid_syntax(term, value))

    def other(name: str) -> Any:
        if name.startswith("__"):  # what Python's import asks of every module
            raise AttributeError(name)
        return getattr(whole(), name)

    vars(stand_in).update(is_valid_syntax=is_valid_syntax, __getattr__=other)
    stand_in.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[NAME] = stand_in


# -------------------------------------------------------------------- Altair


@contextmanager
def unchecked() -> Iterator[None]:
    """Make charts in this block without a check of each of their parts, which takes a third of the time.

    Charts are checked as a whole by tests. Needs that Altair checks what is made where
    `altair.utils.schemapi.DEBUG_MODE` is set. All threads share it, and those of panels draw at once: the
    last block to end sets it as it was.
    """
    from altair.utils import schemapi

    with _CHECKS:
        _before.append(schemapi.DEBUG_MODE)
        schemapi.DEBUG_MODE = False
    try:
        yield
    finally:
        with _CHECKS:
            before = _before.pop()
            if not _before:
                schemapi.DEBUG_MODE = before


@cache
def unchecked_rows() -> type[InlineData]:
    """Return Altair's class of rows, without a check of each row or a copy with each chart.

    Both take most of the time in which a chart is made; charts are checked as a whole by tests. Needs that
    Altair checks what is made if its class is `_class_is_valid_at_instantiation`, and copies by `deepcopy`.
    """
    import altair as alt

    class Unchecked(alt.InlineData):
        _class_is_valid_at_instantiation = False

        def __deepcopy__(self, _: Any) -> Unchecked:
            return self

    return Unchecked
