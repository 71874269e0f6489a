"""Pushes as an update finds them."""

import torch

from psbench.core.arithmetic import Pushed

NO_BUFFERS = torch.zeros(0)


def pushed(vectors, weights=None, **facts):
    """Return pushes of these vectors, with weight 1 each unless given."""
    weights = [1.0] * len(vectors) if weights is None else weights
    facts = {"buffers": NO_BUFFERS} | facts
    return [Pushed(vector, weight=weight, **facts) for vector, weight in zip(vectors, weights, strict=True)]
