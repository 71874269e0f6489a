"""Every strategy of the catalogue, once, on a live cluster of two workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from psbench.backends.replay import replay
from psbench.core.log import Kind
from psbench.experiment import Experiment
from psbench.runs import run
from psbench.strategies import CATALOGUE

pytestmark = [pytest.mark.dask, pytest.mark.timeout(180)]

#: an entry whose defaults are for longer runs: chunks so small that one is done in a moment
SMALLER = {"hermes": {"chunk_samples": 48, "passes": 1, "alpha": -0.1, "patience": 1}}
SWITCHES = {"strategy_switch": {"rule": {"name": "after", "fraction": 0.5}}}


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_entry_runs_live_and_is_replayed(name: str, scheduler: str) -> None:
    strategy: dict[str, Any] = {"name": name} | SMALLER.get(name, {}) | SWITCHES.get(name, {})
    spec = Experiment(
        strategy=strategy,
        cluster={"workers": 2, "step_time": "constant"},
        batch_size=24,
        stop={"epochs": 0.3},
        evaluate_every=0.15,
        backend="dask",
        scheduler=scheduler,
    )
    done = run(spec)
    assert done.meta["status"] == "finished"
    assert done.parameters is not None
    assert torch.isfinite(done.parameters).all()
    evaluations = done.log.evaluations()
    assert evaluations[0]["train_loss"] > evaluations[-1]["train_loss"] > 0
    rows = done.log.rows()
    assert set(rows["worker"][rows["kind"] == Kind.PUSH]) == {0, 1}
    assert replay(done) == len(done.log)  # the same decisions again, from the log alone
