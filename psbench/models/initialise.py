"""Initial values of a network's parameters, drawn from a separate generator."""

from __future__ import annotations

import math

import torch
from torch import nn

WEIGHTED = (nn.Linear, nn.Conv2d)


def knows(network: nn.Module) -> bool:
    """Return whether `initialise` sets every parameter and buffer of a network."""
    layers = [
        layer
        for layer in network.modules()
        if [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
    ]
    return all(isinstance(layer, (*WEIGHTED, nn.BatchNorm2d)) for layer in layers)


def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Set every parameter and buffer in place.

    Weights that feed a rectifier are normal with variance 2 / fan_in (He et al. 2015) and their biases 0.
    The last linear layer, whose output is the logits, is uniform in +-1 / sqrt(fan_in), weights and biases,
    as in torch. Batch normalisation begins with scale 1, shift 0, mean 0, variance 1.

    Raises
    ------
    TypeError
        On a layer with parameters or buffers that it does not know, so that none stays unset.
    """
    layers = [module for module in network.modules() if list(module.parameters(recurse=False))]
    for layer in layers:
        if isinstance(layer, WEIGHTED):
            he_normal(layer, generator)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
        else:
            raise TypeError(f"no initial values known for a {type(layer).__name__} layer")
    if layers and isinstance(layers[-1], nn.Linear):
        small_uniform(layers[-1], generator)


@torch.no_grad()
def he_normal(layer: nn.Linear | nn.Conv2d, generator: torch.Generator) -> None:
    """Draw the weights of a layer that feeds a rectifier; He et al. 2015, eq. 10."""
    fan_in = layer.weight[0].numel()
    layer.weight.normal_(0.0, math.sqrt(2.0 / fan_in), generator=generator)
    if layer.bias is not None:
        layer.bias.zero_()


@torch.no_grad()
def small_uniform(layer: nn.Linear, generator: torch.Generator) -> None:
    """Draw weights and biases of an output layer as torch does by default."""
    bound = 1.0 / math.sqrt(layer.in_features)
    layer.weight.uniform_(-bound, bound, generator=generator)
    if layer.bias is not None:
        layer.bias.uniform_(-bound, bound, generator=generator)
