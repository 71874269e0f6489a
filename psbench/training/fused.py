"""Fused torch kernels for optimizer steps, used where they are bit-identical to separate operations."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from psbench.core.arithmetic import momentum_step

#: entries of the vector registers of all processors, and of a cache line: the kernel rounds what is left over
#: at the end in another way
_WHOLE = 64


def fused_momentum_step(
    x: Tensor, mean: Tensor, velocity: Tensor, lr: float, beta: float, nesterov: bool
) -> None:
    """Compute `momentum_step` bit for bit, in half the time on a vector larger than the cache."""
    alike = all(each.dtype == torch.float32 and each.is_contiguous() for each in (x, mean, velocity))
    fits = alike and beta > 0 and x.device.type == "cpu" and _is_exact()  # it takes no velocity without beta
    count = len(x) - len(x) % _WHOLE if fits else 0
    if count:
        _fused(x[:count], mean[:count], velocity[:count], lr, beta, nesterov)
    if count < len(x):
        momentum_step(x[count:], mean[count:], velocity[count:], lr, beta, nesterov)


def _fused(x: Tensor, mean: Tensor, velocity: Tensor, lr: float, beta: float, nesterov: bool) -> None:
    torch._fused_sgd_(
        [x],
        [mean],
        [velocity],
        weight_decay=0.0,
        momentum=beta,
        lr=lr,
        dampening=0.0,
        nesterov=nesterov,
        maximize=False,
        is_first_step=False,
    )


@cache
def _is_exact() -> bool:
    """Return whether the fused kernel rounds like separate steps on this processor."""
    if not hasattr(torch, "_fused_sgd_"):
        return False
    drawn = torch.randn(3, 16 * _WHOLE, generator=torch.Generator().manual_seed(0))
    for nesterov in (True, False):
        ours, plain = drawn.clone(), drawn.clone()
        _fused(ours[0], ours[1], ours[2], 0.7, 0.9, nesterov)
        momentum_step(plain[0], plain[1], plain[2], 0.7, 0.9, nesterov)
        if not torch.equal(ours, plain):
            return False
    return True
