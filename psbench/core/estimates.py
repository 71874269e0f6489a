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
            "{part} adds pushes to gradient estimates, but pushes under {other} are gradients",
        ),
    )


class SentDifferences(Communication):
    """A worker sends the difference between its gradient and the gradient's estimate."""

    needs = (
        Need(
            "aggregation",
            lambda a: isinstance(a, EstimatedGradients),
            "{part} sends differences from gradient estimates, which {other} would interpret as gradients",
        ),
        Need(
            "communication",
            lambda m: not m.codec.has_memory,
            "{part} already corrects compression errors, and the codec of {other} would correct them again",
            "set error_feedback of that codec to false",
        ),
    )
