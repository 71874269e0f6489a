"""Loss scaling: gradients of a scaled loss in 16-bit floats, where small ones would be 0.

A half has 5 bits of exponent: what is below 6e-8 in magnitude is 0, and what is above 65,504 is infinite. So
the loss is multiplied before the backward pass and the gradient divided after it, by a power of 2, which
changes no digit.

Source
------
Micikevicius et al. (2018), sec. 3.2; Hermes IV-D names the precision alone.

Notes
-----
Our reading: each step begins with the same scale and repeats its backward pass with half of it while the
gradient overflows. A scale that is learned over the steps, as in torch's GradScaler, would be a state of each
worker, and a step that overflows would be skipped, which no strategy here expects.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

#: of the scales from 8 to 32,768 that the paper names, one at which ordinary losses do not overflow
SCALE = 1024.0


def scaled_gradient(loss: Tensor, gradient: Callable[[Tensor, bool], Tensor]) -> Tensor:
    """Return the gradient of a loss that was scaled for the backward pass.

    Parameters
    ----------
    loss : float32 tensor, scalar
    gradient : callable
        (scaled loss, whether its graph may be needed again) -> its gradient.

    Returns
    -------
    Tensor
        Infinite or NaN only if it is without a scale too.
    """
    scale = SCALE if loss.isfinite() else 1.0
    while True:
        found = gradient(loss * scale, scale > 1)
        if scale == 1 or found.isfinite().all():
            return found.div_(scale) if scale > 1 else found
        scale /= 2
