"""Run times that are known in closed form; tests hold the simulator against them."""

from __future__ import annotations

import numpy as np

from psbench.errors import ParameterError


def harmonic(n: int) -> float:
    return sum(1.0 / i for i in range(1, n + 1))


def exponential_order_statistic(k: int, n: int, rate: float = 1.0) -> float:
    """Return the mean of the k-th smallest of n exponential times: (H_n - H_(n-k)) / rate.

    The mean time of a round of k-BSP when step times are exponential and messages free.

    Parameters
    ----------
    k, n : int, 1 <= k <= n
    rate : float, per second, > 0

    Raises
    ------
    ParameterError

    Source
    ------
    Dutta et al., Slow and Stale Gradients Can Win the Race.

    Examples
    --------
    >>> [round(exponential_order_statistic(k, 8), 4) for k in (1, 2, 4, 8)]
    [0.125, 0.2679, 0.6345, 2.7179]
    """
    if not 1 <= k <= n:
        raise ParameterError(f"order statistic: k = {k} must lie between 1 and n = {n}")
    if not rate > 0:
        raise ParameterError(f"order statistic: rate must be positive, got {rate!r}")
    return (harmonic(n) - harmonic(n - k)) / rate


def shifted_exponential_slowest(n: int, spread: float) -> float:
    """Return the mean of the slowest of n factors of `ShiftedExponential(spread)`: 1 + spread (H_n - 1).

    Examples
    --------
    >>> round(shifted_exponential_slowest(5, spread=0.2), 4)
    1.2567
    """
    return 1.0 + spread * (harmonic(n) - 1.0)


def slowest_mean_of_exponentials(num_workers: int, steps: int) -> float:
    """Return E[max over workers of the mean of `steps` exponential times of mean 1].

    The integral of 1 - F(x)^num_workers, F the Erlang distribution of that shape and of mean 1, by the
    trapezoidal rule.

    Parameters
    ----------
    num_workers : int, >= 1
    steps : int, 1 to 500
        More would underflow in e^(-steps).

    Raises
    ------
    ParameterError

    Source
    ------
    AdaComm, Theorem 1, with exponential times.

    Examples
    --------
    >>> round(slowest_mean_of_exponentials(16, 1), 4), round(slowest_mean_of_exponentials(16, 10), 4)
    (3.3807, 1.6337)
    """
    if num_workers < 1 or not 1 <= steps <= 500:
        raise ParameterError(
            "slowest mean: give at least 1 worker and 1 to 500 steps, "
            f"got {num_workers} workers and {steps} steps"
        )
    # 1 - F decays like exp(-steps x): past this bound even num_workers times it is below 1e-12
    bound = 30.0 + np.log(num_workers) + 4.0 * steps
    scaled, width = np.linspace(0.0, bound, 200_001, retstep=True)
    survival = np.zeros_like(scaled)
    term = np.exp(-scaled)
    for j in range(1, steps + 1):
        survival += term
        term = term * scaled / j
    slowest_is_later = 1.0 - (1.0 - survival) ** num_workers
    ends = 0.5 * (slowest_is_later[0] + slowest_is_later[-1])
    return float((slowest_is_later.sum() - ends) * width / steps)


def local_sgd_step_seconds(num_workers: int, local_steps: int, communication_s: float) -> float:
    """Return AdaComm's Theorem 1: seconds per local step when step times are exponential with mean 1 s.

    E[slowest mean of `local_steps` times] + D / `local_steps`; local_steps = 1 is synchronous SGD.

    Examples
    --------
    >>> round(local_sgd_step_seconds(16, 1, 1.0) / local_sgd_step_seconds(16, 10, 1.0), 3)
    2.527
    """
    return slowest_mean_of_exponentials(num_workers, local_steps) + communication_s / local_steps


def best_local_steps(
    total_s: float,
    communication_s: float,
    lr: float,
    *,
    gap: float = 1.0,
    smoothness: float = 1.0,
    noise: float = 1.0,
) -> float:
    """Return AdaComm's Theorem 3: the period with the lowest error bound after `total_s` seconds.

    sqrt(2 gap D / (lr^3 L^2 sigma^2 T)) for constant step times; not a whole number.

    Parameters
    ----------
    total_s, communication_s : float, seconds, > 0
        T and D.
    lr : float
    gap, smoothness, noise : float
        F(x_1) - F_inf, L, and sigma^2, the variance of a mini-batch gradient.

    Examples
    --------
    >>> [round(best_local_steps(total_s, 1.0, lr=0.08), 3) for total_s in (100.0, 1000.0)]
    [6.25, 1.976]
    """
    return float(np.sqrt(2 * gap * communication_s / (lr**3 * smoothness**2 * noise * total_s)))
