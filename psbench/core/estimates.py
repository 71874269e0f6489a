"""Base classes of aggregations that estimate gradients from the differences that workers send."""

from __future__ import annotations

from psbench.core.aggregation import Aggregation
from psbench.core.needs import Need
from psbench.core.parts import Communication


class EstimatedGradients(Aggregation):
    """Base of aggregations with an estimate of each worker's gradient, which pushes update at both ends."""

    needs = (
        Need(
            "communication",
            lambda m: isinstance(m, SentDifferences),
            "{part} adds pushes to estimates of gradients, and under {other} they are gradients",
        ),
    )


class SentDifferences(Communication):
    """A worker sends the difference between its gradient and the gradient's estimate."""

    needs = (
        Need(
            "aggregation",
            lambda a: isinstance(a, EstimatedGradients),
            "{part} sends differences from estimates of gradients, which {other} would take for gradients",
        ),
        Need(
            "communication",
            lambda m: not m.codec.has_memory,
            "{part} sends again what a push has left out, and so would the codec of {other}",
            "set error_feedback of its codec to false",
        ),
    )
