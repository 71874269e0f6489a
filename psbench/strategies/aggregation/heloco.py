"""HeLoCo: a stale difference is corrected along the outer momentum, and workers start ahead of the model."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Action, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter
from psbench.core.answered_models import AnsweredModels
from psbench.core.arithmetic import apart, end_to_end
from psbench.core.needs import NEEDS_SINGLE_PUSHES

SOURCE = "Al Asif et al. 2026 (HeLoCo)"
#: of the paper's table 3: a cosine that passes, shares, the largest share, and the weight of the momentum
_ALIGNED, _SHARE, _LARGEST, _KAPPA, _EPSILON = 0.2, 0.5, 0.5, 3.0, 1e-8


class HeLoCo(AnsweredModels):
    """Correct each worker's difference along the outer momentum, step, and reply with a look-ahead model.

    A push carries D, what its worker's steps made, and is applied when it arrives. G is rho times D, of
    which each tensor is corrected by the momentum m (see `corrected`); then m <- mu m + (1 - mu) G and
    x <- x - lr (G + mu m). The worker goes on from x - lr mu m.

    Parameters
    ----------
    outer_momentum : float, 0 <= mu < 1
        m is an exponential mean of the G: in the long run as long as one of them.
    arrival_weight : float, > 0
        rho. The paper recommends one over the root of the number of workers.

    Notes
    -----
    Reduces to: with mu = 0 a plain step along each difference, of rate lr rho, while each has a cosine of .2
    or more with the one before.
    Our readings: a worker that comes later, or back, begins from x.

    Source
    ------
    Al Asif et al. (2026), "HeLoCo: Efficient asynchronous low-communication training under data and device
    heterogeneity", arXiv:2606.00271, Algs. 1 and 2, eqs. 5, 9-15, 18-19, as in the code of an author's
    company, PanocularAI/torchft 0b0bae4, torchft/heloco.py.

    Examples
    --------
    >>> HeLoCo(outer_lr=0.5, outer_momentum=0.0).effective_outer_rate
    0.5
    """

    name = "heloco"
    source = SOURCE
    payload = "difference"
    needs = (NEEDS_SINGLE_PUSHES,)
    weighs_samples = False
    per_tensor = True

    outer_lr: float = parameter(0.7, "rate of the outer step", source=SOURCE, gt=0)
    outer_momentum: float = parameter(0.9, "momentum of the outer step", source=SOURCE, ge=0, lt=1)
    arrival_weight: float = parameter(1.0, "weight of a corrected difference", source=SOURCE, gt=0)

    @property
    def effective_outer_rate(self) -> float:
        """Return rho lr (1 + mu): in the long run m is G."""
        return self.arrival_weight * self.outer_lr * (1.0 + self.outer_momentum)

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Commit the push with weight rho."""
        return [Apply(pushes, [self.arrival_weight])]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Correct the difference tensor by tensor, take the outer step, and answer with the model ahead."""
        (push,), m, mu = pushes, state.vector("momentum"), self.outer_momentum
        sizes = [size for _, size in step.tensors]
        pairs = zip(apart(push.vector, sizes), apart(m, sizes), strict=True)
        direction = end_to_end([corrected(difference, momentum) for difference, momentum in pairs])
        direction *= push.weight
        m.mul_(mu).add_(direction, alpha=1.0 - mu)
        x.sub_(direction + mu * m, alpha=self.outer_lr)
        step.reply(x - self.outer_lr * mu * m)


def corrected(difference: Vector, momentum: Vector) -> Vector:
    """Return a tensor's difference D, less against or more along the momentum m.

    With c their cosine and q = |D|/(|D| + 3 |m| + 1e-8): D itself if c >= .2, or if one of them is 0. If
    c < 0: D - b c |D| m/|m| with b = min(.5 (-c) q, .5). Else D/|D| is turned towards m/|m| by
    min((1 - c) q, 1), and is as long as before.

    Examples
    --------
    >>> import torch
    >>> corrected(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0])).tolist()
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
