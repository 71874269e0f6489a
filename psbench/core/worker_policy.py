"""A worker's decision after a step: the worker's side of a communication part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from psbench.core.actions import Orders

#: what a worker does after a step: continue; report and continue; vote and wait; push and wait; push and
#: continue (overlap); or wait for the answer to a push under way
Directive: TypeAlias = Literal["continue", "report", "vote", "push", "push_and_continue", "wait"]


class WorkerPolicy(BaseModel):
    """The worker's side of a communication part: a small picklable state machine.

    Statistics are those that some part `reads`, and always `loss`; they may be computed lazily. The worker
    loop (`core.worker_loop`) handles the orders `batch_size` and `push` itself.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Return the directive after a step."""
        return "push"

    def on_answer(self, waited: bool) -> Directive:
        """Return the directive on the answer to a push; `waited`: whether the worker waited for it."""
        return "continue"

    def takes_answer(self, stepped: bool) -> bool:
        """Return whether an available answer is applied now: after a step (`stepped`), or before."""
        return True

    def step_samples(self, batch_size: int) -> int:
        """Return the number of samples of the next step; by default the worker's whole batch."""
        return batch_size

    def vote_value(self) -> float:
        """Return the value of the vote requested by `after_step`."""
        raise NotImplementedError(f"{type(self).__name__} votes, so it must define vote_value")

    def report(self, stats: dict[str, float]) -> dict[str, float]:
        """Return the content of the report requested by `after_step`; by default the statistics read."""
        return stats

    def on_orders(self, orders: Orders) -> None:
        """Handle orders of a release or a `Tell`."""
