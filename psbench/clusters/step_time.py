"""How much a step's time varies: distributions of the factor that multiplies a worker's mean step time.

Every distribution has mean 1 unless its docstring says otherwise, so that changing it changes how much the
workers vary and not how fast they are.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import model_validator

from psbench.core.part import Part
from psbench.core.specification import parameter
from psbench.errors import ParameterError


class StepTime(Part):
    """Base of the distributions of a step's factor."""

    domain: ClassVar[str] = "step_time"

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


class Constant(StepTime):
    """Every step takes its mean time.

    Notes
    -----
    Under constant, unequal speeds some strategies (k-BSP) never use the slow workers; good for worked
    examples, misleading for comparisons.

    Examples
    --------
    >>> Constant().draw(np.random.default_rng(0), 0, 2).tolist()
    [1.0, 1.0]
    """

    name: ClassVar[str] = "constant"
    source: ClassVar[str] = "worked examples"

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

    Source
    ------
    Dutta et al., Slow and Stale Gradients Can Win the Race (run-time analysis); AdaComm, Theorem 1.

    Examples
    --------
    >>> factors = ShiftedExponential(spread=0.5).draw(np.random.default_rng(0), 0, 1000)
    >>> bool(factors.min() >= 0.5)
    True
    """

    name: ClassVar[str] = "shifted_exponential"
    source: ClassVar[str] = "Dutta et al. 2018; AdaComm, Theorem 1"

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
    """factor = exp(sigma Z - sigma^2 / 2), Z standard normal: mean 1, variance exp(sigma^2) - 1.

    Parameters
    ----------
    sigma : float, > 0
        Standard deviation of the logarithm.

    Examples
    --------
    >>> LogNormal(sigma=0.2).sigma
    0.2
    """

    name: ClassVar[str] = "lognormal"
    source: ClassVar[str] = "Limpert et al. 2001, parameterised to mean 1"

    sigma: float = parameter(0.2, "standard deviation of the logarithm of a step's time", gt=0, le=3)

    def draw(self, rng: np.random.Generator, start: int, size: int) -> np.ndarray:
        """Return log-normal factors."""
        return rng.lognormal(-0.5 * self.sigma**2, self.sigma, size)


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

    name: ClassVar[str] = "pareto"
    source: ClassVar[str] = "Dean and Barroso, The Tail at Scale, 2013 (heavy tails)"

    shape: float = parameter(3.0, "tail index; smaller means rarer and much slower steps", gt=1, le=100)

    def draw(self, rng: np.random.Generator, start: int, size: int) -> np.ndarray:
        """Return factors of at least (shape - 1) / shape."""
        return (self.shape - 1.0) / self.shape * (1.0 + rng.pareto(self.shape, size))


class Trace(StepTime):
    """Measured factors.

    Parameters
    ----------
    factors : list of float, > 0, not empty
        Step times divided by the time that the profile gives for such a step. Taken as they are: their
        mean need not be 1.
    order : "resample" or "in_order"
        Draw from them with replacement, each worker from its own stream; or every worker goes through them
        from the first and begins again after the last.

    Examples
    --------
    >>> Trace(factors=[1, 2, 4], order="in_order").draw(np.random.default_rng(0), 2, 3).tolist()
    [4.0, 1.0, 2.0]
    """

    name: ClassVar[str] = "trace"
    source: ClassVar[str] = "measured"

    factors: tuple[float, ...] = parameter(
        (1.0,), "measured step times over their expected time", min_length=1, max_length=1_000_000
    )
    order: Literal["resample", "in_order"] = parameter(
        "resample", "draw with replacement, or replay in order"
    )

    @model_validator(mode="after")
    def _positive(self) -> Self:
        for factor in self.factors:
            if not 0 < factor < float("inf"):
                raise ParameterError(f"step_time 'trace': factors must be positive numbers, got {factor!r}")
        return self

    def draw(self, rng: np.random.Generator, start: int, size: int) -> np.ndarray:
        """Return measured factors."""
        factors = np.asarray(self.factors)
        if self.order == "in_order":
            return factors[np.arange(start, start + size) % len(factors)]
        return factors[(rng.random(size) * len(factors)).astype(np.int64)]
