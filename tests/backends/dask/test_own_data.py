"""A person's own data on Dask: the parameters of virtual time, and no sample where it is not needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from distributed import Client

import psbench as ps
from psbench.backends.dask.protocol.roles import COORDINATOR, EVALUATOR, worker_name
from psbench.backends.dask.shipping import Shipping
from psbench.data import Text
from psbench.data.shipment import Shipment
from psbench.errors import DataError
from psbench.experiment import Experiment
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.training.build import Workload
from psbench.training.dry_run import trial_rows
from tests.networks import MaskedText

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(90, 4)).astype(np.float32), RNG.integers(0, 3, 90)
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(label=Y, site=np.arange(90) % 2)

TEXTS = [RNG.integers(1, 9, RNG.integers(2, 8)).tolist() for _ in range(90)]
MASKS = [[1] * len(text) for text in TEXTS]

#: what others contain
AT_NIGHT = ("arrays", "map_reduce")
FORMS: dict[str, dict[str, Any]] = {
    "arrays": {"data": (X, Y)},
    "list": {"data": [(X[:50], Y[:50]), (X[50:], Y[50:])]},
    "frame by column": {
        "data": ps.data(FRAME, target="label", keep=["site"]),
        "sharding": {"name": "column", "column": "site"},
    },
    "function": {"data": "mixture", "sharding": lambda data, n, rng: np.array_split(np.arange(1600), n)},
    "map_reduce": {"data": (X, Y), "strategy": "map_reduce"},
    "several, of other lengths": {
        "data": ps.data(
            Dataset.from_dict({"input_ids": TEXTS, "attention_mask": MASKS, "label": (Y % 2).tolist()}),
            target="label",
        ),
        "model": MaskedText,
    },
    "text": {
        "data": {"name": "text", "context": 4, "val_fraction": 0.5},
        "model": torch.nn.Embedding(len(Text().vocabulary()), len(Text().vocabulary())),
    },
}


@pytest.mark.by_day(2)
@pytest.mark.dask
@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=pytest.mark.nightly if form in AT_NIGHT else ()) for form in FORMS]
)
def test_a_live_run_has_the_parameters_of_virtual_time(scheduler: str, form: str) -> None:
    given = {"cluster": {"workers": 2, "step_time": "constant"}, "stop": {"updates": 6}}
    there = toy_experiment(**{**given, **FORMS[form]})
    simulated = ps.run(there)
    live = ps.run(there.but(backend="dask", scheduler=scheduler))
    assert torch.equal(live.parameters, simulated.parameters)  # type: ignore[arg-type]
    assert live.summary()["final"]["val_loss"] == pytest.approx(simulated.summary()["final"]["val_loss"])
    with Client(scheduler, set_as_default=False) as client:
        assert not client.who_has()  # nothing is left there


class Loopback:
    """Stands in for a client: keeps what is sent."""

    status = "running"

    def sync(self, call: Callable[[], Coroutine[Any, Any, Shipment]]) -> Shipment:
        return asyncio.run(call())

    async def scatter(self, shipment: Shipment, workers: list[str], hash: bool) -> Shipment:
        assert (len(workers), hash) == (1, False)
        return shipment


def sent(strategy: Any) -> tuple[Workload, Experiment, dict[str, Shipment]]:
    workload = Workload.build(toy_experiment(strategy, data=(X, Y)))
    roles = [COORDINATOR, EVALUATOR, *map(worker_name, range(3))]
    shipping = Shipping(Loopback(), workload, {role: f"tcp://{role}" for role in roles})  # type: ignore[arg-type]
    return workload, shipping.experiment, {role: shipping.to(role) for role in roles}  # type: ignore[misc]


def held(shipment: Shipment) -> set[int]:
    assert shipment.train.held is not None
    return set(shipment.train.held.tolist())


def test_a_process_gets_no_more_samples_than_it_needs() -> None:
    workload, bare, shipments = sent("bsp")
    few = {*trial_rows(len(workload.data.train_y)).tolist()}
    for worker, shard in enumerate(workload.shards):
        shipment = shipments[worker_name(worker)]
        assert held(shipment) == {*shard.tolist()} | few
        there = Workload.build(bare, shipment)
        assert np.array_equal(there.shards[worker], shard)
        own = torch.from_numpy(shard)
        assert torch.equal(there.data.train_x[own], workload.data.train_x[own])
        assert torch.equal(there.data.train_y[own], workload.data.train_y[own])
        assert torch.equal(there.parameters, workload.parameters)
        other = next(i for i in range(60, 0, -1) if i not in {*shard.tolist()} | few)
        with pytest.raises(DataError, match=f"sample {other} is not in this process"):
            there.data.train_x[torch.tensor([other])]
        with pytest.raises(DataError, match="sample 0 is not in this process"):
            there.data.val_x[torch.tensor([0])]
    assert held(shipments[COORDINATOR]) == few
    whole = shipments[EVALUATOR].dataset()
    assert torch.equal(whole.train_x, workload.data.train_x)
    assert torch.equal(whole.val_y, workload.data.val_y)
    with pytest.raises(ps.SpecError, match="pass it"):
        bare.data.load(Streams(0))


def test_workers_whose_strategy_needs_more_get_more() -> None:
    injecting = {"name": "selsync", "sharing_workers": 0.5, "shared_fraction": 0.5}
    assert sent(injecting)[2][worker_name(0)].train.held is None
    assert sent("hermes")[2][worker_name(0)].val.held is None
