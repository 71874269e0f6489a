"""Calls of functions on Dask workers that do not wait for one that is frozen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from distributed import Client

from psbench.errors import BackendError, ServerLost

#: seconds that a Dask worker may take to answer: one that was started a moment ago on a busy machine is still
#: importing
_ANSWER_S = 60.0


def ask(client: Client, function: Callable[..., Any], *arguments: Any, of: Collection[str]) -> dict[str, Any]:
    """Call a function on Dask workers, and return what it returned by their addresses.

    The scheduler passes the call on, and stores nothing of it.

    Raises
    ------
    BackendError
        If a Dask worker does not answer.
    ServerLost
        If one is gone.
    """

    async def bounded() -> dict[str, Any]:
        return await asyncio.wait_for(client.run(function, *arguments, workers=[*of]), _ANSWER_S)

    try:
        return client.sync(bounded)  # type: ignore[no-any-return]
    except TimeoutError:
        where = ", ".join(sorted(of))
        raise BackendError(
            f"no answer within {_ANSWER_S:g} s from a Dask worker of {where}: is it frozen?"
        ) from None
    except OSError as error:
        raise ServerLost(f"a Dask worker is gone before the run could begin there: {error}") from None
