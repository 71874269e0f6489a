"""Computing in bfloat16 with float32 servers: torch's autocast in a plain loop is the oracle."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import psbench as ps
from psbench.errors import ParameterError
from psbench.testing import toy_experiment
from psbench.training.build import Workload
from psbench.training.loss_scaling import SCALE, scaled_gradient
from tests.networks import Answers

GIVEN = {"cluster": {"workers": 1}, "stop": {"updates": 6}, "model": {"name": "mlp", "hidden": [8]}}


def plainly(experiment, dtype=torch.bfloat16):
    """Train in plain torch, forward and backward by autocast, on the same batches; halves with its scaler."""
    workload = Workload.build(experiment)
    trainer, module = workload.trainer(), workload.model.module
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=dtype == torch.float16)
    for _ in range(experiment.stop.updates):
        where = torch.from_numpy(trainer.start(0, experiment.batch_size).indices)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            outputs = module(workload.data.train_x[where])
        assert outputs.dtype == dtype
        scaler.scale(cross_entropy(outputs.float(), workload.data.train_y[where])).backward()
        scaler.step(optimizer)
        scaler.update()
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


@pytest.mark.slow
def test_fp16_is_torch_s_autocast_with_its_gradient_scaler():
    experiment = toy_experiment(precision="fp16", **GIVEN)
    run, whole = ps.run(experiment), ps.run(toy_experiment(**GIVEN))
    assert torch.equal(run.parameters, plainly(experiment, torch.float16))
    assert run.parameters.dtype == torch.float32
    assert not torch.equal(run.parameters, whole.parameters)
    torch.testing.assert_close(run.parameters, whole.parameters, rtol=0.02, atol=0.01)


def gradient_in_halves(weight: float, factor: float) -> torch.Tensor:
    """Return the gradient of factor * weight in 16 bits, scaled; without a scale it may be 0 or infinite."""
    w = torch.tensor([weight], requires_grad=True)
    loss = (w.half() * factor).float().sum()
    return scaled_gradient(loss, lambda scaled, again: torch.autograd.grad(scaled, w, retain_graph=again)[0])


def test_a_small_gradient_does_not_vanish():
    w = torch.tensor([1.0], requires_grad=True)
    (1e-5 * (w.half() * 0.001).float().sum()).backward()
    assert w.grad == 0
    w = torch.tensor([1.0], requires_grad=True)
    loss = 1e-5 * (w.half() * 0.001).float().sum()
    found = scaled_gradient(loss, lambda scaled, again: torch.autograd.grad(scaled, w, retain_graph=again)[0])
    torch.testing.assert_close(found, torch.tensor([1e-8]), rtol=0.1, atol=0)


@pytest.mark.parametrize("factor", [1.0, 100.0, 30_000.0])
def test_a_scale_that_overflows_is_halved(factor):
    """30,000 times 2 is the most that a half takes; a power of 2 changes no digit."""
    assert gradient_in_halves(0.5, factor) == factor


def test_a_loss_that_is_not_finite_has_its_gradient():
    assert gradient_in_halves(float("inf"), 2.0) == 2.0
    w = torch.tensor([1.0], requires_grad=True)
    found = scaled_gradient(
        w.sum() * 0 + 70000.0 * w.half().sum(), lambda s, a: torch.autograd.grad(s, w, retain_graph=a)[0]
    )
    assert found.isinf()


def test_an_unknown_precision_is_refused():
    with pytest.raises(ParameterError, match="precision"):
        toy_experiment(precision="fp8")
