"""Scalar products of partitioned vectors: the same bits for any partition.

Each process takes its share exactly, and the shares are rounded once, when all of them are together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from psbench.core import Push
from psbench.core.parts import Layout
from psbench.training.server import AGGREGATION

#: binary digits that are taken off all products at once
_DIGITS = 26
#: entries of which so many digits add up to a whole number that a float64 holds
_MOST = 1 << 26


def exact_share(a: Tensor, b: Tensor) -> Tensor:
    """Return a few numbers whose exact sum is sum_i a_i b_i.

    Shapes
    ------
    a, b : float32, (entries,)
    returns : float64, (numbers,)

    Notes
    -----
    A product of two floats of 24 binary digits is a float64. From all products the digits above a power of
    two are taken off, by adding and subtracting a large constant, and added up: whole multiples of that
    power, of at most 26 digits each, so that nothing is rounded, in whatever order. Then the next 26.
    """
    found = []
    for start in range(0, len(a), _MOST):
        rest = a[start : start + _MOST].double() * b[start : start + _MOST].double()
        largest = float(rest.abs().max())
        if not math.isfinite(largest):
            return torch.tensor([math.nan], dtype=torch.float64)
        level = math.ceil(math.frexp(largest)[1] / _DIGITS)
        while bool(rest.any()):
            level -= 1
            large = math.ldexp(1.5, _DIGITS * level + 52)
            digits = (rest + large).sub_(large)
            found.append(float(digits.sum()))
            rest.sub_(digits)
    return torch.tensor(found, dtype=torch.float64)


class Product(NamedTuple):
    """A requested scalar product: the names of two vectors, and the relevant entries."""

    left: str
    right: str
    start: int
    stop: int


def product_of(name: str, layout: Layout, part: str, pending: Mapping[int, Push]) -> Product:
    """Return the product named by `dot:<left>:<right>` or `dot:<left>:<right>:<tensor>`; see `Measure`."""
    _, left, right, *tensor = name.split(":")
    sizes = [size for _, size in layout]
    first, last = (int(tensor[0]), int(tensor[0]) + 1) if tensor else (0, len(sizes))
    one, other = _vector(left, part, pending), _vector(right, part, pending)
    return Product(one, other, sum(sizes[:first]), sum(sizes[:last]))


def _vector(name: str, part: str, pending: Mapping[int, Push]) -> str:
    if name.isdecimal():
        push = pending[int(name)]
        return f"payload/{push.worker}/{push.ticket}"
    return "parameters" if name == "x" else f"{AGGREGATION}{part}/{name}"


def share_of(product: Product, vectors: Mapping[str, Tensor], cuts: Sequence[slice]) -> Tensor:
    """Return a share of a product, from the named vectors held here; a missing vector counts as 0."""
    left, right = vectors.get(product.left), vectors.get(product.right)
    if left is None or right is None:
        return torch.zeros(0, dtype=torch.float64)
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(exact_share(left[c], right[c]) for c in cuts)])


def add_up(shares: Iterable[Tensor]) -> float:
    """Return the sum of all shares, rounded once.

    >>> a, b = torch.tensor([1e8, 1.0, -1e8]), torch.tensor([1e8, 1.0, 1e8])
    >>> add_up([exact_share(a, b)]), add_up([exact_share(a[:1], b[:1]), exact_share(a[1:], b[1:])])
    (1.0, 1.0)
    """
    return math.fsum(number for share in shares for number in share.tolist())
