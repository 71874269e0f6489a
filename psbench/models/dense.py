"""Models of fully connected layers; a sample of any shape is flattened."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from psbench.core.part import parameter
from psbench.models.base import Model

if TYPE_CHECKING:
    from torch import nn


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

    Source
    ------
    Hermes, authors' code (784-128-64-10).

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

    def network(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return flatten, then linear layers with rectifiers between."""
        from torch import nn

        widths = (math.prod(input_shape), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
