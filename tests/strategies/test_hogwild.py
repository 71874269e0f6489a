"""Hogwild: without a window it is ASP, with one worker SGD, and of overlapping writes the last remains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import psbench as ps
from psbench import metrics
from psbench.core import Apply, ClusterView, Push, SetTimer
from psbench.core.log import Kind
from psbench.core.view import WorkerView
from psbench.errors import ParameterError
from psbench.strategies import hogwild
from psbench.strategies.aggregation import LastWrite
from psbench.strategies.consistency import Hogwild
from psbench.testing import toy_experiment

#: no message takes time, as in memory
MEMORY = {"workers": 3, "latency_s": 0.0, "step_time": "lognormal"}
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def toy(strategy, **cluster):
    return ps.run(toy_experiment(strategy, cluster=MEMORY | cluster, optimizer=SGD, stop={"epochs": 6}))


def test_windows_of_length_zero_are_asp_with_its_staleness():
    ours, theirs = toy(hogwild(write_s=0)), toy("asp", bandwidth_mbit_s=1e30, server_bandwidth_mbit_s=1e30)
    assert torch.equal(ours.parameters, theirs.parameters)
    assert metrics.staleness(ours.log)["staleness"].equals(metrics.staleness(theirs.log)["staleness"])
    times = [run.log.of_kind(Kind.APPLY)["time_s"] for run in (ours, theirs)]
    np.testing.assert_allclose(*times, rtol=1e-9)
    assert not len(metrics.lost_updates(ours.log))


def test_one_worker_is_plain_sgd():
    """It loses nothing, however long it writes."""
    ours, theirs = toy(hogwild(write_s=0.05), workers=1), toy("bsp", workers=1)
    assert torch.equal(ours.parameters, theirs.parameters)
    assert metrics.lost_updates(ours.log)["lost"].eq(0).all()


def test_the_longer_the_window_the_more_is_lost():
    lost = [toy(hogwild(write_s=w)).summary()["lost_updates"]["lost"] for w in (1e-6, 0.005, 0.05)]
    assert lost[0] < lost[1] < lost[2]


# ---------------------------------------------------------------- which blocks are lost

LAYOUT = [("weight", 60), ("bias", 10), ("head", 30)]


@pytest.mark.parametrize(
    ("others", "lost"),
    [
        ([], []),
        ([0.0], [0, 1, 2]),  # begun at once: all blocks are read before they are written
        ([0.2], [0, 2]),  # the block of 10 entries is written in 0.1 s
        ([0.45], [0]),
        ([0.7], []),  # they never write the same block
        ([0.7, 0.2], [0, 2]),
        ([-0.2], []),  # the one that began first is overwritten, not this
    ],
)
def test_a_block_is_lost_if_another_reads_it_before_it_is_written(others, lost):
    """The worked example: a model of three tensors that is written in 1 s; others begin so much later."""
    view = ClusterView(1 + len(others), layout=LAYOUT, now=6.0)
    for worker, later in enumerate([0.0, *others]):
        view.workers[worker] = WorkerView(worker, last_push_s=5.0 + later)
        view.pending[worker] = Push(worker, worker, 1, 0, 8)
    (apply,) = LastWrite().on_commit([view.pending[0]], view)
    assert isinstance(apply, Apply)
    assert sorted(apply.numbers) == [f"lost:{block}" for block in lost]
    left = 1 - sum(LAYOUT[block][1] for block in lost) / 100
    assert apply.weights == pytest.approx([left])


def test_a_write_ends_after_its_time_and_is_dropped_with_its_worker():
    part, view, push = Hogwild(write_s=0.5), ClusterView(2, now=2.0), Push(7, 1, 1, 0, 8)
    view.pending[7] = push
    timer, _ = part.on_push(push, view)
    assert isinstance(timer, SetTimer)
    assert (timer.at, timer.key) == (2.5, "7")
    assert part.on_timer("7", view)[0].pushes == [push]
    assert [each.push for each in part.on_leave(1, view)] == [push]
    assert part.on_timer("6", view) == part.on_leave(0, view) == []


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"placement": "parameter_server"}, "use placement 'shared_memory'"),
        ({"aggregation": "mean"}, "use aggregation 'last_write'"),
        ({"consistency": "asp"}, "use consistency 'hogwild'"),
        ({"communication": {"name": "every_step", "codec": "fp16"}}, "set both codecs to 'none'"),
    ],
)
def test_parts_that_have_no_common_memory_are_refused_with_a_remedy(changed, words):
    with pytest.raises(ParameterError, match=words):
        hogwild(**changed)
