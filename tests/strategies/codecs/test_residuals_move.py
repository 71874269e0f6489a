"""Residuals of error feedback go with the entries to their new servers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from psbench import strategies
from psbench.backends.compression import Compression
from psbench.backends.partition import partitions
from psbench.core.events import Push
from psbench.testing import toy_experiment
from psbench.training.build import Workload

#: a linear model of 15 entries, dealt anew between two servers
RANGES = [
    [[(0, 8)], [(8, 15)]],
    [[(0, 2), (9, 15)], [(2, 9)]],
    [[(14, 15)], [(0, 14)]],
    [[(0, 1), (3, 4), (5, 15)], [(1, 3), (4, 5)]],
]
FEEDBACK = [
    {"name": "top_k", "ratio": 0.2},
    {"name": "one_bit", "error_feedback": True},
    {"name": "sign", "error_feedback": True},
    {"name": "random_k", "ratio": 0.3, "error_feedback": True},
]


@cache
def toy_workload():
    return Workload.build(toy_experiment())


def compression(**codecs):
    placement = {"name": "parameter_server", "servers": 2, "reassignment": "by_load"}
    strategy, workload = strategies.bsp(placement=placement, **codecs), toy_workload()
    own = partitions(strategy.placement, workload.model.layout)
    return Compression(strategy, own, workload.streams, {})


def vectors(seed, count):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, 15)).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("codec", FEEDBACK, ids=lambda codec: codec["name"])
@given(st.lists(st.sampled_from([None, *RANGES]), min_size=1, max_size=8), st.integers(0, 99))
def test_at_each_step_arrived_and_residual_sum_to_what_was_given(codec, steps, seed):
    own = compression(codec=codec)
    arrived, given_ = torch.zeros(15), torch.zeros(15)
    for number, vector in enumerate(vectors(seed, len(steps))):
        if steps[number] is not None:
            own.repartition(steps[number])
        arrived += own.push(Push(0, 0, number, 0, 1), vector)
        given_ += vector
        residual = own.residuals().get(0, torch.zeros(15))
        torch.testing.assert_close(arrived + residual, given_, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("codec", FEEDBACK, ids=lambda codec: codec["name"])
def test_the_servers_own_memory_of_aggregates_goes_too(codec):
    """DoubleSqueeze's second pass: each aggregate that arrives makes up for what was lost of those before."""
    own = compression(codec=codec, codec_down=codec)
    arrived, given_ = torch.zeros(15), torch.zeros(15)
    for version, vector in enumerate(vectors(3, 8)):
        if version % 2:
            own.repartition(RANGES[version // 2])
        arrived += own.aggregate(0, version, vector)
        given_ += vector
        residual = torch.zeros(15)
        for server, own_part in zip(own._servers, own._partitions, strict=True):
            own_part.put(residual, torch.from_numpy(server.channel.residual))
        torch.testing.assert_close(arrived + residual, given_, rtol=1e-5, atol=1e-5)


def test_the_next_model_goes_whole():
    """Where differences travel, both ends begin anew: the servers do not know what others have sent."""
    own = compression(codec_down={"name": "top_k", "ratio": 0.1})
    first, second, third = vectors(5, 3)
    assert torch.equal(own.model(0, 1, 1, first), first)
    assert not torch.equal(own.model(0, 2, 2, second), second)
    own.repartition(RANGES[1])
    assert torch.equal(own.model(0, 3, 3, third), third)


def test_chance_goes_on_and_does_not_begin_anew():
    """Random indices of the pushes after a move are not those of the first pushes."""
    moved, still = (
        compression(codec={"name": "random_k", "ratio": 0.3}),
        compression(codec={"name": "random_k", "ratio": 0.3}),
    )
    ones = torch.ones(15)
    first = moved.push(Push(0, 0, 0, 0, 1), ones)
    assert torch.equal(first, still.push(Push(0, 0, 0, 0, 1), ones))
    moved.repartition(RANGES[0])  # as it was
    assert torch.equal(moved.push(Push(0, 0, 1, 0, 1), ones), still.push(Push(0, 0, 1, 0, 1), ones))
