"""Loss and gradient of fully connected layers, written out.

For a model as small as `mlp` on the digits autograd's bookkeeping takes four times as long as the arithmetic.
Here the same kernels are called in the same order on the same tensors, so the bits are autograd's; the first
batch of every shape is computed both ways, and where one bit differs autograd goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from psbench.optimization.absent import without_marks
from psbench.optimization.losses import IGNORED, MSE, CrossEntropy, Loss

_aten = torch.ops.aten
#: of outputs and targets: the loss, and its gradient with respect to the outputs
LossGradient: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
#: of the gradient with respect to the result of an activation, and that result: the gradient before it
Backward: TypeAlias = Callable[[Tensor, Tensor], Tensor]

#: torch's number for the reduction "mean"
_MEAN = 1
_ONE = torch.ones((), dtype=torch.float32)  #: the gradient of a loss with respect to itself
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Layer(NamedTuple):
    """A linear layer, and the activation after it."""

    weight: Tensor
    bias: Tensor | None
    forward: Callable[[Tensor], Tensor] | None
    backward: Backward | None


def _relu_backward(gradient: Tensor, result: Tensor) -> Tensor:
    found: Tensor = _aten.threshold_backward.default(gradient, result, 0)
    return found


_ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Backward]] = {
    nn.ReLU: (torch.relu, _relu_backward),
    nn.Sigmoid: (torch.sigmoid, _aten.sigmoid_backward.default),
    nn.Tanh: (torch.tanh, _aten.tanh_backward.default),
}


class DenseGradient:
    """Computes the gradient as autograd does, for a chain of linear layers and activations.

    Parameters
    ----------
    layers : list of _Layer
    loss_gradient : callable
    """

    def __init__(self, layers: list[_Layer], loss_gradient: LossGradient) -> None:
        self._layers, self._loss_gradient = layers, loss_gradient
        self._size = sum(t.numel() for layer in layers for t in layer[:2] if t is not None)
        self._inference = torch.inference_mode()
        self._transposed = [layer.weight.t() for layer in layers]  # views, created once instead of per step

    def compute(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, float]:
        """Return the gradient as one new vector, and the loss.

        Shapes
        ------
        inputs : float32, (B, ...)    targets : int64 or float32, (B,)    gradient : float32, (num_params,)
        """
        gradient = torch.empty(self._size)  # outside inference mode: others may change it in place
        with self._inference:
            x = inputs if inputs.dim() == 2 else inputs.flatten(1)
            given = []  # to each linear layer, and at last the outputs
            for layer, weight in zip(self._layers, self._transposed, strict=True):
                given.append(x)
                x = x.mm(weight) if layer.bias is None else torch.addmm(layer.bias, x, weight)
                x = x if layer.forward is None else layer.forward(x)
            loss, slope = self._loss_gradient(x, targets)
            torch.cat(self._backward([*given, x], slope), out=gradient)
            return without_marks(gradient), loss.item()

    def _backward(self, given: list[Tensor], slope: Tensor) -> list[Tensor]:
        parts: list[Tensor] = []
        for at in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[at]
            if layer.backward is not None:
                slope = layer.backward(slope, given[at + 1])
            if layer.bias is not None:
                parts.append(slope.sum(0))
            parts.append(slope.t().mm(given[at]).view(-1))
            if at:
                slope = slope.mm(layer.weight)
        parts.reverse()
        return parts


class CheckedGradient:
    """Uses the explicit gradient if it matches autograd bit by bit, and autograd otherwise.

    Parameters
    ----------
    written_out : DenseGradient or None
    """

    def __init__(self, written_out: DenseGradient | None) -> None:
        self._written_out = written_out
        self._agreed: set[tuple[torch.Size, torch.Size]] = set()

    def compute(
        self, inputs: Any, targets: Tensor, by_autograd: Callable[[Any, Tensor], tuple[Tensor, float]]
    ) -> tuple[Tensor, float]:
        """Return gradient and loss; `by_autograd` computes them with autograd."""
        if self._written_out is None:
            return by_autograd(inputs, targets)
        shapes = inputs.shape, targets.shape
        if shapes in self._agreed:
            return self._written_out.compute(inputs, targets)
        gradient, loss = by_autograd(inputs, targets)
        if _same(self._written_out, inputs, targets, gradient, loss):
            self._agreed.add(shapes)
        else:
            self._written_out = None
        return gradient, loss


def _same(written_out: DenseGradient, inputs: Tensor, targets: Tensor, gradient: Tensor, loss: float) -> bool:
    """Return whether the explicit gradient and loss equal these, bit for bit."""
    try:
        ours, our_loss = written_out.compute(inputs, targets)
    except (RuntimeError, AttributeError):  # unsupported shapes or types, or a function that torch renamed
        return False
    return our_loss == loss and torch.equal(ours, gradient)


# -------------------------------------------------------------------- losses


def _cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logarithms = torch.log_softmax(outputs, 1)
    loss, weight = _aten.nll_loss_forward.default(logarithms, targets, None, _MEAN, IGNORED)
    slope = _aten.nll_loss_backward.default(_ONE, logarithms, targets, None, _MEAN, IGNORED, weight)
    # not through `torch.ops`, which doubles the time
    return loss, torch._log_softmax_backward_data(slope, logarithms, 1, outputs.dtype)


def _squared_error(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    numbers = outputs.view_as(targets)
    loss = _aten.mse_loss.default(numbers, targets, _MEAN)
    slope = _aten.mse_loss_backward.default(_ONE, numbers, targets, _MEAN)
    return loss, slope.view_as(outputs)


def _loss_gradient(loss: Loss) -> LossGradient | None:
    if type(loss) is CrossEntropy and not loss.label_smoothing:
        return _cross_entropy
    return _squared_error if type(loss) is MSE else None


# -------------------------------------------------------------------- which models


def dense_gradient(module: nn.Module, loss: Loss) -> DenseGradient | None:
    """Return the written-out gradient of a model and a loss; None if only autograd can compute it.

    Parameters
    ----------
    module : nn.Module
        It is written out if it is a `Sequential` of an optional `Flatten`, `Linear` layers and activations
        known here, all trained, float32, on the CPU, used once and without hooks. It may not get other
        tensors afterwards.
    loss : Loss
    """
    loss_gradient, layers = _loss_gradient(loss), _layers(module)
    if loss_gradient is None or layers is None:
        return None
    own = [t for layer in layers for t in layer[:2] if t is not None]
    if [id(t) for t in own] != [id(t) for t in module.parameters()] or not all(map(_is_plain, own)):
        return None  # a layer that is used twice is in the module's parameters once
    return DenseGradient([_detached(layer) for layer in layers], loss_gradient)


def _is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) is nn.Parameter
        and tensor.requires_grad
        and tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and not tensor._backward_hooks
    )


def _detached(layer: _Layer) -> _Layer:
    return layer._replace(
        weight=layer.weight.detach(), bias=None if layer.bias is None else layer.bias.detach()
    )


def _layers(module: nn.Module) -> list[_Layer] | None:
    """Return the layers of a module, or None if it contains anything else."""
    if type(module) is not nn.Sequential or any(getattr(m, h) for m in module.modules() for h in _HOOKS):
        return None
    layers: list[_Layer] = []
    for place, part in enumerate(_flat(module)):
        if type(part) is nn.Linear:
            layers.append(_Layer(part.weight, part.bias, None, None))
        elif type(part) in _ACTIVATIONS and layers and layers[-1].forward is None:
            layers[-1] = _Layer(*layers[-1][:2], *_ACTIVATIONS[type(part)])
        elif type(part) is not nn.Flatten or place or (part.start_dim, part.end_dim) != (1, -1):
            return None
    return layers or None


def _flat(module: nn.Sequential) -> Iterator[nn.Module]:
    for part in module:
        if type(part) is nn.Sequential:
            yield from _flat(part)
        else:
            yield part
