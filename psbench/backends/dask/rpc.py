"""Requests to Dask workers and their scheduler, with timeouts for frozen ones."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from distributed import Client
from distributed.core import clean_exception
from distributed.protocol.pickle import loads

from psbench.backends.dask.protocol.roles import names_or_count
from psbench.clusters.connection import ConnectionSettings
from psbench.errors import BackendError, ServerLost

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


#: seconds between looks whether to give up, and whether a Dask worker is still in the cluster
_LOOK_S, _THERE_S = 0.1, 2.0
_GONE = "the Dask scheduler is gone: its process was killed, or its machine is unreachable"


class SchedulerLost(BackendError):
    """The Dask scheduler does not answer, or this process has lost the connection to it."""


class Unresponsive(BackendError):
    """Dask workers do not answer; `addresses` lists them."""

    def __init__(self, reason: str, addresses: Collection[str]) -> None:
        super().__init__(reason)
        self.addresses = frozenset(addresses)


class Departed(Unresponsive):
    """Dask workers have left the cluster before they answered."""


def ask(
    client: Client,
    function: Callable[..., Any] | str,
    *arguments: Any,
    of: Collection[str],
    limits: ConnectionSettings,
    go_on: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Call a function on Dask workers, and return the results by address.

    The scheduler passes the calls on, one for each Dask worker, and stores nothing of them. A Dask worker may
    take as long as `answer_within_s` says.

    Parameters
    ----------
    function : callable or str
        Or a request that these Dask workers answer (`Worker.handlers`): they log each call of a function.
    go_on : callable
        Called often; raises to give up.

    Raises
    ------
    Unresponsive
        If Dask workers do not answer; it has their addresses, and those of no others.
    Departed
        If they have left the cluster meanwhile, as the scheduler alone would notice after 30 s.
    ServerLost
        If one is gone.
    """
    answers: dict[str, Any] = {}

    async def call(address: str) -> None:
        if isinstance(function, str):
            answers[address] = await _answer(client, function, arguments, address)
        else:
            answers.update(await client.run(function, *arguments, workers=[address]))

    async def call_each() -> dict[str, Any]:
        calls = pending = {asyncio.ensure_future(call(address)) for address in of}
        try:
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=_THERE_S, return_when=asyncio.FIRST_EXCEPTION
                )
                for each in done:
                    each.result()
                if pending and (gone := {*silent()} - (await client.nthreads()).keys()):
                    raise Departed(f"{', '.join(sorted(gone))} left the Dask cluster", gone)
            return answers
        finally:
            for each in calls:
                if not each.cancel() and not each.cancelled():
                    each.exception()  # of the others that failed, too: asyncio complains otherwise

    def silent() -> list[str]:
        return sorted({*of} - answers.keys())

    def awaited() -> str:
        return names_or_count(silent(), len(of), "Dask workers")

    try:
        return _patiently(
            client,
            call_each,
            awaited,
            limits.answer_within_s,
            limits,
            go_on,
        )
    except TimeoutError:
        raise Unresponsive(
            f"no answer within {limits.answer_within_s:g} s from {awaited()}: is it frozen? "
            "A machine that is busy may need more: connection.answer_within_s",
            silent(),
        ) from None
    except OSError as error:
        if client.status != "running":
            raise SchedulerLost(_GONE) from None
        raise ServerLost(f"a Dask worker was lost before the run could begin there: {error}") from None


async def _answer(client: Client, request: str, arguments: tuple[Any, ...], address: str) -> Any:
    """Return a Dask worker's answer, by way of the scheduler."""
    message = {"op": request, "arguments": arguments}
    found = await client.scheduler.broadcast(msg=message, workers=[address], on_error="return_pickle")
    answer = found[address]
    if isinstance(answer, bytes):  # the scheduler's, which did not reach that Dask worker
        raise loads(answer)
    if answer["status"] != "OK":
        _, error, traceback = clean_exception(**answer)
        raise error.with_traceback(traceback)
    return answer["answer"]


def ask_scheduler(
    client: Client,
    question: str | Callable[..., Any],
    *arguments: Any,
    limits: ConnectionSettings,
    is_needed: bool = True,
    go_on: Callable[[], None] = lambda: None,
    **options: Any,
) -> Any:
    """Call a coroutine that waits for the scheduler, and return its result.

    Parameters
    ----------
    client : Client
    question : str or callable
        A method of the client by its name, or anything of Dask's that can be awaited in its event loop.
    limits : ConnectionSettings
        The scheduler may take `answer_within_s`.
    is_needed : bool
        Whether the run needs the answer; else it waits `settle_within_s`.
    go_on : callable
        Called often; raises to give up.

    Raises
    ------
    BackendError
        If the scheduler does not answer.
    """
    name = "answer_within_s" if is_needed else "settle_within_s"
    within_s: float = getattr(limits, name)
    call = getattr(client, question) if isinstance(question, str) else question
    try:
        return _patiently(
            client,
            lambda: call(*arguments, **options),
            lambda: "the Dask scheduler",
            within_s,
            limits,
            go_on,
        )
    except TimeoutError:
        raise SchedulerLost(
            f"the Dask scheduler has not answered within {within_s:g} s (connection.{name}): is it frozen?"
        ) from None
    except OSError:
        raise SchedulerLost(_GONE) from None


def begin(
    client: Client, call: Callable[[], Awaitable[_T]], within_s: float | None = None
) -> concurrent.futures.Future[_T]:
    """Start a call in the client's event loop, with a timeout; return its future at once."""

    async def bounded() -> _T:
        async with asyncio.timeout(within_s):
            return await call()

    return asyncio.run_coroutine_threadsafe(bounded(), client.loop.asyncio_loop)


def _patiently(
    client: Client,
    call: Callable[[], Awaitable[_T]],
    awaited: Callable[[], str],
    within_s: float,
    limits: ConnectionSettings,
    go_on: Callable[[], None],
) -> _T:
    """Await a call in the client's event loop, and log from time to time which peer is awaited."""
    if client.status != "running":
        raise SchedulerLost(_GONE)

    async def bounded() -> _T:
        task = asyncio.ensure_future(call())
        began = time.monotonic()
        next_line_s = limits.say_after_s
        try:
            while (waited := time.monotonic() - began) < within_s:
                go_on()
                if waited >= next_line_s:
                    next_line_s += limits.say_after_s
                    logger.warning("waiting for %s for %.0f s", awaited(), waited)
                done, _ = await asyncio.wait({task}, timeout=min(_LOOK_S, within_s - waited))
                if done:
                    return task.result()
            raise TimeoutError
        finally:
            task.cancel()

    try:
        return client.sync(bounded)
    except (AttributeError, asyncio.CancelledError, concurrent.futures.CancelledError):
        if client.status == "running":
            raise
        raise SchedulerLost(_GONE) from None  # it has closed itself meanwhile, and has no scheduler any more
