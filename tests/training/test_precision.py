"""Computing in bfloat16 with float32 servers: torch's autocast in a plain loop is the oracle."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import psbench as ps
from psbench.errors import ParameterError
from psbench.testing import toy_experiment
from psbench.training.build import Workload
from tests.networks import Answers

GIVEN = {"cluster": {"workers": 1}, "stop": {"updates": 6}, "model": {"name": "mlp", "hidden": [8]}}


def plainly(experiment):
    """Train in plain torch, forward and backward by autocast, on the same batches."""
    workload = Workload.build(experiment)
    trainer, module = workload.trainer(), workload.model.module
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(experiment.stop.updates):
        where = torch.from_numpy(trainer.start(0, experiment.batch_size).indices)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = module(workload.data.train_x[where])
        assert outputs.dtype == torch.bfloat16
        cross_entropy(outputs.float(), workload.data.train_y[where]).backward()
        optimizer.step()
    return torch.cat([values.detach().flatten() for values in module.parameters()])


@pytest.mark.slow
def test_bf16_is_torch_s_autocast_and_what_servers_hold_is_float32():
    experiment = toy_experiment(precision="bf16", **GIVEN)
    run = ps.run(experiment)
    assert torch.equal(run.parameters, plainly(experiment))
    whole = ps.run(toy_experiment(**GIVEN))
    assert run.parameters.dtype == torch.float32
    assert not torch.equal(run.parameters, whole.parameters)
    torch.testing.assert_close(run.parameters, whole.parameters, rtol=0.1, atol=0.02)
    assert run.summary()["bytes"] == whole.summary()["bytes"]
    assert ps.Experiment.from_spec(experiment.spec()).precision == "bf16"


@pytest.mark.slow
def test_answers_of_any_structure_are_float32_in_processes_too():
    given = {"model": Answers, "precision": "bf16", "cluster": {"workers": 2}, "stop": {"updates": 4}}
    one, two = (ps.run(toy_experiment(processes=count, metrics=["macro_f1"], **given)) for count in (1, 2))
    assert torch.equal(one.parameters, two.parameters)
    assert one.log.digest() == two.log.digest()


def test_an_unknown_precision_is_refused():
    with pytest.raises(ParameterError, match="precision"):
        toy_experiment(precision="fp16")
