"""Roles that go on when the Dask scheduler is gone: a run needs it to be placed, and not to train."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Worker

#: why a Dask worker closes itself that has lost its scheduler
_LOST = ("worker-handle-scheduler-connection-broken", "worker-heartbeat-error")
#: seconds between looks whether a role has ended
_LOOK_S = 0.1
#: how the number of roles in a Dask worker is called among its attributes
_ROLES = "_psbench_roles"


@contextmanager
def outliving_scheduler(worker: Worker) -> Iterator[None]:
    """Have a Dask worker that loses its scheduler close only when this block has ended.

    By itself it would close at once and end its process after 30 s, whatever its tasks do. A request to
    close it is carried out as usual.
    """
    if not hasattr(worker, _ROLES):
        setattr(worker, _ROLES, 0)
        worker.close = _patient(worker, worker.close)
    setattr(worker, _ROLES, getattr(worker, _ROLES) + 1)
    try:
        yield
    finally:
        setattr(worker, _ROLES, getattr(worker, _ROLES) - 1)


def _patient(worker: Worker, close: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(close)
    async def close_later(*arguments: Any, **options: Any) -> Any:
        while options.get("reason") in _LOST and getattr(worker, _ROLES) > 0:
            await asyncio.sleep(_LOOK_S)
        return await close(*arguments, **options)

    return close_later
