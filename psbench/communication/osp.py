"""Overlap Synchronous Parallel: a worker computes while its push is under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from psbench.core.parts import Communication
from psbench.core.specification import parameter
from psbench.core.worker_policy import Directive, WorkerPolicy

SOURCE = "Wang, Guo, Li 2019, OSP"


class Overlapping(WorkerPolicy):
    """A worker that begins an exchange whenever none is under way, and computes on meanwhile."""

    local_steps: int = 1
    exchanging: bool = False
    made: int = 0  # steps since the exchange began

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Push and go on; with a push under way, go on until enough steps are made."""
        if not self.exchanging:
            return self._begin()
        self.made += 1
        return "wait" if self.made >= self.local_steps else "continue"

    def on_answer(self, waited: bool) -> Directive:
        """End the exchange; who waited for it has gradients to push, and begins the next."""
        self.exchanging = False
        return self._begin() if waited else "continue"

    def _begin(self) -> Directive:
        self.exchanging, self.made = True, 0
        return "push_and_continue"


class OSP(Communication):
    """Push the gradients since the last push, and step on by oneself until the answer comes.

    While a push is under way its worker steps its own model along its own gradients and adds them up. From
    the answer it steps once along that sum, w <- w_answer - lr sum, so that nothing it has learnt is lost;
    the next push takes the sum to the server, once. Only who has made `local_steps` steps waits.

    Parameters
    ----------
    local_steps : int, steps, >= 1
        T: steps that are made at most while a push is under way.

    Notes
    -----
    Reduces to: BSP, with a barrier, equal workers, and messages that take no time; SGD with one worker.
    Nobody waits whose answer comes within `local_steps` steps. A push that goes on carries the *sum* of its
    steps' gradients (aggregation `accumulated`). Part of it was computed on models that lack the others'
    last updates: a barrier's staleness of 0 counts versions, not these steps.
    Momentum belongs to the server. With it the model moves further than the workers' own steps foresaw, and
    several steps together go one long way: better use lr/(1 - momentum) without momentum.
    Our reading: the worker's own steps are plain ones, at the optimizer's rate without its momentum; the
    exchange begins after a step, with that step in the push; servers wait for all ("synchronous"), which is
    a choice of the consistency part.

    Source
    ------
    Wang, Guo, Li (2019), "OSP: Overlapping Computation and Communication in Parameter Server for Fast
    Machine Learning", ICPP, as thesis 3.2.2 tells it; `protocols` 1.9. It gives T no number; 4 is ours.

    Examples
    --------
    >>> half = OSP(local_steps=2).worker_policy()
    >>> [half.after_step({}) for _ in range(3)], half.on_answer(True)
    (['push_and_continue', 'continue', 'wait'], 'push_and_continue')
    """

    name: ClassVar[str] = "osp"
    source: ClassVar[str] = SOURCE
    overlaps: ClassVar[bool] = True

    local_steps: int = parameter(
        4, "steps made at most while a push is under way", unit="steps", source=SOURCE, ge=1
    )

    def worker_policy(self) -> WorkerPolicy:
        """Return the worker half that goes on while it pushes."""
        return Overlapping(local_steps=self.local_steps)
