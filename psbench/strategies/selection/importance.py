"""Samples with large gradients, weighted so that the expected gradient stays the same."""

from __future__ import annotations

import math

import numpy as np

from psbench.arrays import Doubles, Integers
from psbench.core import Memory, Orders, Selection, parameter
from psbench.core.selection import NOTHING, Choice, Rng
from psbench.strategies.selection.ranks import drawn_by

_PAPER = "Katharopoulos and Fleuret 2018"


class Importance(Selection):
    """Draw samples in proportion to a bound of their gradients' norms, and weight them by 1/(N p).

    The bound is the norm of the loss's gradient with respect to the model's outputs. A mini-batch of b is
    drawn from `candidates` * b samples, which are drawn uniformly and computed first; with 0 candidates it is
    drawn from the whole shard by the norms that are known, which costs nothing and is stale. The weighted
    mean gradient has the expectation of the plain one. Importance is used only while it saves more variance
    than it costs time, and uniform draws otherwise.

    Notes
    -----
    Reduces to: `with_replacement` if all norms are equal.
    The variance of a mini-batch of b is that of a uniform one of tau b, with tau = sqrt(B sum g_i^2), where g
    are the norms of B samples over their sum. Computing B candidates pays if B + 3 b < 3 tau b. These
    formulas and the defaults are also those of the authors' code, idiap/importance-sampling 08b9451. There
    tau is 0 at first; here it is 1, that of equal norms. Our reading: samples whose norm is not known count
    with the mean of the others, and `floor` adds a share of that mean to all, so that stale norms never rule
    a sample out.
    """

    name = "importance"
    source = f"{_PAPER}, Algorithm 1; stale norms: Alain et al. 2015"
    remembers = ("norm",)

    candidates: float = parameter(
        3.0,
        "candidates per sample; 0: all, by their last known norms",
        source=_PAPER,
        ge=0,
        le=1000,
    )
    smoothing: float = parameter(
        0.9, "weight of earlier values in the average of tau", source=_PAPER, ge=0, lt=1
    )
    floor: float = parameter(0.1, "share of the mean norm that is added to every norm", ge=0)

    def look(self, size: int, rng: Rng, memory: Memory, orders: Orders) -> Integers:
        """Draw candidates if importance pays."""
        memory.state["candidates"] = NOTHING
        if not self.candidates or not self._pays(memory):
            return NOTHING
        drawn = memory.uniform(max(size, round(self.candidates * size)), rng)
        memory.state["candidates"] = drawn
        return drawn

    def choose(self, size: int, rng: Rng, memory: Memory, orders: Orders) -> Choice:
        """Draw from the candidates, or from the shard."""
        if not self._pays(memory):
            return memory.uniform(size, rng)
        among = memory.state["candidates"] if self.candidates else np.arange(len(memory))
        p = self._probabilities(memory.norm[among])
        drawn = drawn_by(p, size, rng)
        self._note(memory.norm[among], memory)
        return among[drawn], 1 / (len(among) * p[drawn])

    def learn(self, positions: Integers, memory: Memory) -> None:
        """Estimate the saving of importance sampling from a uniform mini-batch."""
        if not self._pays(memory):
            self._note(memory.norm[positions], memory)

    def _pays(self, memory: Memory) -> bool:
        tau: float = memory.state.get("tau", 1.0)
        return tau > 1 + self.candidates / 3 + _ROUNDING

    def _note(self, norms: Doubles, memory: Memory) -> None:
        p = self._probabilities(norms)
        tau = math.sqrt(len(p) * float(np.square(p).sum()))
        memory.state["tau"] = self.smoothing * memory.state.get("tau", 1.0) + (1 - self.smoothing) * tau

    def _probabilities(self, norms: Doubles) -> Doubles:
        known = np.isfinite(norms)
        mean = norms[known].mean() if known.any() else 0.0
        if mean <= 0:
            return np.full(len(norms), 1 / len(norms))
        filled = np.where(known, norms, mean) + self.floor * mean
        found: Doubles = filled / filled.sum()
        return found


#: a tau of equal norms differs from 1 by rounding
_ROUNDING = 1e-9
