"""MapReduce style: BSP's updates at a job's price."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2

import numpy as np
import pytest
import torch

from psbench import strategies
from psbench.core.log import Kind
from psbench.errors import ParameterError
from psbench.runs.execution import run
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload
from psbench.training.trainer import Trainer


def rounds(experiment):
    """Return the seconds from one update to the next."""
    done = run(experiment)
    return np.diff(np.unique(done.log.of_kind(Kind.APPLY)["time_s"]))


def test_it_makes_the_updates_of_bsp_bit_by_bit():
    ours, theirs = (run(toy_experiment(name)) for name in ("map_reduce", "bsp"))
    assert torch.equal(ours.parameters, theirs.parameters)


def test_a_mini_batch_costs_a_job_a_scan_the_steps_and_two_trees():
    """t = t_job + t_scan(partition) + T/N t_grad + t_reduce, and the model on its way."""
    cluster = toy_cluster([1.0, 1.0, 1.0], bandwidth_mbit_s=8.0, latency_s=0.25)  # 1 MB/s
    strategy = strategies.map_reduce(job_s=2.0, scan_s_per_sample=0.5)
    experiment = toy_experiment(strategy, cluster=cluster)
    (seconds,) = set(rounds(experiment).round(9))
    step = rounds(toy_experiment("bsp", cluster=toy_cluster([1.0, 1.0, 1.0])))[0]
    partition = max(len(shard) for shard in Workload.build(experiment).shards)
    model = 4 * 15
    tree = ceil(log2(3 + 1)) * (0.25 + model / 1e6)
    assert seconds == pytest.approx(2.0 + partition * 0.5 + step + 2 * tree)


def test_the_scan_does_not_shrink_with_the_mini_batch():
    """The thesis' finding: small mini-batches gain little where every job reads its whole partition."""
    cluster = toy_cluster([1.0, 1.0, 1.0])
    jobs, server = (
        [rounds(toy_experiment(s, cluster=cluster, batch_size=b)).mean() for b in (96, 12)]
        for s in (strategies.map_reduce(job_s=0.01, scan_s_per_sample=1e-3), "bsp")
    )
    assert server[0] / server[1] > 2 * jobs[0] / jobs[1]


def usage(strategy, batch_size, **cluster):
    """Return the milliseconds of reading and computing of each worker."""
    experiment = toy_experiment(
        strategy, cluster=toy_cluster([1.0, 0.5, 0.25], **cluster), batch_size=batch_size
    )
    used = run(experiment).summary()["usage"]
    assert [worker["cpu"] for worker in used] == [None] * 3  # nobody computes in virtual time
    return [(worker["read_ms"], worker["compute_ms"]) for worker in used]


def test_jobs_read_the_partition_and_a_server_s_workers_the_batch():
    """T/N (t_read + t_grad) on the one side, the scan whatever T is on the other."""
    jobs = strategies.map_reduce(job_s=0.01, scan_s_per_sample=1e-3)
    partitions = [float(len(shard)) for shard in Workload.build(toy_experiment("bsp")).shards]
    for batch_size in (12, 48):
        share = batch_size // 3
        grad = [(1e3 * (1e-3 + 1e-3 * share)) / speed for speed in (1.0, 0.5, 0.25)]
        ours = usage(jobs, batch_size, read_seconds_per_sample=2e-3)  # which a job does not pay
        assert ours == [pytest.approx(pair) for pair in zip(partitions, grad, strict=True)]
        theirs = usage("bsp", batch_size, read_seconds_per_sample=2e-3)
        reads = [2.0 * share / speed for speed in (1.0, 0.5, 0.25)]
        assert theirs == [pytest.approx(pair) for pair in zip(reads, grad, strict=True)]


def test_reading_delays_what_waits_for_it():
    slow = rounds(toy_experiment("bsp", cluster=toy_cluster([1.0], read_seconds_per_sample=2e-3)))
    usual = rounds(toy_experiment("bsp", cluster=toy_cluster([1.0])))
    assert slow - usual == pytest.approx(12 * 2e-3)


@pytest.mark.parametrize("size", [1, 5, 40])
def test_a_scan_finds_the_batch_that_reading_by_index_gives(size, monkeypatch):
    monkeypatch.setattr(Trainer, "SCAN", 7)
    workload = Workload.build(toy_experiment("bsp"))
    noise = replace(workload.data, augment=lambda x, rng: x + torch.from_numpy(rng.random(x.shape)).float())
    workload = replace(workload, data=noise)
    by_index, scanning = workload.trainer(), workload.trainer()
    for _ in range(6):  # 40 of 32 samples: some are in the batch twice
        read = by_index.read(by_index.start(1, size))
        found = scanning.scan(scanning.start(1, size))
        assert torch.equal(read.inputs, found.inputs)
        assert torch.equal(read.labels, found.labels)


@pytest.mark.parametrize("strategy", ["bsp", "map_reduce", "all_reduce"])
def test_the_last_version_is_sent_under_no_strategy(strategy):
    """Three workers, the first model and two versions, of which the last is not sent."""
    summary = run(toy_experiment(strategy, stop={"updates": 2})).summary()
    model = 60 if strategy != "all_reduce" else 60 * 2 / 3
    assert summary["messages"]["release"] == 6
    assert summary["bytes"]["down"] == 6 * model


def test_tasks_that_keep_nothing_cannot_step_by_themselves():
    with pytest.raises(ParameterError, match="keep no state between steps"):
        strategies.local_sgd(placement="map_reduce")


def test_asynchronous_strategies_have_no_map_reduce_jobs():
    with pytest.raises(ParameterError, match="needs all workers"):
        strategies.asp(placement="map_reduce")
