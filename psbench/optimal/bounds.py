"""The worst-case optimal time of a cluster: what a method guarantees, and what no method can guarantee.

Both are about the first time at which the expected squared norm of the gradient of an L-smooth, possibly not
convex f is at most eps. Worker i takes tau_i seconds for a stochastic gradient with variance sigma^2,
messages take no time, and Delta = f(x0) - inf f.

Source
------
Tyurin and Richtarik 2023, for the rates and for their optimality:

    min over m of (1/m sum_(i<=m) 1/tau_i)^-1 (L Delta / eps + sigma^2 L Delta / (m eps^2))    like data,
    tau_n L Delta / eps + (1/n sum tau_i) sigma^2 L Delta / (n eps^2)                          unlike data.

We have not seen the proofs of that paper. The constants are those of Tyurin and Richtarik 2024, which proves
both bounds again, with times for messages, which are 0 here: Theorems 4 and 8 (16 L Delta / eps iterations),
9 (the time of an iteration with unlike data), 19 and Lemma 1 (the hard function, after Carmon et al. 2020
and Arjevani et al. 2022). Where that proof loses a factor to messages, `Bound` shows our own step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psbench.arrays import Doubles
from psbench.errors import ParameterError

#: iterations of Rennala and Malenia SGD, in units of L Delta / eps, at the rate 1/(2L)
ITERATIONS = 16
#: of the hard function F_T: F_T(0) - inf F_T <= 12 T, its smoothness, and the largest entry of its gradient
GAP, SMOOTHNESS, LARGEST = 12, 152, 23


@dataclass(frozen=True)
class Bound:
    """The worst-case optimal time of a cluster for one problem.

    Parameters
    ----------
    step_s : tuple of float, > 0
        tau_i: the expected seconds of each worker's stochastic gradient.
    smoothness : float, > 0
        L, the Lipschitz constant of the gradient.
    variance : float, >= 0
        sigma^2, of a stochastic gradient; with unlike data around the gradient of the worker's own loss.
    gap : float, > 0
        Delta, the loss at the start above its infimum.
    like_data : bool
        Whether all workers draw from the same distribution.

    Notes
    -----
    *What is guaranteed.* Rennala SGD (like data) with batches of S = max(ceil(sigma^2 / eps), 1) and the rate
    1/(2L) needs ceil(16 L Delta / eps) iterations (2024, Theorem 4). By the time t the fastest m workers have
    finished at least t sum 1/tau_i - m gradients, so an iteration takes at most (S + m) / sum_(i<=m) 1/tau_i
    for any m. Malenia SGD (unlike data) with S = max(ceil(sigma^2 / eps), n) needs as many (Theorem 8), of at
    most 2 (max tau_i + S/n mean tau_i) each (Theorem 9). If eps <= 16 L Delta, these are at most 64 times the
    rates of 2023 with like data, and 128 times with unlike data.

    *What is not.* The hard function is a chain of T = floor(L Delta / (3648 eps)) coordinates. A stochastic
    gradient shows the next one with probability p = min(1058 eps / sigma^2, 1) only, and until the last one
    is found, the squared gradient norm is above 2 eps. Finding one takes X = min_i tau_i G_i with geometric
    G_i, whatever the method. X is new better than used, so its standard deviation is at most its mean, and by
    Cantelli's inequality the T of them take longer than (T - sqrt(T)) E[X] with probability 1/2: until then
    the expectation is above eps. Always, X >= min tau_i. This holds for unlike data too, where our bound is
    loose: it leaves out that a worker may be the only one that knows a coordinate.
    """

    step_s: tuple[float, ...]
    smoothness: float
    variance: float
    gap: float
    like_data: bool = True

    def __post_init__(self) -> None:
        numbers = {"smoothness": self.smoothness, "gap": self.gap}
        bad = {name: value for name, value in numbers.items() if not 0 < value < math.inf}
        if not 0 <= self.variance < math.inf:
            bad["variance"] = self.variance
        if not self.step_s or not all(0 < each < math.inf for each in self.step_s):
            bad["step_s"] = float("nan") if not self.step_s else min(self.step_s)
        for name, value in bad.items():
            least = ">= 0" if name == "variance" else "> 0"
            raise ParameterError(f"optimal time: {name} = {value:g}: must be finite and {least}")

    def guaranteed(self, target: float) -> float:
        """Return the seconds in which a method reaches eps = `target`, whatever the problem.

        Examples
        --------
        >>> Bound((1.0, 2.0), smoothness=1.0, variance=0.0, gap=1.0).guaranteed(0.5)
        64.0
        """
        batch = max(math.ceil(self.variance / _positive(target)), 1 if self.like_data else len(self.step_s))
        return math.ceil(ITERATIONS * self.smoothness * self.gap / target) * self.iteration_s(batch)

    def iteration_s(self, batch: int) -> float:
        """Return the longest time of an iteration: until the workers have `batch` gradients of one model.

        With unlike data, until the harmonic mean of their numbers is `batch` / n.
        """
        tau = np.sort(np.asarray(self.step_s))
        if not self.like_data:
            return float(2 * (tau[-1] + batch / len(tau) * tau.mean()))
        fastest = np.arange(1, len(tau) + 1)
        return float(((batch + fastest) / np.cumsum(1 / tau)).min())

    def rate(self, target: float) -> float:
        """Return the optimal rate of Tyurin and Richtarik 2023, without its constant."""
        tau, eps = np.sort(np.asarray(self.step_s)), _positive(target)
        rounds, noise = self.smoothness * self.gap / eps, self.variance / eps
        if not self.like_data:
            return float(rounds * (tau[-1] + tau.mean() * noise / len(tau)))
        fastest = np.arange(1, len(tau) + 1)
        return float((fastest / np.cumsum(1 / tau) * rounds * (1 + noise / fastest)).min())

    def unavoidable(self, target: float) -> float:
        """Return seconds in which no zero-respecting method reaches eps = `target` on the hard function.

        0 if eps is so large that the hard function has no coordinate.
        """
        coordinates, chance = self.hard(target)
        tau = np.sort(np.asarray(self.step_s))
        mean = _mean_first(tau, chance)
        return max(coordinates * float(tau[0]), (coordinates - math.sqrt(coordinates)) * mean)

    def hard(self, target: float) -> tuple[int, float]:
        """Return T and p of the hard function: its coordinates, and the chance that the next one is seen."""
        eps = _positive(target)
        # what is exact in numbers must not be lost to their rounding
        coordinates = math.floor(self.smoothness * self.gap / (2 * SMOOTHNESS * GAP * eps) * (1 + 1e-12))
        chance = 1.0 if not self.variance else min(2 * LARGEST**2 * eps / self.variance, 1.0)
        return coordinates, chance


def _positive(target: float) -> float:
    if not 0 < target < math.inf:
        raise ParameterError(f"optimal time: target = {target:g}: must be finite and > 0")
    return target


def _mean_first(tau: Doubles, chance: float) -> float:
    """Return a lower bound of E[min_i tau_i G_i], exact at p = 1.

    The bound is the integral of (1 - p)^N(t) with N(t) = sum over tau_i <= t of t / tau_i instead of its
    floor: constant up to the fastest worker's time, and between the times of two workers an exponential.
    """
    if chance == 1.0:
        return float(tau[0])
    speed = -math.log1p(-chance) * np.cumsum(1 / tau)
    ends = np.append(tau[1:], np.inf)
    return float(tau[0] + ((np.exp(-speed * tau) - np.exp(-speed * ends)) / speed).sum())
