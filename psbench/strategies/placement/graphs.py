"""Exchange graphs of workers without a server: the receivers at each exchange.

Pure functions of the worker, the number of its exchange and the number of workers, so that every process
finds the same neighbours without asking.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil, isqrt, log2
from typing import Literal, TypeAlias

import numpy as np

from psbench.arrays import Doubles
from psbench.errors import ParameterError

GraphName: TypeAlias = Literal[
    "ring",
    "torus",
    "exponential",
    "one_peer_exponential",
    "complete",
    "time_varying_ring",
    "random_pairs",
    "moshpit",
    "hierarchical",
]


def _ring(worker: int, exchange: int, n: int, seed: int) -> list[int]:
    return [(worker - 1) % n, (worker + 1) % n]


def _torus(worker: int, exchange: int, n: int, seed: int) -> list[int]:
    rows = _rows(n)
    columns = n // rows
    row, column = divmod(worker, columns)
    return [
        *(((row + step) % rows) * columns + column for step in (-1, 1)),
        *(row * columns + (column + step) % columns for step in (-1, 1)),
    ]


def _rows(n: int) -> int:
    """Return the number of grid rows: the largest divisor of n not above sqrt(n)."""
    return next(rows for rows in range(isqrt(n), 0, -1) if n % rows == 0)


def _hops(n: int) -> int:
    return max(1, ceil(log2(n)))


def _exponential(worker: int, exchange: int, n: int, seed: int) -> list[int]:
    return [(worker + (1 << hop)) % n for hop in range(_hops(n))]


def _one_peer_exponential(worker: int, exchange: int, n: int, seed: int) -> list[int]:
    return [(worker + (1 << exchange % _hops(n))) % n]


def _complete(worker: int, exchange: int, n: int, seed: int) -> list[int]:
    return list(range(n))


def _time_varying_ring(worker: int, exchange: int, n: int, seed: int) -> list[int]:
    order = _shuffled(exchange, n, seed)
    place = order.index(worker)
    return [order[(place - 1) % n], order[(place + 1) % n]]


def _random_pairs(worker: int, exchange: int, n: int, seed: int) -> list[int]:
    order = _shuffled(exchange, n, seed)
    place = order.index(worker) ^ 1
    return [order[place]] if place < n else []


@lru_cache(maxsize=1024)
def _shuffled(exchange: int, n: int, seed: int) -> list[int]:
    return [
        int(worker) for worker in np.random.Generator(np.random.PCG64([seed, exchange, n])).permutation(n)
    ]


_RECEIVERS: dict[str, Callable[[int, int, int, int], list[int]]] = {
    "ring": _ring,
    "torus": _torus,
    "exponential": _exponential,
    "one_peer_exponential": _one_peer_exponential,
    "complete": _complete,
    "time_varying_ring": _time_varying_ring,
    "random_pairs": _random_pairs,
}
#: graphs whose edges have a direction
DIRECTED = ("exponential", "one_peer_exponential")


def receivers(graph: str, worker: int, exchange: int, n: int, seed: int = 0) -> list[int]:
    """Return the workers that a worker sends to at an exchange: in order, without itself or repetitions.

    Parameters
    ----------
    graph : str
        ring: the one before and the one after. torus: the four next to it on a grid whose sides are as equal
        as n allows. exponential: those 1, 2, 4, ... places on; one_peer_exponential: one of these, the next
        at the next exchange. complete: all. time_varying_ring: the two beside it in an order that is redrawn
        for each exchange. random_pairs: one, in a matching that is drawn for each exchange; with an odd
        number of workers one has no partner.
    worker, n : int
    exchange : int
        Its number, from 0; only the graphs that vary depend on it.
    seed : int
        Of the graphs that are drawn.

    Source
    ------
    Ring and torus: Lian et al. (2017). Exponential and one-peer exponential: Assran et al. (2019).

    Examples
    --------
    >>> receivers("ring", 0, 0, 5), receivers("ring", 0, 0, 2), receivers("ring", 0, 0, 1)
    ([4, 1], [1], [])
    >>> [receivers("one_peer_exponential", 3, exchange, 8) for exchange in range(4)]
    [[4], [5], [7], [4]]
    """
    found = dict.fromkeys(_RECEIVERS[graph](worker, exchange, n, seed))
    found.pop(worker, None)
    return list(found)


def senders(graph: str, worker: int, exchange: int, n: int, seed: int = 0) -> list[int]:
    """Return the workers that a worker receives from at an exchange; see `receivers`.

    Examples
    --------
    >>> senders("one_peer_exponential", 3, 1, 8)
    [1]
    """
    if graph not in DIRECTED:
        return receivers(graph, worker, exchange, n, seed)
    # all workers send equally far: it receives from those as far behind it as it sends ahead
    ahead = [(other - worker) % n for other in receivers(graph, worker, exchange, n, seed)]
    return sorted((worker - hop) % n for hop in ahead)


def weights(graph: str, exchange: int, n: int, seed: int = 0) -> Doubles:
    """Return the mixing matrix W of an exchange of all workers: w_i <- sum_j W_ij w_j.

    Undirected edges weigh 1/(1 + the larger degree of their ends) (Metropolis and Hastings), which makes W
    symmetric and doubly stochastic; directed ones share each sender equally among itself and its receivers.

    Returns
    -------
    float64 array, (n, n)
        Its columns sum to 1; its rows too, as all these graphs are regular or symmetric.
    """
    found = np.zeros((n, n))
    degree = [len(receivers(graph, worker, exchange, n, seed)) for worker in range(n)]
    for worker in range(n):
        for other in receivers(graph, worker, exchange, n, seed):
            larger = degree[worker] if graph in DIRECTED else max(degree[worker], degree[other])
            found[other, worker] = 1.0 / (1.0 + larger)
        found[worker, worker] = 1.0 - found[:, worker].sum()
    return found


def spectral_gap(matrix: Doubles) -> float:
    """Return 1 - rho: rho is the second largest singular value of a mixing matrix, its distance to the mean.

    Without gradients the squared consensus distance shrinks by at least rho squared at each exchange.

    Examples
    --------
    >>> round(spectral_gap(weights("complete", 0, 6)), 12)
    1.0
    >>> round(spectral_gap(weights("ring", 0, 4)), 6)  # 1 - (1 + 2 cos(2 pi/n))/3
    0.666667
    """
    n = len(matrix)
    singular = np.linalg.svd(matrix - np.full((n, n), 1.0 / n), compute_uv=False)
    return 1.0 - float(singular[0])


def edges(graph: str, exchange: int, n: int, seed: int = 0) -> list[tuple[int, int]]:
    """Return the edges of an exchange, from sender to receiver: `networkx.DiGraph` draws such a list.

    Examples
    --------
    >>> edges("one_peer_exponential", 0, 3)
    [(0, 1), (1, 2), (2, 0)]
    """
    return [(worker, other) for worker in range(n) for other in receivers(graph, worker, exchange, n, seed)]


def check_graph(graph: str, n: int) -> None:
    """Raise ParameterError if there is no such graph of n workers."""
    if n < 2:
        raise ParameterError(
            f"placement 'gossip': {n} worker has no neighbour; use a cluster of 2 or more, "
            "or placement 'parameter_server'"
        )
    if graph == "torus" and _rows(n) < 2:
        raise ParameterError(
            f"placement 'gossip': {n} workers cannot form a torus, as {n} is prime; use graph 'ring', or "
            f"{n + 1} workers"
        )
