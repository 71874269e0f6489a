"""One Dask graph a mini-batch, live."""

from __future__ import annotations

import functools
import os
import signal
from contextlib import suppress

import pytest
import torch
from distributed import Client
from models.networks import Normed

from psbench.backends.dask.local_cluster import local_cluster
from psbench.backends.dask.map_reduce import tasks
from psbench.backends.dask.map_reduce.driver import check
from psbench.core.log import Kind
from psbench.errors import ParameterError
from psbench.metrics import timeline
from psbench.runs.execution import run
from psbench.runs.replaying import replay
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload


@pytest.mark.slow
@pytest.mark.dask
@pytest.mark.parametrize(
    "hit",
    [
        pytest.param(signal.SIGKILL, id="dies"),
        pytest.param(signal.SIGSTOP, id="freezes", marks=pytest.mark.nightly),
    ],
)
def test_a_dask_worker_with_a_partition_that_is_gone_is_replaced(hit):
    """The job is done again elsewhere, so the updates are still those of BSP."""
    two = toy_cluster([1.0, 1.0])
    experiment = toy_experiment(
        "map_reduce",
        cluster=two,
        backend="dask",
        stop={"updates": 30},
        recovery={"replace_workers": True, "wait_for_workers": 60},
        connection={"answer_within_s": 10},
    )
    with local_cluster(4) as dask, Client(dask.scheduler_address, set_as_default=False) as client:
        pids, gone = client.run(os.getpid), []

        def observer(log):
            if gone or len(log.of_kind(Kind.PUSH)["row"]) < 10:
                return
            holders = [on[0] for key, on in client.who_has().items() if str(key).endswith("-load-0") and on]
            gone.extend(holders[:1])
            for address in gone:
                os.kill(pids[address], hit)

        try:
            live = run(experiment, client=client, observer=observer)
        finally:
            for pid in pids.values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
    assert gone
    assert live.meta["incidents"]
    assert live.log.of_kind(Kind.APPLY)["version"][-1] == 30
    theirs = run(toy_experiment("bsp", cluster=two, stop={"updates": 30}))
    assert torch.equal(live.parameters, theirs.parameters)


@pytest.mark.slow
def test_a_live_run_makes_the_updates_of_bsp_and_replays(tmp_path):
    cluster = toy_cluster([1.0, 0.5])
    experiment = toy_experiment("map_reduce", cluster=cluster, backend="dask", checkpoint_every=1.0)
    live = run(experiment, folder=tmp_path)
    theirs = run(toy_experiment("bsp", cluster=cluster))
    assert torch.equal(live.parameters, theirs.parameters)
    assert live.summary()["final"]["val_accuracy"] == theirs.summary()["final"]["val_accuracy"]
    assert replay(live) == len(live.log)
    assert set(timeline(live.log)["phase"]) == {"pull", "compute"}  # the job around it, and the steps
    assert len(live.meta["checkpoints"]) == 2
    rounds = live.log.of_kind(Kind.PUSH)["compute_s"].sum()
    used = live.summary()["usage"]
    assert [worker["steps"] for worker in used] == [16, 16]
    assert all(worker["read_ms"] > 0 and worker["compute_ms"] > 0 and worker["cpu"] > 0 for worker in used)
    measured = sum(used["read_s"] + used["compute_s"] for used in live.meta["usage"])
    assert measured < rounds  # which contains what the slower machine waits


def test_a_switch_to_it_is_refused_before_anything_starts():
    pair = {"name": "strategy_switch", "first": "bsp", "second": "map_reduce", "rule": "manual"}
    with pytest.raises(ParameterError, match="cannot switch to or from 'map_reduce'"):
        check(toy_experiment(pair, backend="dask"))


def test_weights_that_need_the_gradients_are_refused_at_once():
    with pytest.raises(ParameterError, match="bounded_step weighs gradients by measurements"):
        check(toy_experiment({"name": "map_reduce", "aggregation": "bounded_step"}, backend="dask"))


def test_a_job_means_gradients_and_buffers_as_a_barrier_does():
    """One job of a model with batch normalisation, beside one update of BSP."""
    experiment = toy_experiment("bsp", model=Normed, cluster=toy_cluster([1.0] * 3), stop={"updates": 1})
    workload = Workload.build(experiment)
    server, samples = workload.server(), experiment.batch_size // 3
    model = server.parameters.numpy().copy(), server.buffers.numpy().copy()
    partitions = [tasks.load(experiment, None, worker) for worker in range(3)]
    steps = [tasks.map_step(partition, model, 0, samples, 1 / 3) for partition in partitions]
    job = functools.reduce(tasks.add, steps)
    done = run(experiment)
    server.parameters.sub_(torch.from_numpy(job.gradient), alpha=experiment.optimizer.lr)
    assert torch.allclose(server.parameters, done.parameters, atol=1e-6)
    assert torch.allclose(torch.from_numpy(job.buffers), done.buffers, atol=1e-6)


def test_a_cluster_whose_workers_fail_is_refused_before_anything_starts():
    cluster = toy_cluster([1.0, 1.0], failures=[{"worker": 1, "at_s": 0.5}])
    with pytest.raises(ParameterError, match="no worker can join or fail"):
        check(toy_experiment("map_reduce", cluster=cluster, backend="dask"))
