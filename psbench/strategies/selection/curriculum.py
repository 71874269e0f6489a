"""Easy samples first."""

from __future__ import annotations

import math

import numpy as np

from psbench.arrays import Integers
from psbench.core import Memory, Orders, Selection, parameter
from psbench.core.selection import NOTHING, Rng

_PAPER = "Hacohen and Weinshall 2019"
#: GuyHacohen/curriculum_learning 07a1f93, main_reproduce_paper.py
_CODE = f"{_PAPER}, authors' code"


class Curriculum(Selection):
    """Begin with the easiest samples of the shard, and add harder ones step by step.

    Mini-batch i goes through the min(share * growth^floor(i / every), 1) N samples with the lowest score,
    reshuffled on every pass. The score is a column of the data; without one it is the loss of the worker's
    model after `warm_up` passes over all samples, whose computation takes the time of a forward pass.

    Notes
    -----
    Reduces to: `reshuffle` with `share` = 1.
    Our reading: each worker has a curriculum of its own shard, and i counts its mini-batches after the
    warm-up. The authors' code also takes equally many easy samples of each class, which is not done here.
    """

    name = "curriculum"
    source = f"Bengio et al. 2009; pacing: {_PAPER}, sec. 2.2"
    remembers = ("loss",)

    share: float = parameter(0.04, "initial share of the samples", source=_CODE, gt=0, le=1)
    growth: float = parameter(1.9, "growth factor of the share", source=_CODE, gt=1, le=100)
    every: int = parameter(100, "mini-batches after which the share grows", source=_CODE, ge=1)
    column: str | None = parameter(None, "column with the score; none: the loss after the warm-up")
    warm_up: float = parameter(1.0, "passes of warm-up before losses become scores", unit="passes", ge=0)

    def look(self, size: int, rng: Rng, memory: Memory, orders: Orders) -> Integers:
        """Compute the loss of all samples once, after the warm-up."""
        due = self.share < 1 and self.column is None and memory.passes >= self.warm_up
        return np.arange(len(memory)) if due and "order" not in memory.state else NOTHING

    def choose(self, size: int, rng: Rng, memory: Memory, orders: Orders) -> Integers:
        """Choose the next samples among the easy ones."""
        if self.share == 1 or (self.column is None and memory.passes < self.warm_up):
            return memory.reshuffled(size)
        state = memory.state
        if "order" not in state:
            score = memory.loss if self.column is None else memory.column(self.column)
            state |= {"order": np.argsort(score, kind="stable"), "first": memory.step}
        grown = (memory.step - state["first"]) // self.every
        share = 1.0 if grown > _ALL else min(self.share * self.growth**grown, 1.0)
        among = np.sort(state["order"][: math.ceil(share * len(memory))])
        return memory.reshuffled(size, among)


#: growths after which any share has become all
_ALL = 1000
