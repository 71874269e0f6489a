"""How roles end with their Dask worker: not with its scheduler, but before it closes when it is asked to."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Worker
from distributed.core import Status

from psbench.system.insides import replace_close

#: the reason that Dask gives when a worker closes because it has lost its scheduler
_LOST = ("worker-handle-scheduler-connection-broken", "worker-heartbeat-error")
#: seconds between looks whether a role has ended
_LOOK_S = 0.1
#: seconds that roles may take to leave a Dask worker that is to close, once the client knows
_LEAVE_S = 8.0
#: how the number of roles in a Dask worker is called among its attributes
_ROLES = "_psbench_roles"


@contextmanager
def outliving_scheduler(worker: Worker) -> Iterator[None]:
    """Have a Dask worker that loses its scheduler close only when this block has ended.

    By itself it would close at once and end its process after 30 s, whatever its tasks do. If it is asked to
    close, it says that it is being retired, as it does when its scheduler asks for that, and gives this block
    some seconds to end.
    """
    if not hasattr(worker, _ROLES):
        setattr(worker, _ROLES, 0)
        replace_close(worker, functools.partial(_patient, worker))
    setattr(worker, _ROLES, getattr(worker, _ROLES) + 1)
    try:
        yield
    finally:
        setattr(worker, _ROLES, getattr(worker, _ROLES) - 1)


def _patient(worker: Worker, close: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(close)
    async def close_later(*arguments: Any, **options: Any) -> Any:
        is_lost = options.get("reason") in _LOST and worker.status != Status.closing_gracefully
        if not is_lost and getattr(worker, _ROLES) > 0 and worker.status in (Status.running, Status.paused):
            worker.status = Status.closing_gracefully  # which the scheduler tells the run's client
        until = time.monotonic() + _LEAVE_S
        while getattr(worker, _ROLES) > 0 and (is_lost or time.monotonic() < until):
            await asyncio.sleep(_LOOK_S)
        return await close(*arguments, **options)

    return close_later
