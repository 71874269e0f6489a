"""HeLoCo's filter: what of a stale difference is against the outer momentum is made smaller."""

from __future__ import annotations

from psbench.core import Vector

#: of the paper's table 3: a cosine that passes, shares, the largest share, and the weight of the momentum
_ALIGNED, _SHARE, _LARGEST, _KAPPA, _EPSILON = 0.2, 0.5, 0.5, 3.0, 1e-8


def filtered(difference: Vector, momentum: Vector) -> Vector:
    """Return a tensor's difference D, less against or more along the momentum m.

    With c their cosine and q = |D|/(|D| + 3 |m| + 1e-8): D itself if c >= .2, or if one of them is 0. If
    c < 0: D - b c |D| m/|m| with b = min(.5 (-c) q, .5). Else D/|D| is turned towards m/|m| by
    min((1 - c) q, 1), and is as long as before.

    Source
    ------
    HeLoCo (2606.00271), Alg. 1, as one re-implementation has it; unverified.

    Examples
    --------
    >>> import torch
    >>> filtered(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0])).tolist()
    [1.0, 0.0]
    """
    length, other = float(difference.norm()), float(momentum.norm())
    if min(length, other) < _EPSILON:
        return difference
    cosine = float(difference.dot(momentum)) / (length * other)
    if cosine >= _ALIGNED:
        return difference
    trust = length / (length + _KAPPA * other + _EPSILON)
    if cosine < 0:
        share = min(_SHARE * -cosine * trust, _LARGEST)
        return difference.add(momentum, alpha=-share * cosine * length / other)
    turn = min((1.0 - cosine) * trust, 1.0)
    turned = difference * ((1.0 - turn) / length) + momentum * (turn / other)
    found: Vector = turned * (length / max(float(turned.norm()), _EPSILON))
    return found
