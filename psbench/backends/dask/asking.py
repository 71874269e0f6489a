"""Questions to Dask workers and their scheduler that do not wait for one that is frozen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from distributed import Client

from psbench.errors import BackendError, ServerLost

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: seconds of silence after which it is said who is waited for, and again after as many
SAY_S = 10.0


class Unresponsive(BackendError):
    """Dask workers do not answer; `addresses` has theirs."""

    def __init__(self, reason: str, addresses: Collection[str]) -> None:
        super().__init__(reason)
        self.addresses = frozenset(addresses)


def ask(
    client: Client, function: Callable[..., Any], *arguments: Any, of: Collection[str], within_s: float
) -> dict[str, Any]:
    """Call a function on Dask workers, and return what it returned by their addresses.

    The scheduler passes the call on, and stores nothing of it. A Dask worker may take `within_s` seconds, as
    the experiment's `connection.answer_within_s` says.

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
            within_s,
        )
    except TimeoutError:
        raise Unresponsive(
            f"no answer within {within_s:g} s from a Dask worker of {where}: is it frozen? A machine that is "
            "busy may need more: connection.answer_within_s",
            of,
        ) from None
    except OSError as error:
        raise ServerLost(f"a Dask worker is gone before the run could begin there: {error}") from None


def ask_scheduler(client: Client, question: str, *arguments: Any, within_s: float, **options: Any) -> Any:
    """Call a method of a client that waits for the scheduler, by its name, and return what it returns.

    Raises
    ------
    BackendError
        If the scheduler does not answer.
    """
    try:
        return _patiently(
            client,
            lambda: getattr(client, question)(*arguments, **options),
            "the Dask scheduler",
            within_s,
        )
    except TimeoutError:
        raise BackendError(
            f"the Dask scheduler has not answered within {within_s:g} s (connection.answer_within_s): is it "
            "frozen?"
        ) from None


def _patiently(client: Client, call: Callable[[], Awaitable[T]], whom: str, within_s: float) -> T:
    """Await a call in the client's event loop, and say from time to time who is waited for."""

    async def bounded() -> T:
        task = asyncio.ensure_future(call())
        waited = 0.0
        while waited < within_s:
            step = min(SAY_S, within_s - waited)
            done, _ = await asyncio.wait({task}, timeout=step)
            if done:
                return task.result()
            waited += step
            if waited < within_s:
                logger.warning("waiting for %s for %.0f s", whom, waited)
        task.cancel()
        raise TimeoutError

    return client.sync(bounded)  # type: ignore[no-any-return]
