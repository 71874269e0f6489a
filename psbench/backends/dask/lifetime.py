"""The lifetime of roles: they survive the scheduler, and end before their Dask worker closes."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from distributed import Worker
from distributed.core import Status

from psbench.system.private_apis import replace_close
from psbench.system.signals import ENDING, FirstSignal

#: the reason that Dask gives when a worker closes because it has lost its scheduler: that is gone, was asked
#: to end, or was started again and does not know the worker
LOST = (
    *("worker-handle-scheduler-connection-broken", "worker-heartbeat-error"),
    *("scheduler-close", "worker-heartbeat-missing"),
)
#: seconds between looks whether a role has ended
_LOOK_S = 0.1
#: seconds that roles may take to leave a Dask worker that is to close, once the client knows
_LEAVE_S = 8.0
#: how the number of roles in a Dask worker is called among its attributes
_ROLES = "_psbench_roles"
#: how it is called there that signals are left to the client
_LEAVES_SIGNALS = "_psbench_leaves_signals"
#: how the keys of all tasks of runs begin
TASKS = "psbench-"


@contextmanager
def outliving_scheduler(worker: Worker) -> Iterator[None]:
    """Delay the closing of a Dask worker without scheduler until this block ends.

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
        is_lost = options.get("reason") in LOST and worker.status != Status.closing_gracefully
        if not is_lost and getattr(worker, _ROLES) > 0 and worker.status in (Status.running, Status.paused):
            worker.status = Status.closing_gracefully  # which the scheduler tells the run's client
        until = time.monotonic() + _LEAVE_S
        while getattr(worker, _ROLES) > 0 and (is_lost or time.monotonic() < until):
            await asyncio.sleep(_LOOK_S)
        return await close(*arguments, **options)

    return close_later


def leave_signals(dask_worker: Worker) -> None:
    """Let a Dask worker ignore Ctrl-C and SIGTERM during tasks: the client handles them.

    Who ends a whole job (a batch system, `timeout`, a terminal) sends them to every process of it, the client
    included, which stops the run and keeps what it has. A Dask worker with a nanny closes when the nanny
    asks, and ignores them; one without a nanny begins to close, and its roles leave. To be called by the
    Dask worker's event loop.
    """
    in_main = threading.current_thread() is threading.main_thread()  # only there may a handler be set
    if not in_main or hasattr(dask_worker, _LEAVES_SIGNALS):
        return

    def retire(number: int) -> None:
        dask_worker.loop.add_callback(dask_worker.close, reason=f"signal-{number}")

    def handle(number: int, frame: FrameType | None) -> None:
        if not any(str(key).startswith(TASKS) for key in [*dask_worker.state.tasks]):
            signal.signal(number, before[number])
            signal.raise_signal(number)
        elif dask_worker.nanny is None:
            alone[number](number, frame)

    before: dict[int, Any] = {number: signal.getsignal(number) or signal.SIG_DFL for number in ENDING}
    alone: dict[int, FirstSignal] = {number: FirstSignal(retire, usual) for number, usual in before.items()}
    setattr(dask_worker, _LEAVES_SIGNALS, True)
    for number in ENDING:
        signal.signal(number, handle)
