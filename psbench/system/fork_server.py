"""Python's fork server with psbench's imports preloaded, so that a run's processes are forks of it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver

#: what every process imports, in this order, whatever it then does; a missing one is passed over
PRELOADED = [
    "psbench.system.importing",
    *("distributed.nanny", "tornado.platform.asyncio"),
    *("multiprocessing.popen_forkserver", "multiprocessing.synchronize"),
    *("torch.utils._device", "pydantic.dataclasses"),  # imported late by torch and pydantic
    *(
        "psbench.backends.dask.preloaded",
        "psbench.backends.simulated.pool_process",
        "psbench.runs.sweeps.worker",
    ),
    "psbench.system.gc_freeze",
]


def is_available() -> bool:
    return "forkserver" in multiprocessing.get_all_start_methods()


def ensure_running() -> None:
    """Start the fork server and its imports, without waiting for them.

    Importing torch and Dask takes seconds of CPU, which every process would spend again. Does nothing where
    the server runs already, which it does until this process ends; it holds no port and does not compute. It
    has the environment of now, and its processes inherit it.
    """
    multiprocessing.set_forkserver_preload(PRELOADED)
    multiprocessing.forkserver.ensure_running()
