"""What the processes of a run call each other on the wire."""

from __future__ import annotations

CONDUCTOR = "conductor"
CLIENT = "client"
EVALUATOR = "evaluator"


def worker_name(worker: int) -> str:
    """Return the name of a training worker.

    >>> worker_name(3)
    'worker 3'
    """
    return f"worker {worker}"


def server_name(shard: int) -> str:
    """Return the name of a server shard; shard 0 is the conductor's own.

    >>> server_name(1)
    'server 1'
    """
    return f"server {shard}"


def worker_number(name: str) -> int | None:
    """Return which training worker has that name, None if it is no training worker's.

    >>> worker_number("worker 3"), worker_number("server 1")
    (3, None)
    """
    kind, _, number = name.partition(" ")
    return int(number) if kind == "worker" else None
