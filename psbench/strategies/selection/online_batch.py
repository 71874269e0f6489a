"""Samples with large losses first."""

from __future__ import annotations

from typing import Any

import numpy as np

from psbench.arrays import Doubles, Integers
from psbench.core import Memory, Orders, Selection, parameter
from psbench.core.selection import NOTHING, Rng
from psbench.strategies.selection.ranks import drawn_ranks, pressure_at, pressure_field

_PAPER = "Loshchilov and Hutter 2015"


class OnlineBatch(Selection):
    """Draw samples by the rank of their last known loss; larger losses are more likely.

    Rank i of N is drawn with a probability proportional to exp(-i log(s) / N). The pressure s changes
    exponentially from `pressure` to `final_pressure` over `passes` passes. Samples that were never computed
    come first.

    Notes
    -----
    Reduces to: `with_replacement` with both pressures 1.
    The order is kept from step to step: the samples of a mini-batch are taken out and put back where their
    new losses belong, so that no step sorts the shard.
    Our reading: a pass is one of the worker over its shard; pressure and ranks follow at once. They change
    once an epoch, by the same formulas, in the implementation of Katharopoulos and Fleuret 2018
    (idiap/importance-sampling 08b9451).
    """

    name = "online_batch"
    source = f"{_PAPER}, Algorithm 1"
    remembers = ("loss",)

    pressure: float = pressure_field(100.0, "initial selection pressure", f"{_PAPER}, sec. 3")
    final_pressure: float = pressure_field(1.0, "final selection pressure", f"{_PAPER}, sec. 3")
    passes: float = parameter(40.0, "passes in which the pressure changes", unit="passes", gt=0)
    refresh: float | None = parameter(
        None,
        "passes after which all losses are computed; none: never",
        unit="passes",
        source=_PAPER,
        gt=0,
    )

    def look(self, size: int, rng: Rng, memory: Memory, orders: Orders) -> Integers:
        """Recompute all losses if due."""
        if self.refresh is None or memory.passes - memory.state.get("refreshed", 0.0) < self.refresh:
            return NOTHING
        memory.state["refreshed"] = memory.passes
        del memory.state["order"]
        return np.arange(len(memory))

    def choose(self, size: int, rng: Rng, memory: Memory, orders: Orders) -> Integers:
        """Draw ranks, and return the samples that have them."""
        if "order" not in memory.state:
            memory.state |= _sorted(memory)
        pressure = pressure_at(memory.passes, self.pressure, self.final_pressure, self.passes)
        chosen: Integers = memory.state["order"][drawn_ranks(size, len(memory), pressure, rng)]
        return chosen

    def learn(self, positions: Integers, memory: Memory) -> None:
        """Put the samples back where their new losses belong."""
        state = memory.state
        order, keys, key = state["order"], state["keys"], state["key"]
        own = np.unique(positions)
        stays, takes = np.ones(len(memory), dtype=bool), np.ones(len(memory), dtype=bool)
        stays[_places(order, keys, key[own], own)] = False
        rest, rest_keys = order[stays], keys[stays]
        key[own] = _keys(memory, own)
        own = own[np.argsort(key[own], kind="stable")]
        places = np.searchsorted(rest_keys, key[own]) + np.arange(len(own))
        takes[places] = False
        order[takes], keys[takes] = rest, rest_keys
        order[places], keys[places] = own, key[own]


def _places(order: Integers, keys: Doubles, own_keys: Doubles, own: Integers) -> Integers:
    """Return the positions of samples in the order; `keys` are the sort keys in that order."""
    places = np.searchsorted(keys, own_keys)
    for n in np.flatnonzero(order[places] != own):  # others have the same loss, as 0
        last = np.searchsorted(keys, own_keys[n], side="right")
        places[n] += np.flatnonzero(order[places[n] : last] == own[n])[0]
    return places


def _keys(memory: Memory, where: Integers) -> Doubles:
    """Return the sort keys of samples, ascending: negative losses, with unknown losses first."""
    loss = memory.loss[where]
    return np.where(np.isnan(loss), _UNKNOWN + _APART * where, -loss)


def _sorted(memory: Memory) -> dict[str, Any]:
    key = _keys(memory, np.arange(len(memory)))
    order = np.argsort(key, kind="stable")
    return {"order": order, "keys": key[order], "key": key}


#: below the negative of any loss; and what keeps samples apart whose loss is not known
_UNKNOWN, _APART = -1e308, 1e298
