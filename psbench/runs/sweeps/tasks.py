"""Cells as tasks of a Dask cluster, on the caller's client; this module does not import Dask."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from psbench.runs.sweeps.worker import CellMessage, run_packed


def on_cluster(packed: Sequence[bytes], client: Any) -> Iterator[tuple[int, CellMessage]]:
    """Run packed cells as tasks, and yield each cell's index and answer as it ends.

    Parameters
    ----------
    packed : sequence of bytes
    client : distributed.Client
        Of a cluster whose workers have psbench installed. What a cell leaves comes back through it, so that
        its workers need no folder in common with this process.
    """
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    name = f"psbench-sweep-{secrets.token_hex(8)}"
    futures = []
    try:
        for place, content in enumerate(packed):
            future = client.submit(run_packed, content, key=f"{name}-{place}", pure=False)
            futures.append(future)
            future.add_done_callback(partial(_note, ended, place))
        for _ in packed:
            place = ended.get()
            yield place, ("done", _result(futures[place]))
    finally:
        client.cancel(futures)


def _note(ended: queue.SimpleQueue[int], place: int, _: Any) -> None:
    ended.put(place)


def _result(future: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = future.result()
    except Exception as error:  # a lost worker, a cancelled task, a worker without psbench
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    return found
