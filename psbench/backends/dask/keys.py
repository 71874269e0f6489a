"""Hands a run's key to its tasks: in memory, and past all that a scheduler keeps of them.

A scheduler stores the arguments of a task, and shows them to whoever asks. So the key goes to the task's Dask
worker first, by a call that nobody stores; there the task takes it, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from distributed import Client, Worker, get_worker

from psbench.backends.dask.protocol.roles import RunKey
from psbench.errors import BackendError, ServerLost

#: how keys that wait for their tasks are called among a Dask worker's attributes
_WAITING = "_psbench_keys"
#: seconds that a Dask worker may take to receive one
_GIVE_S = 10.0


def give_key(client: Client, key: RunKey, tasks: Mapping[str, str]) -> None:
    """Have Dask workers keep a key for tasks that will be submitted.

    Parameters
    ----------
    client : Client
    key : RunKey
    tasks : mapping of a task's key to the address of its Dask worker

    Raises
    ------
    BackendError
        If a Dask worker does not answer.
    ServerLost
        If one is gone.
    """

    async def give(task: str, address: str) -> None:
        await asyncio.wait_for(client.run(_keep, task, key, workers=[address]), _GIVE_S)

    async def give_all() -> None:
        await asyncio.gather(*(give(task, address) for task, address in tasks.items()))

    try:
        client.sync(give_all)
    except TimeoutError:
        where = ", ".join(sorted(set(tasks.values())))
        raise BackendError(
            f"not each of the Dask workers at {where} answers within {_GIVE_S:g} s: is one frozen?"
        ) from None
    except OSError as error:
        raise ServerLost(f"a Dask worker is gone before the run could begin there: {error}") from None


def _keep(task: str, key: RunKey, dask_worker: Worker) -> None:
    if not hasattr(dask_worker, _WAITING):
        setattr(dask_worker, _WAITING, {})
    getattr(dask_worker, _WAITING)[task] = key


def take_key() -> RunKey:
    """Return the key that was given for the task that calls this; it can be had once.

    Raises
    ------
    BackendError
        If there is none: Dask has started the task once more by itself.
    """
    worker = get_worker()
    key = getattr(worker, _WAITING, {}).pop(worker.get_current_task(), None)
    if key is None:
        raise BackendError("this task has no key of its run: it was started twice")
    assert isinstance(key, RunKey)
    return key
