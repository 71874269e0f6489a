"""Calls of functions on Dask workers that do not wait for one that is frozen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from distributed import Client

from psbench.errors import BackendError, ServerLost


def ask(
    client: Client, function: Callable[..., Any], *arguments: Any, of: Collection[str], within_s: float
) -> dict[str, Any]:
    """Call a function on Dask workers, and return what it returned by their addresses.

    The scheduler passes the call on, and stores nothing of it. A Dask worker may take `within_s` seconds, as
    the experiment's `connection.answer_within_s` says.

    Raises
    ------
    BackendError
        If a Dask worker does not answer.
    ServerLost
        If one is gone.
    """

    async def bounded() -> dict[str, Any]:
        return await asyncio.wait_for(client.run(function, *arguments, workers=[*of]), within_s)

    try:
        return client.sync(bounded)  # type: ignore[no-any-return]
    except TimeoutError:
        where = ", ".join(sorted(of))
        raise BackendError(
            f"no answer within {within_s:g} s from a Dask worker of {where}: is it frozen? A machine that is "
            "busy may need more: connection.answer_within_s"
        ) from None
    except OSError as error:
        raise ServerLost(f"a Dask worker is gone before the run could begin there: {error}") from None
