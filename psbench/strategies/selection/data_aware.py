"""Samples of the neighbourhoods in which the model is weak."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import PrivateAttr

from psbench.arrays import Doubles, Integers
from psbench.core import ByNeighbourhood, ClusterView, Evaluated, Memory, Orders, of_groups, parameter
from psbench.core.actions import Action
from psbench.core.selection import GROUP_ERROR, GROUP_LOSS, Choice, Rng
from psbench.errors import ParameterError
from psbench.strategies.selection.ranks import drawn_by


class DataAware(ByNeighbourhood):
    """Draw more samples of the neighbourhoods in which the model's loss is high.

    Each worker draws from neighbourhood h with the share (1 - focus) n_h / N + focus * softmax(v /
    temperature)_h, where n_h of the N training samples are in h, and v_h is its validation loss, smoothed
    over evaluations. The softmax is ordered with releases.

    Notes
    -----
    Reduces to: `with_replacement` with `focus` = 0, or with one neighbourhood.
    Our reading: the thesis gives the idea and no formula. A worker whose shard has no sample of some
    neighbourhood divides that share among the others, in proportion. Within a neighbourhood draws are
    uniform. Before the first evaluation the shares are n_h / N. With `by` = "random" it is a control: the
    softmax is dealt to the neighbourhoods by chance, again at every evaluation, and keeps its entropy.
    """

    name = "data_aware"
    source = "thesis 7.2.2, Fig. 7.1"

    focus: float = parameter(0.5, "share of the samples that goes to weak neighbourhoods", ge=0, le=1)
    temperature: float = parameter(
        0.5, "temperature of the softmax: a small value selects only the weakest", gt=0, le=1e6
    )
    by: Literal["loss", "error", "random"] = parameter(
        "loss", "validation measure of a neighbourhood's weakness; random: a control"
    )
    smoothing: float = parameter(0.5, "weight of earlier evaluations in the average", ge=0, lt=1)
    weights: Literal["none", "unbiased"] = parameter(
        "none", "unbiased: the expected gradient equals that of uniform sampling"
    )
    _weakness: list[float] = PrivateAttr(default_factory=list)
    _dealt: list[int] = PrivateAttr(default_factory=list)  # whose share each neighbourhood gets, by chance

    # ---------------------------------------------------------------- the worker's half

    def choose(self, size: int, rng: Rng, memory: Memory, orders: Orders) -> Choice:
        """Draw the neighbourhood of each sample, and then a sample of it.

        Raises
        ------
        ParameterError
            If errors are asked for, and the data has no classes.
        """
        if self.by == "error" and not memory.num_classes:
            raise ParameterError("selection 'data_aware': by: error needs classes; use by: loss")
        shares = self.shares(memory, orders)
        drawn = drawn_by(shares, size, rng)
        within = rng.random(size)
        members = memory.members
        sizes = np.array([len(each) for each in members])
        places = (within * sizes[drawn]).astype(np.int64)
        positions: Integers = np.concatenate(members)[(np.cumsum(sizes) - sizes)[drawn] + places]
        if self.weights == "none":
            return positions
        return positions, sizes[drawn] / len(memory) / shares[drawn]

    def shares(self, memory: Memory, orders: Orders) -> Doubles:
        """Return the share of each neighbourhood in the worker's mini-batches."""
        plain = memory.counts / memory.counts.sum()
        ordered = np.asarray(orders.get("focus", plain))
        shares = (1 - self.focus) * plain + self.focus * ordered
        shares = np.where([len(each) > 0 for each in memory.members], shares, 0.0)
        found: Doubles = shares / shares.sum()
        return found

    # ---------------------------------------------------------------- the deciding half

    def on_evaluated(self, event: Evaluated, view: ClusterView) -> list[Action]:
        """Update the weakness of each neighbourhood."""
        found = of_groups(event, GROUP_ERROR if self.by == "error" else GROUP_LOSS)
        new = [found[h] for h in sorted(found)]
        if self._weakness:
            kept = self.smoothing
            new = [kept * old + (1 - kept) * value for old, value in zip(self._weakness, new, strict=True)]
        self._weakness = new or self._weakness
        if self.by == "random":
            self._dealt = view.rng.permutation(len(self._weakness)).tolist()
        return []

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the softmax."""
        if not self._weakness:
            return {}
        scaled = np.array(self._weakness) / self.temperature
        raised = np.exp(scaled - scaled.max())
        shares = raised / raised.sum()
        return {"focus": shares[self._dealt or slice(None)].tolist()}
