"""Models of fully connected layers; a sample of any shape is flattened."""

from __future__ import annotations

import math
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
    Our reading: (15, 15) on 28 features and two classes is the perceptron 28-15-15-2 of the thesis, with its
    707 parameters; MLlib's has sigmoids where ours has rectifiers.

    Source
    ------
    Hermes, authors' code (784-128-64-10); thesis ch. 2 (28-15-15-2).

    Examples
    --------
    >>> MLP(hidden=(128, 64)).hidden
    (128, 64)
    """

    name: ClassVar[str] = "mlp"
    source: ClassVar[str] = "Hermes, authors' code: 784-128-64-10"

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = parameter(
        (64,), "neurons of each hidden layer", unit="neurons"
    )

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return flatten, then linear layers with rectifiers between."""
        from torch import nn

        widths = (math.prod(input_shape), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))


class Logistic(Model):
    """Multinomial logistic regression: one linear layer with biases, all zero at the start.

    With cross-entropy the objective is convex: every seed and every strategy has the same optimum, and from
    zero the first loss is ln(classes). With two classes it is binary logistic regression: the two rows of
    weights stay opposite, and their difference moves at twice the rate. Numbers are learned by `linear`.

    Source
    ------
    Bishop (2006), "Pattern Recognition and Machine Learning", sec. 4.3.4.
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
    """One linear layer, drawn by chance like the last layer of every other network here.

    Where the target is a number it is linear regression, trained with the mean squared error. Where there are
    classes it is the function of `logistic`, trained with the same loss (cross-entropy); it differs in its
    random start and in `bias`. It is the smallest model that shows how a start by chance and a seed act.

    Parameters
    ----------
    bias : bool
        Whether each output has a constant of its own.

    Notes
    -----
    Our reading: the loss of a sample is (w x + b - y)^2, as everywhere else here; MLlib's is half of that, so
    its gradient at the same rate is half of ours, and a rate of theirs corresponds to half of it here.

    Source
    ------
    Thesis ch. 2.
    """

    name: ClassVar[str] = "linear"

    bias: bool = parameter(True, "whether each output has a constant of its own")

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return flatten and one linear layer."""
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_outputs, bias=self.bias))
