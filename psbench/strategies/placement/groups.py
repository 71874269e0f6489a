"""Groups of workers that average among themselves, others at another exchange: Moshpit and hierarchical."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.errors import ParameterError


def grid_group(worker: int, exchange: int, n: int, size: int) -> list[int]:
    """Return a worker's group of Moshpit averaging, itself included, in order.

    Workers stand on a grid with sides of `size`; a group is a line along one axis, the next axis at the next
    exchange. With n = size^d workers all have the exact mean after d exchanges.

    Source
    ------
    Ryabinin et al. (2021), "Moshpit SGD: Communication-Efficient Decentralized Training on Heterogeneous
    Unreliable Devices", NeurIPS: here every group is full, and need not be looked for.

    Examples
    --------
    >>> grid_group(4, 0, 9, size=3), grid_group(4, 1, 9, size=3)
    ([3, 4, 5], [1, 4, 7])
    """
    step = size ** (exchange % dimensions(n, size))
    first = worker - worker // step % size * step
    return [first + step * place for place in range(size)]


def dimensions(n: int, size: int) -> int:
    """Return d with n = size^d.

    Raises
    ------
    ParameterError
        If there is none.
    """
    for d in range(1, n.bit_length() + 1):
        if size**d == n:
            return d
    full = [size**d for d in range(1, 20) if size**d <= 2 * n]
    raise ParameterError(
        f"placement 'gossip': {n} workers fill no grid with sides of group_size {size}; use {full} workers, "
        "or another group_size"
    )


def level_group(worker: int, exchange: int, n: int, levels: Sequence[tuple[int, int]]) -> list[int]:
    """Return a worker's group of hierarchical averaging, itself included: alone if no level is due.

    Due is the level with the largest period that divides the number of steps made; its groups are of
    neighbouring numbers.

    Parameters
    ----------
    levels : sequence of (period, size)

    Source
    ------
    torch's `HierarchicalModelAverager`, which counts steps from 0 and so averages once at the start.

    Examples
    --------
    >>> [level_group(2, exchange, 4, levels=[(1, 2), (4, 4)]) for exchange in (0, 3)]
    [[2, 3], [0, 1, 2, 3]]
    """
    due = [(period, size) for period, size in levels if (exchange + 1) % period == 0]
    size = max(due)[1] if due else 1
    first = worker - worker % size
    return list(range(first, min(first + size, n)))


def check_levels(levels: Sequence[tuple[int, int]], n: int) -> None:
    """Raise ParameterError if groups are no groups of so many workers."""
    for period, size in levels:
        if n % size:
            raise ParameterError(
                f"placement 'gossip': levels: {n} workers do not divide into groups of {size} (every "
                f"{period} steps); use sizes that divide {n}"
            )
