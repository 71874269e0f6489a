"""Shapley shares of a difference between two runs, in exact arithmetic, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, permutations
from typing import TypeAlias

import numpy as np

#: names of the causes that were replaced
Replaced: TypeAlias = frozenset[str]

#: up to that many causes every combination is computed; beyond, orders are drawn
ALL_UP_TO = 4
#: orders that are drawn
ORDERS = 12


@dataclass(frozen=True)
class Shares:
    """The division of a gap among causes.

    With v(S) the value of run A with the causes S taken from run B: the share of a cause is its mean effect
    over the orders in which causes may be replaced (Shapley 1953). The shares add up to v(nothing) -
    v(everything), and with `rest` to `gap`, exactly.

    Attributes
    ----------
    gap : float
        The value of run A minus that of run B.
    rest : float
        v(everything) minus the value of run B: what these causes do not explain.
    shares, first, last : mapping of cause to float
        Its share; its effect if it is replaced alone; and if all others have been replaced before it.
    joint : mapping of pair of causes to float
        Effect of replacing both, minus the effects of each alone; 0: the two act independently.
    """

    gap: float
    rest: float
    shares: Mapping[str, float]
    first: Mapping[str, float]
    last: Mapping[str, float]
    joint: Mapping[tuple[str, str], float]


def wanted(names: Sequence[str], seed: int) -> list[Replaced]:
    """Return the combinations of causes to compute, the empty one first."""
    if len(names) <= ALL_UP_TO:
        return [frozenset(some) for size in range(len(names) + 1) for some in combinations(names, size)]
    everything = frozenset(names)
    found = [frozenset[str](), *(frozenset([name]) for name in names)]
    found += [frozenset(pair) for pair in combinations(names, 2)]
    found += [everything - {name} for name in names] + [everything]
    found += [frozenset(order[:size]) for order in orders(names, seed) for size in range(len(order) + 1)]
    return list(dict.fromkeys(found))


def orders(names: Sequence[str], seed: int) -> list[tuple[str, ...]]:
    """Return the orders of causes to average over: all orders of few causes, else a random sample."""
    if len(names) <= ALL_UP_TO:
        return list(permutations(names))
    rng = np.random.default_rng(seed)
    return [tuple(str(name) for name in rng.permutation(names)) for _ in range(ORDERS)]


def shares_of(
    names: Sequence[str], value: Callable[[Replaced], float], other: float, seed: int = 0
) -> Shares:
    """Share out the difference between v(nothing) and the value of the other run.

    Parameters
    ----------
    names : sequence of str
    value : callable
        v: returns the value with these causes replaced.
    other : float
        The value of run B.
    seed : int
        Of the orders that are drawn for more than four causes.

    Examples
    --------
    Either cause alone removes the whole gap of 1:

    >>> found = shares_of(["x", "y"], lambda replaced: 0.0 if replaced else 1.0, other=0.0)
    >>> found.shares, found.first["x"], found.last["x"], found.rest
    ({'x': 0.5, 'y': 0.5}, 1.0, 0.0, 0.0)
    """
    exact = {some: Fraction(value(some)) for some in wanted(names, seed)}
    nothing, everything = frozenset[str](), frozenset(names)
    gains = dict.fromkeys(names, Fraction(0))
    tried = orders(names, seed)
    for order in tried:
        for place, name in enumerate(order):
            gains[name] += exact[frozenset(order[:place])] - exact[frozenset(order[: place + 1])]
    gap, rest = exact[nothing] - Fraction(other), exact[everything] - Fraction(other)
    shares = {name: gain / len(tried) for name, gain in gains.items()}
    assert sum(shares.values(), rest) == gap

    def effect(replaced: Replaced) -> Fraction:
        return exact[nothing] - exact[replaced]

    return Shares(
        gap=float(gap),
        rest=float(rest),
        shares={name: float(share) for name, share in shares.items()},
        first={name: float(effect(frozenset([name]))) for name in names},
        last={name: float(exact[everything - {name}] - exact[everything]) for name in names},
        joint={
            (x, y): float(effect(frozenset([x, y])) - effect(frozenset([x])) - effect(frozenset([y])))
            for x, y in combinations(names, 2)
        },
    )
