"""Groups of workers that average among themselves, and change from exchange to exchange."""

from __future__ import annotations

from collections.abc import Sequence


def grid_group(worker: int, exchange: int, n: int, size: int) -> list[int]:
    """Return a worker's group of Moshpit averaging, itself included, in order.

    Workers stand on a grid with sides of `size`; a group is a line along one axis, the next axis at the next
    exchange. With n = size^d workers all have the exact mean after d exchanges; else the last lines are not
    full.

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
    return list(range(first, min(first + step * size, n), step))


def dimensions(n: int, size: int) -> int:
    """Return the axes of the smallest grid with sides of that length that has room for n workers.

    >>> dimensions(8, 2), dimensions(9, 2), dimensions(2, 3)
    (3, 4, 1)
    """
    return next(d for d in range(1, n.bit_length() + 1) if size**d >= n)


def level_group(worker: int, exchange: int, n: int, levels: Sequence[tuple[int, int]]) -> list[int]:
    """Return a worker's group of hierarchical averaging, itself included: alone if no level is due.

    Due is the level with the largest period that divides the number of steps made; its groups are of
    neighbouring numbers, the last one perhaps smaller.

    Parameters
    ----------
    levels : sequence of (period, size)
        A size of n or more is one group of all.

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
