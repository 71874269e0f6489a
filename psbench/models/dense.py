"""Models of fully connected layers; a sample of any shape is flattened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from psbench.core.specification import parameter
from psbench.models.base import Model

if TYPE_CHECKING:
    from torch import Generator, nn


class MLP(Model):
    """Fully connected layers with rectifiers between them.

    Parameters
    ----------
    hidden : tuple of int
        Neurons of each hidden layer. (64,) makes 64-64-10 on the digits; (128, 64) on MNIST is the model of
        109,386 parameters in the Hermes authors' example.

    Notes
    -----
    Reduces to: the layers of `linear` when `hidden` is empty.
    `perceptron` has sigmoids in the place of the rectifiers.
    """

    name: ClassVar[str] = "mlp"
    source: ClassVar[str] = "Hermes, authors' code: 784-128-64-10"

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = parameter(
        (64,), "neurons of each hidden layer", unit="neurons"
    )

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return flatten, then linear layers with rectifiers between."""
        from torch import nn

        return dense((math.prod(input_shape), *self.hidden, num_outputs), nn.ReLU)


class Perceptron(Model):
    """Fully connected layers with sigmoids between them: MLlib's multilayer perceptron.

    Parameters
    ----------
    hidden : tuple of int
        Neurons of each hidden layer. (15, 15) on 28 features and two classes is the thesis' 28-15-15-2 with
        its 707 parameters.

    Notes
    -----
    Reduces to: the function of `mlp` with sigmoids for rectifiers, and that of `linear` when `hidden` is
    empty. Weights and biases of a layer are uniform in +-2.4/sqrt(fan_in) at the start, as in Spark's code
    (`AffineLayerModel`): a sigmoid saturates less with such weights than with those for a rectifier.
    Our reading: the thesis names MLlib's perceptron, whose hidden layers are sigmoids and whose last is a
    softmax; here the softmax is in the loss.
    """

    name: ClassVar[str] = "perceptron"
    source: ClassVar[str] = "thesis ch. 2: 28-15-15-2; Spark MLlib 2.4"

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = parameter(
        (15, 15), "neurons of each hidden layer", unit="neurons", source="thesis ch. 2"
    )

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return flatten, then linear layers with sigmoids between."""
        from torch import nn

        return dense((math.prod(input_shape), *self.hidden, num_outputs), nn.Sigmoid)

    def initialise(self, network: nn.Module, generator: Generator) -> None:
        """Draw weights and biases of each layer uniformly in +-2.4/sqrt(fan_in)."""
        import torch
        from torch import nn

        with torch.no_grad():
            for layer in network.modules():
                if isinstance(layer, nn.Linear):
                    bound = 2.4 / math.sqrt(layer.in_features)
                    layer.weight.uniform_(-bound, bound, generator=generator)
                    layer.bias.uniform_(-bound, bound, generator=generator)


def dense(widths: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """Return flatten and linear layers of these widths, with activations between them."""
    from torch import nn

    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])


class Logistic(Model):
    """Multinomial logistic regression: one linear layer with biases, all zero at the start.

    With cross-entropy the objective is convex: every seed and every strategy has the same optimum, and from
    zero the first loss is ln(classes). With two classes it is binary logistic regression: the two rows of
    weights stay opposite, and their difference moves at twice the rate. Numbers are learned by `linear`.
    """

    name: ClassVar[str] = "logistic"
    source: ClassVar[str] = "Bishop 2006, sec. 4.3.4"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return flatten and one linear layer."""
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_outputs))

    def initialise(self, network: nn.Module, generator: Generator) -> None:
        """Set all parameters to zero; nothing is drawn."""
        import torch

        with torch.no_grad():
            for values in network.parameters():
                values.zero_()


class Linear(Model):
    """One linear layer, initialised at random like the last layer of the other networks.

    Where the target is a number it is linear regression, trained with the mean squared error. Where there are
    classes it is the function of `logistic`, trained with the same loss (cross-entropy); it differs in its
    random start and in `bias`. It is the smallest model that shows how a start by chance and a seed act.

    Notes
    -----
    Our reading: the loss of a sample is (w x + b - y)^2, as everywhere else here; MLlib's is half of that, so
    its gradient at the same rate is half of ours, and a rate of theirs corresponds to half of it here.
    """

    name: ClassVar[str] = "linear"
    source: ClassVar[str] = "thesis ch. 2"

    bias: bool = parameter(True, "whether each output has a bias")

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return flatten and one linear layer."""
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_outputs, bias=self.bias))
