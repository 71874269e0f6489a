"""Closed forms for comparison with runs, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from psbench.errors import UnknownName
from psbench_papers.theory import (
    exponential_order_statistic,
    local_sgd_step_seconds,
    shifted_exponential_slowest,
)


def switch_speed_up(f: float, a: float) -> float:
    """Return the speed-up over the first strategy of one that switches: 1 / (f + (1 - f) / a).

    Parameters
    ----------
    f : float, 0 to 1
        Share of the epochs under the first strategy.
    a : float
        Speed-up of the second strategy over the first.

    Examples
    --------
    >>> round(switch_speed_up(26 / 182, 2.48), 3)
    2.047
    """
    return 1.0 / (f + (1.0 - f) / a)


def local_sgd_speed_up(m: float, tau: float, d: float) -> float:
    """Return AdaComm's Theorem 1: synchronous over PASGD, exponential steps of mean 1 and an exchange of d.

    Examples
    --------
    >>> round(local_sgd_speed_up(16, 10, 1.0), 3)
    2.527
    """
    return local_sgd_step_seconds(int(m), 1, d) / local_sgd_step_seconds(int(m), int(tau), d)


def k_bsp_round(n: float, k: float) -> float:
    """Return the mean of the k-th smallest of n exponential times of mean 1."""
    return exponential_order_statistic(int(k), int(n))


def ring_over_server(n: float) -> float:
    """Return a ring's traffic per worker and update relative to the exchange with a server.

    2 (n - 1) / n vectors against 2, one up and one down.

    Examples
    --------
    >>> ring_over_server(5)
    0.8
    """
    return (n - 1) / n


def free_workers(share_fast: float, share_half: float, share_quarter: float) -> float:
    """Return the ratio of steps per second without and with a barrier, for free messages.

    sum(speed) / (n min(speed)) for three kinds of machine, of speed 1, 1/2 and 1/4.

    Examples
    --------
    >>> round(free_workers(5, 2, 2), 3)
    2.889
    """
    n = share_fast + share_half + share_quarter
    speed = share_fast + share_half / 2 + share_quarter / 4
    slowest = 0.25 if share_quarter else 0.5 if share_half else 1.0
    return speed / (n * slowest)


def slowest_of(n: float, spread: float) -> float:
    """Return the mean of the slowest of n shifted exponential step times over the mean of one."""
    return shifted_exponential_slowest(int(n), spread)


def error_floor(tau: float, m: float, eta: float) -> float:
    """Return AdaComm's Theorem 2 after unlimited time, with L and sigma 1: eta / m + eta^2 (tau - 1).

    Examples
    --------
    >>> round(error_floor(1, 16, 0.08), 4), round(error_floor(10, 16, 0.08), 4)
    (0.005, 0.0626)
    """
    return eta / m + eta**2 * (tau - 1)


FORMULAS: dict[str, Callable[..., float]] = {
    formula.__name__: formula
    for formula in (
        switch_speed_up,
        local_sgd_speed_up,
        k_bsp_round,
        ring_over_server,
        free_workers,
        slowest_of,
        error_floor,
    )
}


def evaluate(formula: str, arguments: Mapping[str, float]) -> float:
    """Return a closed form by name.

    Raises
    ------
    UnknownName
    """
    if formula not in FORMULAS:
        raise UnknownName("closed form", formula, FORMULAS)
    return FORMULAS[formula](**arguments)
