"""Samples that have been hard for a while."""

from __future__ import annotations

from typing import Literal

import numpy as np

from psbench.arrays import Doubles, Integers
from psbench.core import Memory, Orders, Selection, parameter
from psbench.core.selection import Rng

_PAPER = "Zhou, Wang and Bilmes 2020"


class InstanceHardness(Selection):
    """Go through the samples that were hardest so far, fewer of them in every round.

    The hardness r of a sample that was taken becomes share * a + (1 - share) * r, where a is its loss, the
    change of its loss, or whether its prediction has become right or wrong. After a warm-up over all samples,
    a round goes through the k hardest; k falls by the factor `decay` from round to round, down to `least`.

    Notes
    -----
    Reduces to: `reshuffle` with `decay` = 1.
    Our reading: the k hardest are taken, which the paper calls greedy; its variants draw them by chance. The
    paper divides a by the learning rate, which a selection does not know. A sample of which nothing has been
    measured is hardest of all.
    """

    name = "instance_hardness"
    source = f"{_PAPER}, eqs. 1-2, Algorithm 1"
    remembers = ("loss", "predicted")

    measure: Literal["loss", "change", "flip"] = parameter(
        "loss", "measure of hardness", source=f"{_PAPER}, eq. 2"
    )
    share: float = parameter(0.95, "weight of the newest measurement", source=f"{_PAPER}, sec. 4", gt=0, le=1)
    warm_up: float = parameter(
        5.0, "initial passes over all samples", unit="passes", source=f"{_PAPER}, sec. 4", ge=0
    )
    decay: float = parameter(
        0.85, "factor of the samples kept, each round", source=f"{_PAPER}, sec. 4", gt=0, le=1
    )
    least: float = parameter(0.2, "final share of the samples", source=f"{_PAPER}, sec. 4", gt=0, le=1)

    def choose(self, size: int, rng: Rng, memory: Memory, orders: Orders) -> Integers:
        """Choose the next samples of the round."""
        if self.decay == 1 or memory.passes < self.warm_up:
            return memory.reshuffled(size)
        state = memory.state
        if state.get("left", 0) <= 0:
            count = state.get("count", float(len(memory))) * self.decay
            state["count"] = max(count, self.least * len(memory), 1.0)
            hardest = np.argsort(-_hardness(memory), kind="stable")[: round(state["count"])]
            state |= {"kept": np.sort(hardest), "left": len(hardest)}
        state["left"] -= size
        return memory.reshuffled(size, state["kept"])

    def learn(self, positions: Integers, memory: Memory) -> None:
        """Update the hardness of the samples that were taken."""
        own, state = np.unique(positions), memory.state
        right = (memory.predicted == memory.right)[own].astype(np.int64)
        before = state.setdefault("loss", np.full(len(memory), np.nan))
        was_right = state.setdefault("was_right", np.full(len(memory), -1))
        measured = {
            "loss": memory.loss[own],
            "change": np.abs(np.nan_to_num(memory.loss[own] - before[own], nan=np.inf)),
            "flip": np.where(was_right[own] < 0, 1, right != was_right[own]).astype(np.float64),
        }[self.measure]
        known, hardness = np.isfinite(_hardness(memory)[own]), _hardness(memory)
        mixed = self.share * measured + (1 - self.share) * np.where(known, hardness[own], measured)
        hardness[own] = mixed
        before[own], was_right[own] = memory.loss[own], right


def _hardness(memory: Memory) -> Doubles:
    """Return the hardness of each sample; infinite before the first measurement."""
    found: Doubles = memory.state.setdefault("hardness", np.full(len(memory), np.inf))
    return found
