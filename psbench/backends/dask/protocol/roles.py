"""Names and addresses of the processes of a live run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from psbench.core.collective import Collective, servers_that_add
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.strategy import Strategy
from psbench.experiment import Experiment

COORDINATOR = "coordinator"
CLIENT = "client"
EVALUATOR = "evaluator"
REPLICA = "replica"
#: more names than this are counted in a sentence, not listed
_LISTED = 6


class Address(NamedTuple):
    """The address of a server socket, which includes whether it encrypts."""

    url: str


class RunKey(bytes):
    """A run's key, which no log or page shows: Dask prints the arguments of a call that fails."""

    def __repr__(self) -> str:
        return "RunKey(...)"

    __str__ = __repr__


@cache  # every message asks
def worker_name(worker: int) -> str:
    """Return the name of a training worker.

    >>> worker_name(3)
    'worker 3'
    """
    return f"worker {worker}"


def names_or_count(names: Sequence[str], total: int, kind: str) -> str:
    """Return names for a sentence: all of them, or the number and the first one if there are many.

    >>> names_or_count(["worker 3", "worker 5"], 130, "workers")
    'worker 3, worker 5'
    >>> names_or_count([worker_name(worker) for worker in range(70, 128)], 130, "workers")
    '58 of 130 workers, worker 70 first'
    """
    if len(names) <= _LISTED:
        return ", ".join(names)
    return f"{len(names)} of {total} {kind}, {names[0]} first"


def server_name(number: int) -> str:
    """Return the name of a parameter server; server 0 is part of the coordinator's process.

    >>> server_name(1)
    'server 1'
    """
    return f"server {number}"


@cache
def worker_number(name: str) -> int | None:
    """Return the number of the training worker with that name, or None if it names another role.

    >>> worker_number("worker 3"), worker_number("server 1")
    (3, None)
    """
    kind, _, number = name.partition(" ")
    return int(number) if kind == "worker" and number.isdecimal() else None


def servers_of(composition: Strategy) -> int:
    """Return the number of servers of a composition, including summing servers; 0 if it has none."""
    placement = composition.placement
    serverless = isinstance(placement, (Collective, PeerToPeer))
    return servers_that_add(placement) if serverless else placement.num_servers


def roles_of(experiment: Experiment) -> list[str]:
    """Return the tasks of a run by name: servers and their replica, training workers, and the evaluator."""
    servers = max(servers_of(composition) for composition in experiment.strategy.compositions)
    return [
        *(COORDINATOR, *map(server_name, range(1, servers))),
        *([REPLICA] if experiment.recovery.replicas else []),
        *(*map(worker_name, range(experiment.num_workers)), EVALUATOR),
    ]


def first_roles(experiment: Experiment) -> tuple[list[str], int]:
    """Return the tasks of a run, and how many of the first ones it needs to start."""
    roles, fewest = roles_of(experiment), experiment.recovery.min_workers
    later = [] if fewest is None else [worker_name(w) for w in range(fewest, experiment.num_workers)]
    return [role for role in roles if role not in later] + later, len(roles) - len(later)
