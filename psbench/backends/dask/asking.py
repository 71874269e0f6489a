"""Questions to Dask workers and their scheduler that do not wait for one that is frozen."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from distributed import Client

from psbench.clusters.connection import ConnectionSettings
from psbench.errors import BackendError, ServerLost

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


_GONE = "the Dask scheduler is gone: its process was killed, or its machine is unreachable"


class Unresponsive(BackendError):
    """Dask workers do not answer; `addresses` has theirs."""

    def __init__(self, reason: str, addresses: Collection[str]) -> None:
        super().__init__(reason)
        self.addresses = frozenset(addresses)


def ask(
    client: Client,
    function: Callable[..., Any],
    *arguments: Any,
    of: Collection[str],
    limits: ConnectionSettings,
) -> dict[str, Any]:
    """Call a function on Dask workers, and return what it returned by their addresses.

    The scheduler passes the call on, and stores nothing of it. A Dask worker may take as long as
    `answer_within_s` says.

    Raises
    ------
    Unresponsive
        If a Dask worker does not answer.
    ServerLost
        If one is gone.
    """
    where = ", ".join(sorted(of))
    try:
        return _patiently(
            client,
            lambda: client.run(function, *arguments, workers=[*of]),
            f"a Dask worker of {where}",
            limits.answer_within_s,
            limits,
        )
    except TimeoutError:
        raise Unresponsive(
            f"no answer within {limits.answer_within_s:g} s from a Dask worker of {where}: is it frozen? "
            "A machine that is busy may need more: connection.answer_within_s",
            of,
        ) from None
    except OSError as error:
        if client.status != "running":
            raise BackendError(_GONE) from None
        raise ServerLost(f"a Dask worker is gone before the run could begin there: {error}") from None


def ask_scheduler(
    client: Client,
    question: str | Callable[..., Any],
    *arguments: Any,
    limits: ConnectionSettings,
    is_needed: bool = True,
    **options: Any,
) -> Any:
    """Call what waits for the scheduler, and return what it returns.

    Parameters
    ----------
    client : Client
    question : str or callable
        A method of the client by its name, or anything of Dask's that can be awaited in its event loop.
    limits : ConnectionSettings
        The scheduler may take `answer_within_s`.
    is_needed : bool
        Whether the run needs the answer; else it waits `settle_within_s`.

    Raises
    ------
    BackendError
        If the scheduler does not answer.
    """
    name = "answer_within_s" if is_needed else "settle_within_s"
    within_s: float = getattr(limits, name)
    call = getattr(client, question) if isinstance(question, str) else question
    try:
        return _patiently(client, lambda: call(*arguments, **options), "the Dask scheduler", within_s, limits)
    except TimeoutError:
        raise BackendError(
            f"the Dask scheduler has not answered within {within_s:g} s (connection.{name}): is it frozen?"
        ) from None
    except OSError:
        raise BackendError(_GONE) from None


def tell_scheduler(client: Client, question: str, *arguments: Any) -> concurrent.futures.Future[Any]:
    """Call a method of a client that waits for the scheduler, and do not wait; return its future."""

    async def call() -> Any:
        return await getattr(client, question)(*arguments)

    return asyncio.run_coroutine_threadsafe(call(), client.loop.asyncio_loop)


def _patiently(
    client: Client, call: Callable[[], Awaitable[_T]], whom: str, within_s: float, limits: ConnectionSettings
) -> _T:
    """Await a call in the client's event loop, and say from time to time who is waited for."""
    if client.status != "running":
        raise BackendError(_GONE)

    async def bounded() -> _T:
        task = asyncio.ensure_future(call())
        waited = 0.0
        while waited < within_s:
            step = min(limits.say_after_s, within_s - waited)
            done, _ = await asyncio.wait({task}, timeout=step)
            if done:
                return task.result()
            waited += step
            if waited < within_s:
                logger.warning("waiting for %s for %.0f s", whom, waited)
        task.cancel()
        raise TimeoutError

    try:
        return client.sync(bounded)
    except (AttributeError, asyncio.CancelledError, concurrent.futures.CancelledError):
        if client.status == "running":
            raise
        raise BackendError(_GONE) from None  # it has closed itself meanwhile, and has no scheduler any more
