"""Plain SGD and Adam are torch's, bit by bit; every other optimizer is torch's itself."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from psbench.optimization.optimizer import SGD, Adam, Optimizer
from psbench.optimization.update import AdamUpdate, SGDUpdate, TorchUpdate

RATES = (0.1, 0.1, 0.037, 0.02, 1e-3)


def gradients(count: int, size: int = 1000) -> list[torch.Tensor]:
    """Return gradients of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) * 10.0**-k for k in range(count)]


def kinds() -> list[Optimizer]:
    """Return every form of SGD, and of Adam."""
    return [
        *(
            SGD(momentum=momentum, weight_decay=decay, nesterov=nesterov)
            for momentum, decay, nesterov in product((0.0, 0.9), (0.0, 5e-4), (False, True))
            if momentum or not nesterov
        ),
        *(Adam(beta1=0.8, beta2=0.99, weight_decay=decay) for decay in (0.0, 5e-4)),
    ]


@pytest.mark.parametrize("optimizer", kinds(), ids=repr)
def test_written_out_steps_have_the_bits_of_torch(optimizer: Optimizer) -> None:
    """Whatever the form, with rates and a momentum that change between two steps."""
    ours, theirs = torch.ones(1000), torch.ones(1000)
    update, oracle = optimizer.update(ours), TorchUpdate(theirs, optimizer.build(theirs))
    assert isinstance(update, (SGDUpdate, AdamUpdate))
    for number, (gradient, lr) in enumerate(zip(gradients(len(RATES)), RATES, strict=True)):
        if number == 3 and optimizer.coefficient:
            for each in (update, oracle):
                each.set_momentum(0.45)
        given = gradient.clone()
        update.step(gradient, lr)
        oracle.step(given, lr)
        assert torch.equal(ours, theirs), number
        assert torch.equal(gradient, given)
    assert {n: t.tolist() for n, t in update.state().items()} == {
        n: t.tolist() for n, t in oracle.state().items()
    }


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam()], ids=["sgd", "adam"])
def test_state_of_either_is_continued_by_the_other(optimizer: Optimizer) -> None:
    """A checkpoint written with torch's has the tensors that the written-out one continues from."""
    first, second = gradients(2)
    theirs, ours = torch.zeros(1000), torch.zeros(1000)
    oracle = TorchUpdate(theirs, optimizer.build(theirs))
    oracle.step(first, 0.1)
    ours.copy_(theirs)
    update = optimizer.update(ours)
    update.load_state({name: tensor.clone() for name, tensor in oracle.state().items()})
    update.step(second, 0.1)
    oracle.step(second, 0.1)
    assert torch.equal(ours, theirs)


def test_other_optimizers_are_torchs() -> None:
    """As are those of a subclass that builds something of its own."""

    class Averaged(SGD):
        def build(self, parameters: torch.Tensor) -> torch.optim.Optimizer:
            return torch.optim.ASGD([parameters], lr=self.lr)

    class Infinity(Adam):
        def build(self, parameters: torch.Tensor) -> torch.optim.Optimizer:
            return torch.optim.Adamax([parameters], lr=self.lr)

    for optimizer in (Averaged(), Infinity()):
        assert isinstance(optimizer.update(torch.zeros(2)), TorchUpdate)
