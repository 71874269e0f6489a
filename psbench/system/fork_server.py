"""Python's fork server with what psbench's processes import, so that a process of a run is a fork of it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager

#: what every process imports (an optimizer loads torch._dynamo); a missing one is passed over
PRELOADED = [
    *("torch._dynamo", "distributed.nanny"),
    *("psbench.backends.dask.tasks", "psbench.backends.simulated.pool_process", "psbench.sweeps.worker"),
]
_MAIN = threading.Lock()


def is_available() -> bool:
    """Return whether this system has a fork server."""
    return "forkserver" in multiprocessing.get_all_start_methods()


def ensure_running() -> None:
    """Have the fork server run, and begin to import what processes need; does not wait for it.

    Importing torch and Dask takes seconds of CPU, which every process would spend again. Does nothing where
    the server runs already, which it does until this process ends; it holds no port and does not compute. It
    has the environment of now, and its processes inherit it.
    """
    multiprocessing.set_forkserver_preload(PRELOADED)
    multiprocessing.forkserver.ensure_running()


@contextmanager
def without_main() -> Iterator[None]:
    """Let processes that are started inside not run the user's script again.

    Python has every new process import the script that was started, so that it finds what is defined there;
    a script that does not guard its beginning would start its run once more.
    """
    with _MAIN:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
