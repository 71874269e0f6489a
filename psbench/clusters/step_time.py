"""Variation of a step's time: distributions of the factor on a worker's mean step time.

Every distribution has mean 1 unless its docstring says otherwise, so that changing it changes how much the
workers vary and not how fast they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from psbench.arrays import Doubles
from psbench.core import Part, parameter


class StepTime(Part):
    """Base of the distributions of a step's factor."""

    domain = "step_time"
    #: whether what is drawn are seconds, instead of factors of what the profile gives
    in_seconds: ClassVar[bool] = False
    #: the batch that seconds belong to; None if they do not depend on it
    measured_samples: ClassVar[int | None] = None

    def draw(self, rng: np.random.Generator, start: int, size: int) -> np.ndarray:
        """Return the factors number `start` to `start + size - 1` of a worker.

        Parameters
        ----------
        rng : numpy.random.Generator
            The worker's own stream, from which `start` factors were drawn before.
        start, size : int

        Returns
        -------
        float64, (size,), > 0
        """
        raise NotImplementedError(f"{type(self).__name__} must define draw")

    def series(self, worker: int, rng: np.random.Generator) -> Callable[[int], Doubles]:
        """Return a function that gives a worker's next factors, from the first on.

        `rng` is the worker's own stream. How many are asked for at a time changes nothing.
        """
        return self._counted(lambda start, size: self.draw(rng, start, size))

    def _counted(self, drawn: Callable[[int, int], Doubles]) -> Callable[[int], Doubles]:
        """Return a function of the size, made from a function of start and size."""
        start = 0

        def following(size: int) -> Doubles:
            nonlocal start
            start += size
            return drawn(start - size, size)

        return following

    def check_workers(self, num_workers: int) -> None:
        """Raise ParameterError if the distribution does not fit a cluster of that size."""

    def begin(self, num_workers: int) -> None:
        """Read the file of a trace, if there is one; called before the first step."""

    def length(self, worker: int) -> int | None:
        return None


class Constant(StepTime):
    """Every step takes its mean time.

    Notes
    -----
    Under constant, unequal speeds some strategies (k-BSP) never use the slow workers; good for worked
    examples, misleading for comparisons.
    """

    name = "constant"
    source = "worked examples"

    def draw(self, rng: np.random.Generator, start: int, size: int) -> np.ndarray:
        """Return ones."""
        return np.ones(size)


class ShiftedExponential(StepTime):
    """A fixed part and an exponential tail: factor = (1 - spread) + spread X, X exponential with mean 1.

    Parameters
    ----------
    spread : float, 0 to 1
        Standard deviation of the factor. 0 is constant and 1 the plain exponential of the run-time theory.

    Notes
    -----
    The mean of the slowest of n is 1 + spread (H_n - 1), H_n the n-th harmonic number. The default 0.2 is
    chosen by hand so that equal workers gain about as much from not waiting as in Strategy-Switch's C1,
    where ASP is about 1.17 times as fast as All-Reduce: played with ResNet-20's bytes it gives 1.14. A
    smaller value makes barriers nearly free, a larger one makes them look worse than published.

    Examples
    --------
    >>> factors = ShiftedExponential(spread=0.5).draw(np.random.default_rng(0), 0, 1000)
    >>> bool(factors.min() >= 0.5)
    True
    """

    name = "shifted_exponential"
    source = "Dutta et al. 2018; AdaComm, Theorem 1"

    spread: float = parameter(
        0.2,
        "standard deviation of a step's time as a share of its mean",
        source="Strategy-Switch, C1",
        ge=0,
        le=1,
    )

    def draw(self, rng: np.random.Generator, start: int, size: int) -> np.ndarray:
        """Return factors of at least 1 - spread."""
        return (1.0 - self.spread) + self.spread * rng.standard_exponential(size)


class LogNormal(StepTime):
    """factor = shift + (1 - shift) exp(sigma Z - sigma^2 / 2), Z standard normal: mean 1.

    Parameters
    ----------
    correlation : float, 0 to 1
        rho, of the logarithms of two steps in a row: a worker that is slow now is probably slow in the next
        step. 0: steps are independent; 1: all steps of a worker take the same time.
    shift : float, 0 to 1
        What every step takes at least. The variance is (1 - shift)^2 (exp(sigma^2) - 1).
    stalls, stall : float
        What share of the steps stalls, and for how long on average, in means of the others: an exponential
        time is added to such a step, whatever the one before took. Factors are divided by 1 + stalls * stall.

    Notes
    -----
    The logarithm of what is over the shift is an autoregressive process of first order,
    Z_t = rho Z_(t-1) + sqrt(1 - rho^2) e_t with standard normal e_t, which begins in its stationary
    distribution: single steps are distributed as without correlation. Logarithms k steps apart are
    correlated by rho^k, and the factors, without a shift, by
    (exp(sigma^2 rho^k) - 1) / (exp(sigma^2) - 1).
    """

    name = "lognormal"
    source = "Limpert et al. 2001, parameterised to mean 1; Box and Jenkins 1970, sec. 3.2 (AR(1))"

    sigma: float = parameter(0.2, "standard deviation of the logarithm of a step's time", gt=0, le=3)
    correlation: float = parameter(
        0.0,
        "correlation of the logarithms of a worker's successive steps",
        source="Box and Jenkins 1970, AR(1)",
        ge=0,
        le=1,
    )
    shift: float = parameter(0.0, "smallest step time, as a share of the mean", ge=0, lt=1)
    stalls: float = parameter(0.0, "share of the steps that stall", ge=0, le=1)
    stall: float = parameter(0.0, "mean duration of a stall, in mean times of the other steps", ge=0)

    def draw(self, rng: np.random.Generator, start: int, size: int) -> np.ndarray:
        """Return log-normal factors of a new series, possibly correlated or with stalls; ignores `start`."""
        if self.correlation or self.stalls:
            return self.series(0, rng)(size)
        return self._independent(rng, size)

    def _independent(self, rng: np.random.Generator, size: int) -> Doubles:
        return self._shifted(rng.lognormal(-0.5 * self.sigma**2, self.sigma, size))

    def _shifted(self, factors: Doubles) -> Doubles:
        return self.shift + (1.0 - self.shift) * factors if self.shift else factors

    def series(self, worker: int, rng: np.random.Generator) -> Callable[[int], Doubles]:
        """Return a generator function of a worker's next factors."""
        if not self.stalls:
            return self._smooth(rng)
        smooth, whether, how_long = self._smooth(rng), *rng.spawn(2)
        scale = 1.0 + self.stalls * self.stall

        def following(size: int) -> Doubles:
            stalled = whether.random(size) < self.stalls
            return (smooth(size) + self.stall * stalled * how_long.standard_exponential(size)) / scale

        return following

    def _smooth(self, rng: np.random.Generator) -> Callable[[int], Doubles]:
        """Return a generator function of the next factors, without stalls."""
        if not self.correlation:
            return lambda size: self._independent(rng, size)
        kept, fresh = self.correlation, math.sqrt(1.0 - self.correlation**2)
        last: float | None = None

        def following(size: int) -> Doubles:
            nonlocal last
            values = rng.standard_normal(size).tolist()
            for place, noise in enumerate(values):
                last = noise if last is None else kept * last + fresh * noise
                values[place] = last
            return self._shifted(np.exp(self.sigma * np.array(values) - 0.5 * self.sigma**2))

        return following


class Pareto(StepTime):
    """A heavy tail: P(factor > x) = (m / x)^shape for x >= m, with m = (shape - 1) / shape for mean 1.

    Parameters
    ----------
    shape : float, > 1
        Tail index; the smaller, the worse the rare slow step. The variance is infinite up to 2.

    Examples
    --------
    >>> bool(Pareto(shape=3).draw(np.random.default_rng(0), 0, 100).min() >= 2 / 3)
    True
    """

    name = "pareto"
    source = "Dean and Barroso, The Tail at Scale, 2013 (heavy tails)"

    shape: float = parameter(
        3.0, "tail index; a smaller value gives rarer and much slower steps", gt=1, le=100
    )

    def draw(self, rng: np.random.Generator, start: int, size: int) -> np.ndarray:
        """Return factors of at least (shape - 1) / shape."""
        return (self.shape - 1.0) / self.shape * (1.0 + rng.pareto(self.shape, size))
