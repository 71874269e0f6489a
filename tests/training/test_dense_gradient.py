"""Written-out gradients have autograd's bits; whatever else a model may be is left to autograd."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from psbench.optimization.losses import L1, MSE, CrossEntropy, Loss
from psbench.training import dense_gradient as module_under_test
from psbench.training.dense_gradient import CheckedGradient, dense_gradient
from psbench.training.model import FlatModel


def by_autograd(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> tuple[Tensor, float]:
    value = loss.mean(module(inputs), targets)
    parts = torch.autograd.grad(value, list(module.parameters()))
    return torch.cat([part.reshape(-1) for part in parts]), value.item()


def layers(*widths: int, activation: type[nn.Module] = nn.ReLU, bias: bool = True) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        parts += [nn.Linear(fan_in, fan_out, bias=bias), activation()]
    return nn.Sequential(*parts[:-1])


NETWORKS = {
    "linear": layers(64, 10),
    "without biases": layers(64, 32, 10, bias=False),
    "mlp": layers(64, 64, 10),
    "three layers": layers(64, 128, 64, 10),
    "sigmoids": layers(64, 15, 15, 10, activation=nn.Sigmoid),
    "tanh": layers(64, 33, 10, activation=nn.Tanh),
    "nested": nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU()), nn.Linear(7, 10)),
    "one number": layers(64, 16, 1),
    "ends with an activation": nn.Sequential(nn.Linear(64, 8), nn.Tanh()),
}


@pytest.mark.parametrize("batch", [1, 2, 3, 32, 257])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_bits_are_autograds(name: str, batch: int) -> None:
    """Of gradient and loss, for classes and for numbers, from images or vectors."""
    module, generator = NETWORKS[name], torch.Generator().manual_seed(batch)
    FlatModel(module)
    outputs = module(torch.zeros(1, 64)).shape[1]
    inputs = torch.randn(batch, 64, generator=generator)
    numbers = torch.randn((batch, outputs) if outputs > 1 else (batch,), generator=generator)
    classes = torch.randint(0, outputs, (batch,), generator=generator)
    for loss, targets in ((CrossEntropy(), classes), (MSE(), numbers)):
        written = dense_gradient(module, loss)
        assert written is not None
        gradient, value = written.compute(inputs, targets)
        expected, expected_value = by_autograd(module, loss, inputs, targets)
        assert torch.equal(gradient, expected)
        assert value == expected_value
        gradient.add_(1.0)  # an ordinary tensor, which may be changed in place
        if isinstance(module[0], nn.Flatten):
            images = inputs.view(batch, 1, 8, 8)
            assert torch.equal(written.compute(images, targets)[0], expected)


def twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked() -> nn.Module:
    module = layers(4, 4)
    module[1].register_forward_hook(lambda module, given, result: 2 * result)
    return module


def frozen() -> nn.Module:
    module = layers(4, 4, 4)
    module[1].weight.requires_grad_(False)
    return module


class Doubled(nn.Linear):
    """Does not compute what its base does."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


OTHERS = {
    "a layer used twice": twice,
    "a hook": hooked,
    "a frozen layer": frozen,
    "a subclass": lambda: nn.Sequential(Doubled(4, 4)),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    "two activations": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Tanh()),
    "another type": lambda: layers(4, 4).double(),
    "no layers": lambda: nn.Sequential(nn.Flatten()),
    "no sequence": lambda: nn.Linear(4, 4),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_left_to_autograd(name: str) -> None:
    assert dense_gradient(OTHERS[name](), CrossEntropy()) is None


def test_other_losses_are_left_to_autograd() -> None:
    for loss in (L1(), CrossEntropy(label_smoothing=0.1)):
        assert dense_gradient(layers(4, 4), loss) is None


def test_every_shape_of_a_batch_is_computed_both_ways_once() -> None:
    module, loss = layers(4, 3), CrossEntropy()
    calls: list[int] = []
    checked = CheckedGradient(dense_gradient(module, loss))

    def slow(inputs: Tensor, targets: Tensor) -> tuple[Tensor, float]:
        calls.append(len(targets))
        return by_autograd(module, loss, inputs, targets)

    for size in (2, 2, 5, 2, 5):
        checked.compute(torch.ones(size, 4), torch.zeros(size, dtype=torch.int64), slow)
    assert calls == [2, 5]


def test_one_other_bit_leaves_the_model_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would be with a torch whose autograd calls other kernels."""
    monkeypatch.setitem(module_under_test._ACTIVATIONS, nn.ReLU, (torch.relu, lambda slope, result: slope))
    module, loss = layers(4, 8, 3), CrossEntropy()
    checked = CheckedGradient(dense_gradient(module, loss))
    inputs, targets = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
    expected, _ = by_autograd(module, loss, inputs, targets)
    for _ in range(3):
        gradient, _ = checked.compute(inputs, targets, lambda x, y: by_autograd(module, loss, x, y))
        assert torch.equal(gradient, expected)


def test_what_only_autograd_can_take_goes_there() -> None:
    """Targets of another shape, which the written-out loss refuses."""
    module, loss = layers(4, 3), MSE()
    checked = CheckedGradient(dense_gradient(module, loss))
    inputs, targets = torch.ones(2, 4, dtype=torch.float32), torch.ones(2, 3, dtype=torch.int64)
    expected, _ = by_autograd(module, loss, inputs, targets)
    gradient, _ = checked.compute(inputs, targets, lambda x, y: by_autograd(module, loss, x, y))
    assert torch.equal(gradient, expected)
