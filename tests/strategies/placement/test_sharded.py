"""ZeRO and FSDP: the updates of All-Reduce, more bytes, less memory."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest
import torch
from threaded_run import Killed, ThreadedRun

import psbench as ps
from psbench.backends.dask.protocol.messages import PressWorker, RoleLeaves
from psbench.backends.dask.worker.ring_member import RingMember
from psbench.backends.dask.worker.worker import Worker
from psbench.errors import ParameterError, ServerLost
from psbench.testing import toy_experiment
from psbench.training.build import Workload

LOST = {"worker": 1, "at_s": 1.0}
ELASTIC = {
    "strategy": {
        "name": "sync_switch",
        "first": "fsdp",
        "second": "asp",
        "rule": {"name": "stragglers", "policy": "elastic"},
    },
    "stop": {"epochs": 1},
}
RING = {"workers": 4, "bandwidth_mbit_s": 1.0, "latency_s": 0.0, "step_time": "constant"}


def run(strategy, **link):
    return ps.run(toy_experiment(strategy, cluster=RING | link, stop={"updates": 5}, seed=2))


@pytest.mark.parametrize(("stage", "times"), [(1, 1.0), (2, 1.0), (3, 1.5)])
def test_the_models_are_those_of_all_reduce(stage, times):
    ring, sharded = run("all_reduce"), run({"name": "fsdp", "stage": stage})
    assert ring.meta["params_digest"] == sharded.meta["params_digest"]
    sums = [sum(each.summary()["bytes"].values()) for each in (ring, sharded)]
    assert sums[1] == pytest.approx(times * sums[0], rel=1e-3)
    seconds = [each.summary()["time_s"] for each in (ring, sharded)]
    computing = run("all_reduce", bandwidth_mbit_s=1e9).summary()["time_s"]
    assert seconds[1] - computing == pytest.approx(times * (seconds[0] - computing), rel=0.02)
    ps.replay(sharded)


def test_a_worker_has_room_for_more_samples():
    optimizer = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
    held = [
        Workload.build(toy_experiment(name, cluster=RING, optimizer=optimizer)).capacity[0]
        for name in ("all_reduce", "fsdp")
    ]
    assert held[0] < held[1]
    placement = ps.strategies.fsdp(stage=2).placement
    assert placement.worker_bytes(10, kept=1, num_workers=4) == 40 + 2 * 40 // 4


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"strategy": "fsdp", "cluster": {"failures": [LOST]}}, "cluster.failures: no worker may join"),
        ({"strategy": "fsdp", "cluster": {"joins": [LOST]}}, "cluster.joins: no worker may join"),
        ({"strategy": "fsdp", "backend": "dask", "recovery": {"min_workers": 1}}, "recovery.min_workers: no"),
        (ELASTIC, "rule.policy: no worker may join"),
        ({"strategy": {"name": "fsdp", "codec": "fp16"}}, "gathers shares of the model unencoded"),
        ({"strategy": {"name": "fsdp", "stragglers": "drop_stragglers"}}, "may drop that worker"),
        ({"strategy": "fsdp", "optimizer": "lamb"}, "each worker holds parts of tensors"),
        ({"strategy": {"name": "power_sgd", "placement": "sharded"}}, "holds a share of the model"),
        ({"strategy": {"name": "diloco", "placement": "sharded"}}, "holds a share of the model"),
    ],
)
def test_what_has_no_meaning_is_refused(values, says):
    with pytest.raises(ParameterError, match=says):
        toy_experiment(**values)


# -------------------------------------------------------------------- live

LIVE = {
    "cluster": {"workers": 2, "step_time": "constant"},
    "batch_size": 16,
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "decay": "matrices"},
    "stop": {"updates": 5},
    "backend": "dask",
}


class Counted(RingMember):
    """Notes the entries that it is sent by another member, and what it keeps."""

    received: ClassVar[Counter[int]] = Counter()

    def _await_piece(self, number: int, step: int, server: Any = None) -> torch.Tensor:
        piece = super()._await_piece(number, step, server)
        self.received[self.worker] += len(piece)
        return piece


class Counts(Worker):
    """Its member does."""

    member_class = Counted


def live(strategy: Any, worker: type[Worker] = Worker, on_rows: Any = None, **changes: Any) -> ThreadedRun:
    return ThreadedRun(toy_experiment(strategy, **LIVE | changes), worker).run(on_rows)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_live_has_the_simulated_models_and_the_bytes_of_the_log(stage):
    strategy = {"name": "fsdp", "stage": stage}
    Counted.received.clear()
    done = live(strategy, Counts)
    simulated = ps.run(toy_experiment(strategy, **LIVE | {"backend": "simulated"}))
    for same in (simulated.parameters, live("all_reduce").parameters):
        assert torch.equal(done.parameters, same)
    kept = [worker.member.replica.tensors() for worker in done.workers.values()]
    assert {name for each in kept for name in each} == {"parameters", "buffers", "optimizer/momentum_buffer"}
    for name in ("parameters", "optimizer/momentum_buffer"):
        assert sum(len(each[name]) for each in kept) == len(done.parameters)
    assert 4 * sum(Counted.received.values()) == sum(simulated.summary()["bytes"].values())


@pytest.mark.slow
@pytest.mark.parametrize("pair", [("bsp", "fsdp"), ("fsdp", "bsp")])
def test_a_switch_cuts_model_and_momentum_and_joins_them(pair):
    first, second = pair
    switch = {"name": "strategy_switch", "first": first, "second": second}
    switch |= {"rule": {"name": "after", "fraction": 0.5}, "momentum": "keep"}
    done = live(switch, stop={"epochs": 1})
    plain = ps.run(toy_experiment("bsp", **LIVE | {"backend": "simulated", "stop": {"epochs": 1}}))
    assert torch.equal(done.parameters, plain.parameters)


class Dies(Worker):
    """Worker 1 is lost while it computes its third step."""

    def _step(self) -> Any:
        if self.worker == 1 and self.loop is not None and self.loop.ticket >= 3:
            raise Killed
        return super()._step()


def test_a_lost_share_is_a_lost_server():
    """The client goes on from the last checkpoint, if there is one; test_live_resume.py does."""
    done = live("fsdp", Dies, checkpoint_every=0.1)
    assert isinstance(done.error, ServerLost)
    assert done.error.role == "worker 1"
    assert "its share of the model with it" in str(done.error)


def test_no_worker_is_lost_by_hand_and_one_that_retires_moves_the_run():
    asked: list[str] = []

    def on_rows(done: ThreadedRun, client: Any) -> None:
        if not asked and len(done.log) > 10:
            asked.append("lost")
            client.send(PressWorker(1, "lost", 1.0))
        if done.incidents:
            client.send(RoleLeaves("worker 1"))

    done = live("fsdp", on_rows=on_rows, stop={"updates": 10**9})
    assert done.error is None
    assert "cannot be lost by hand: each worker has a share of the model" in done.incidents[0]
    assert done.checkpoints  # from which the client goes on elsewhere
