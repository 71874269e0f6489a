"""Plain SGD is torch's, bit by bit; every other optimizer is torch's itself."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from psbench.training.optim import SGD, Adam
from psbench.training.update import SGDUpdate, TorchUpdate

RATES = (0.1, 0.1, 0.037, 0.02, 1e-3)


def gradients(count: int, size: int = 1000) -> list[torch.Tensor]:
    """Return gradients of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) * 10.0**-k for k in range(count)]


def kinds() -> list[SGD]:
    """Return every form of SGD."""
    return [
        SGD(momentum=momentum, weight_decay=decay, nesterov=nesterov)
        for momentum, decay, nesterov in product((0.0, 0.9), (0.0, 5e-4), (False, True))
        if momentum or not nesterov
    ]


@pytest.mark.parametrize("optimizer", kinds(), ids=lambda o: f"{o.momentum}-{o.weight_decay}-{o.nesterov}")
def test_written_out_steps_have_the_bits_of_torch(optimizer: SGD) -> None:
    """Whatever the form, with rates and a momentum that change between two steps."""
    ours, theirs = torch.ones(1000), torch.ones(1000)
    update, oracle = optimizer.update(ours), TorchUpdate(theirs, optimizer.build(theirs))
    assert isinstance(update, SGDUpdate)
    for number, (gradient, lr) in enumerate(zip(gradients(len(RATES)), RATES, strict=True)):
        if number == 3 and optimizer.momentum:
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


def test_state_of_either_is_continued_by_the_other() -> None:
    """A checkpoint written with torch's SGD has the tensors that the written-out one continues from."""
    optimizer, (first, second) = SGD(momentum=0.9), gradients(2)
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
    """Adam, and a subclass of SGD that builds something of its own."""

    class Averaged(SGD):
        def build(self, parameters: torch.Tensor) -> torch.optim.Optimizer:
            return torch.optim.ASGD([parameters], lr=self.lr)

    for optimizer in (Adam(), Averaged()):
        assert isinstance(optimizer.update(torch.zeros(2)), TorchUpdate)
