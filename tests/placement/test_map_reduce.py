"""MapReduce style: BSP's updates at a job's price."""

from __future__ import annotations

from math import ceil, log2

import numpy as np
import pytest
import torch

from psbench import strategies
from psbench.core.log import Kind
from psbench.errors import ParameterError
from psbench.problem import Problem
from psbench.runs import run
from psbench.testing import check_strategy, toy_experiment
from psbench.testing.toys import toy_cluster


def rounds(experiment):
    """Return the seconds from one update to the next."""
    done = run(experiment)
    return np.diff(np.unique(done.log.of_kind(Kind.APPLY)["time_s"]))


def test_it_makes_the_updates_of_bsp_bit_by_bit():
    ours, theirs = (run(toy_experiment(name)) for name in ("map_reduce", "bsp"))
    assert torch.equal(ours.parameters, theirs.parameters)


def test_a_mini_batch_costs_a_job_a_scan_the_steps_and_two_trees():
    """`protocols` 11: t = t_job + t_scan(partition) + T/N t_grad + t_reduce, and the model on its way."""
    cluster = toy_cluster([1.0, 1.0, 1.0], bandwidth_mbit_s=8.0, latency_s=0.25)  # 1 MB/s
    strategy = strategies.map_reduce(job_s=2.0, scan_s_per_sample=0.5)
    experiment = toy_experiment(strategy, cluster=cluster)
    (seconds,) = set(rounds(experiment).round(9))
    step = rounds(toy_experiment("bsp", cluster=toy_cluster([1.0, 1.0, 1.0])))[0]
    partition = max(len(shard) for shard in Problem.build(experiment).shards)
    model = 4 * 15
    tree = ceil(log2(3 + 1)) * (0.25 + model / 1e6)
    word = 0.25  # that a task is done
    assert seconds == pytest.approx(2.0 + partition * 0.5 + step + 2 * tree + word)


def test_the_scan_does_not_shrink_with_the_mini_batch():
    """The thesis' finding: small mini-batches gain little where every job reads its whole partition."""
    cluster = toy_cluster([1.0, 1.0, 1.0])
    jobs, server = (
        [rounds(toy_experiment(s, cluster=cluster, batch_size=b)).mean() for b in (96, 12)]
        for s in (strategies.map_reduce(job_s=0.01, scan_s_per_sample=1e-3), "bsp")
    )
    assert server[0] / server[1] > 2 * jobs[0] / jobs[1]


def test_it_keeps_the_contract():
    check_strategy("map_reduce", clusters=5)


def test_tasks_that_keep_nothing_cannot_step_by_themselves():
    with pytest.raises(ParameterError, match="keep nothing between steps"):
        strategies.local_sgd(placement="map_reduce")


def test_who_waits_for_nobody_has_no_jobs():
    with pytest.raises(ParameterError, match="needs everybody"):
        strategies.asp(placement="map_reduce")
