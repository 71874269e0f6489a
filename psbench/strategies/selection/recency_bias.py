"""Samples whose recent predictions disagree."""

from __future__ import annotations

import math

import numpy as np

from psbench.arrays import Doubles, Integers
from psbench.core import Memory, Orders, Selection, parameter
from psbench.core.selection import Rng
from psbench.strategies.selection.ranks import drawn_by, pressure_at, pressure_field

_PAPER = "Song et al. 2020"


class RecencyBias(Selection):
    """Draw samples by the uncertainty of recent predictions; those that change class are more likely.

    Uncertainty is the entropy of the labels among a sample's last `window` predictions over that of an even
    distribution. It is cut into N steps, Q = ceil((1 - uncertainty) N), and a sample is drawn with a
    probability proportional to exp(-Q log(s) / N). The pressure s falls from `pressure` to 1 over `passes`
    passes after a warm-up of uniform ones.

    Notes
    -----
    Reduces to: `reshuffle` while it warms up; `with_replacement` with `pressure` = 1 and no warm-up.
    Our reading: a sample's probability follows its window at once; the paper computes all of them at the
    beginning of an epoch. Equations and sections are those of the version under review (arXiv 1911.08050v1).
    """

    name = "recency_bias"
    source = f"{_PAPER}, eqs. 3-7"
    remembers = ("predicted",)

    window: int = parameter(
        10, "number of recent predictions per sample", source=f"{_PAPER}, sec. 5.2", ge=1, le=1000
    )
    pressure: float = pressure_field(100.0, "selection pressure after the warm-up", f"{_PAPER}, sec. 5.2")
    warm_up: float = parameter(
        15.0, "passes of uniform mini-batches", unit="passes", source=f"{_PAPER}, sec. 5.2", ge=0
    )
    passes: float = parameter(30.0, "passes in which the pressure falls to 1", unit="passes", gt=0)

    def choose(self, size: int, rng: Rng, memory: Memory, orders: Orders) -> Integers:
        """Draw by uncertainty; during the warm-up take the next samples of a pass."""
        if memory.passes < self.warm_up:
            return memory.reshuffled(size)
        pressure = pressure_at(memory.passes - self.warm_up, self.pressure, 1.0, self.passes)
        count = len(memory)
        steps = np.ceil((1 - self._uncertainty(memory)) * count)
        return drawn_by(np.exp(-steps * math.log(pressure) / count), size, rng)

    def learn(self, positions: Integers, memory: Memory) -> None:
        """Add the predictions to their samples' windows."""
        state = memory.state
        if "window" not in state:
            state["window"] = np.full((len(memory), self.window), -1)
            state["predictions"] = np.zeros(len(memory), dtype=np.int64)
        own = np.unique(positions)
        state["window"][own, state["predictions"][own] % self.window] = memory.predicted[own]
        state["predictions"][own] += 1
        self._uncertainty(memory)[own] = entropies(state["window"][own], memory.num_classes)

    def _uncertainty(self, memory: Memory) -> Doubles:
        found: Doubles = memory.state.setdefault("uncertainty", np.ones(len(memory)))
        return found


def entropies(windows: Integers, num_classes: int) -> Doubles:
    """Return the entropy of each row's labels over log(num_classes); -1 is no label.

    >>> entropies(np.array([[0, 1, 0, 1], [2, 2, -1, -1]]), 4).tolist()
    [0.5, 0.0]
    """
    shares = np.stack([(windows == label).sum(1) for label in range(num_classes)], axis=1).astype(np.float64)
    shares /= np.maximum(shares.sum(1, keepdims=True), 1)
    logarithms = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    found: Doubles = np.abs((shares * logarithms).sum(1)) / math.log(max(2, num_classes))
    return found
