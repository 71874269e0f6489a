"""The three outer momenta that are called Nesterov's, and how far each of them moves the model."""

from __future__ import annotations

from typing import Literal, TypeAlias

from psbench.core import Vector

NesterovForm: TypeAlias = Literal["sum", "average", "blend"]


def nesterov(difference: Vector, momentum: Vector, beta: float, form: NesterovForm = "sum") -> Vector:
    """Return the direction of an outer step along a difference D, with the momentum m updated in place.

    - sum, torch's: m <- beta m + D; D + beta m
    - average, of HeLoCo and momentum look-ahead: m <- beta m + (1 - beta) D; D + beta m
    - blend: m <- beta m + D; (1 - beta) D + beta m

    Examples
    --------
    >>> import torch
    >>> m = torch.zeros(1)
    >>> nesterov(torch.tensor([1.0]), m, 0.5, "average").item(), m.item()
    (1.25, 0.5)
    """
    entering, own = _shares(beta, form)
    momentum.mul_(beta).add_(difference, alpha=entering)
    return (difference if own == 1.0 else difference * own).add(momentum, alpha=beta)


def first_step(beta: float, form: NesterovForm = "sum") -> float:
    """Return the first step along a difference, as a multiple of it and of the rate.

    Examples
    --------
    >>> [round(first_step(0.9, form), 2) for form in ("sum", "average", "blend")]
    [1.9, 1.09, 1.0]
    """
    entering, own = _shares(beta, form)
    return own + beta * entering


def steady_step(beta: float, form: NesterovForm = "sum") -> float:
    """Return the step that a constant difference leads to, as a multiple of it and of the rate.

    Examples
    --------
    >>> [round(steady_step(0.9, form), 2) for form in ("sum", "average", "blend")]
    [10.0, 1.9, 9.1]
    """
    if form == "average":
        return 1.0 + beta
    return 1.0 / (1.0 - beta) - (beta if form == "blend" else 0.0)


def _shares(beta: float, form: NesterovForm) -> tuple[float, float]:
    """Return the shares of a difference that enter the momentum, and the step beside the momentum."""
    return (1.0 - beta if form == "average" else 1.0), (1.0 - beta if form == "blend" else 1.0)
