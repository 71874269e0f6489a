"""Scalar products of vectors in pieces."""

import math
from fractions import Fraction

import pytest
import torch

from psbench.backends.partition import partitions_of
from psbench.core.events import Push
from psbench.training.products import Product, add_up, exact_share, product_of, share_of


@pytest.mark.parametrize("spread", [0, 5, 20])
def test_a_share_is_exact_and_the_sum_rounded_once(spread):
    chance = torch.Generator().manual_seed(spread)
    a, b, size = torch.randn(3, 1000, generator=chance)
    a *= torch.exp(spread * size)
    exact = float(sum(Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)))
    for pieces in (1000, 317, 1):
        cuts = [slice(start, start + pieces) for start in range(0, 1000, pieces)]
        assert add_up(exact_share(a[cut], b[cut]) for cut in cuts) == exact
    assert len(exact_share(a, b)) < 30


def test_the_smallest_and_the_largest_numbers_there_are():
    tiny, huge = torch.full((10,), 1e-45), torch.full((2,), 3.4e38)
    assert add_up([exact_share(tiny, tiny)]) == float(10 * Fraction(tiny[0].item()) ** 2)
    assert add_up([exact_share(huge, huge)]) == float(2 * Fraction(huge[0].item()) ** 2)
    assert math.isnan(add_up([exact_share(torch.tensor([math.inf, 1.0]), torch.ones(2))]))


def test_a_product_of_one_tensor_takes_each_servers_entries_of_it():
    layout, push = [("weight", 4), ("bias", 3)], Push(5, worker=2, ticket=9, base_version=0, samples=1)
    product = product_of("dot:5:velocity:1", layout, "outer", {5: push})
    assert product == Product("payload/2/9", "aggregation/outer/velocity", 4, 7)
    pushed, velocity = torch.arange(7.0), torch.arange(7.0) + 1
    total = []
    for part in partitions_of([[(0, 2), (5, 6)], [(2, 5), (6, 7)]]):
        vectors = {product.left: part.of(pushed), product.right: part.of(velocity)}
        total.append(share_of(product, vectors, part.holding(product.start, product.stop)))
    assert add_up(total) == 4 * 5 + 5 * 6 + 6 * 7


def test_what_is_not_held_yet_is_zero():
    assert add_up([share_of(Product("x", "y", 0, 1), {"x": torch.ones(1)}, [slice(0, 1)])]) == 0
