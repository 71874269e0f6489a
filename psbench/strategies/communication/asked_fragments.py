"""The worker's half of Decoupled DiLoCo: streams fragments, and pushes one on request."""

from __future__ import annotations

from collections.abc import Mapping

from psbench.core import Directive, Orders, WorkerPolicy, parameter
from psbench.strategies.communication.fragments import Fragments, Streaming
from psbench.strategies.consistency.quorum import ASKED, SOURCE


class Answering(Streaming):
    """A worker that streams, and pushes earlier, at the end of a step, on request."""

    asked: bool = False

    def on_orders(self, orders: Orders) -> None:
        """Set the steps of a release; record a request to push, unless a push is in transit."""
        asked = bool(orders.get(ASKED))
        if "local_steps" in orders:
            super().on_orders(orders)
            self.asked = asked
        elif not self.exchanging:
            self.asked = self.asked or asked

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Push after the last step, or on request."""
        if self.asked and not self.exchanging:
            self.asked, self.made = False, max(self.made, self.local_steps - 1)
        return super().after_step(stats)


class AskedFragments(Fragments):
    """Like `fragments`, but the server may request a push before a worker has finished its steps.

    Notes
    -----
    Reduces to: `fragments` if no push is asked for.
    Our readings, as the authors have no public code: a fragment's new value goes to those that pushed it, and
    to others with the next push of it; what a worker pushes is measured from the value that it received
    last (`anchor: learner_base` of re-implementations), with which the server's is the same unless the
    worker was late.
    """

    name = "asked_fragments"
    source = SOURCE

    mixing: float = parameter(0.0, "share of its local value that a worker keeps", source=SOURCE, ge=0, le=1)

    def worker_policy(self) -> WorkerPolicy:
        return Answering(overlap=self.overlap)
