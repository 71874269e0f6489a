"""Pushes as an update finds them."""

import torch

from psbench.core.actions import Apply
from psbench.core.arithmetic import Pushed
from psbench.strategies import make_strategy
from psbench.testing.contract import _played

NO_BUFFERS = torch.zeros(0)


def decided(strategy):
    """Return a strategy, and the commits that it decides on in some schedule."""
    made = make_strategy(strategy)
    actions = [action for *_, answer in _played(made, 0, 80).history for action in answer]
    return made, [action for action in actions if isinstance(action, Apply)]


def how(**given):
    """Return how a version is made; see `Apply`."""
    return Apply((), (), **given)


def pushed(vectors, weights=None, **facts):
    """Return pushes of these vectors, with weight 1 each unless given."""
    weights = [1.0] * len(vectors) if weights is None else weights
    facts = {"buffers": NO_BUFFERS} | facts
    return [Pushed(vector, weight=weight, **facts) for vector, weight in zip(vectors, weights, strict=True)]
