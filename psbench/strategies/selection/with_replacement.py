"""Uniform draws."""

from __future__ import annotations

from psbench.arrays import Integers
from psbench.core import Memory, Orders, Selection
from psbench.core.selection import Rng


class WithReplacement(Selection):
    """Draw each sample uniformly from the shard, with replacement.

    Notes
    -----
    It is what analyses of SGD assume, and the control for rules that draw by probabilities.
    """

    name = "with_replacement"
    source = "Robbins and Monro 1951"

    def choose(self, size: int, rng: Rng, memory: Memory, orders: Orders) -> Integers:
        """Draw uniformly."""
        return memory.uniform(size, rng)
