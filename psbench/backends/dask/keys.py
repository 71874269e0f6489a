"""Distribution of a run's key to its tasks, in memory and never through the scheduler.

A scheduler stores the arguments of a task, and shows them on request. So the key goes to the task's Dask
worker first, by a call that is not stored; there the task takes it, once.
"""

from __future__ import annotations

from collections.abc import Callable

from distributed import Client, Worker, get_worker

from psbench.backends.dask.lifetime import leave_signals
from psbench.backends.dask.protocol.roles import RunKey
from psbench.backends.dask.rpc import ask
from psbench.clusters.connection import ConnectionSettings
from psbench.errors import BackendError

#: how keys that wait for their tasks are called among a Dask worker's attributes
_WAITING = "_psbench_keys"


def give_key(
    client: Client,
    key: RunKey,
    task: str,
    address: str,
    limits: ConnectionSettings,
    go_on: Callable[[], None] = lambda: None,
) -> None:
    """Store a key on a Dask worker for a task to be submitted.

    Parameters
    ----------
    client : Client
    key : RunKey
    task : str
        The key of the task, as Dask calls its name.
    address : str
        Of the Dask worker.
    limits : ConnectionSettings
    go_on : callable
        Called often; raises to give up.

    Raises
    ------
    BackendError, ServerLost
        If the Dask worker does not answer, or is gone.
    """
    ask(client, keep_key, task, key, of=[address], limits=limits, go_on=go_on)


def keep_key(task: str, key: RunKey, dask_worker: Worker) -> None:
    """Keep a key for a task; a Dask worker calls this in its event loop."""
    leave_signals(dask_worker)
    if not hasattr(dask_worker, _WAITING):
        setattr(dask_worker, _WAITING, {})
    getattr(dask_worker, _WAITING)[task] = key


def take_key() -> RunKey:
    """Remove and return the key for the calling task.

    Raises
    ------
    BackendError
        If there is none: Dask has started the task once more by itself.
    """
    worker = get_worker()
    key = getattr(worker, _WAITING, {}).pop(worker.get_current_task(), None)
    if key is None:
        raise BackendError("this task has no key of its run; it may have been started twice")
    assert isinstance(key, RunKey)
    return key
