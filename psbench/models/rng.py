"""Random numbers inside networks, which torch draws from global state: seeded, then restored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

#: torch has one global generator a process, and roles of a run may be threads of one process
_LOCK = threading.RLock()

#: layers of torch whose forward draws nothing
_DRAW_NOTHING = {
    *(nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.Embedding),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softmax),
    *(nn.Hardswish, nn.Hardsigmoid, nn.LogSoftmax, nn.Softplus),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    *(nn.Flatten, nn.Unflatten, nn.Identity, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ZeroPad2d),
}


def may_draw(module: nn.Module) -> bool:
    """Return whether the forward pass of a network may draw random numbers.

    False only for layers that are known not to; a user's class may do anything.
    """
    return not all(
        type(layer) in _DRAW_NOTHING or type(layer).__module__.startswith("psbench.models.")
        for layer in module.modules()
    )


@contextmanager
def drawing_from(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch inside the block, and restore its global random state afterwards.

    One thread at a time: the others wait, as they would draw from each other's numbers.

    Parameters
    ----------
    seed : int, 63 bits
    device : torch.device or None
        A CUDA device has a generator of its own, which is treated alike.
    """
    cuda = [device] if device is not None and device.type == "cuda" else []
    with _LOCK, torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield
