"""Overlap Synchronous Parallel: a worker computes while its push is in transit."""

from __future__ import annotations

from collections.abc import Mapping

from psbench.core import Communication, Directive, State, Vector, WorkerPolicy, WorkerStep, parameter

SOURCE = "Wang, Guo, Li 2019, OSP"


class Overlapping(WorkerPolicy):
    """A worker that exchanges continuously, and computes meanwhile."""

    local_steps: int = 1
    exchanging: bool = False
    made: int = 0  # steps since the exchange began

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Push and continue; with a push in transit, continue until enough steps are made."""
        if not self.exchanging:
            return self._begin()
        self.made += 1
        return "wait" if self.made >= self.local_steps else "continue"

    def on_answer(self, waited: bool) -> Directive:
        """End the exchange; a worker that waited for it has gradients to push, and begins the next."""
        self.exchanging = False
        return self._begin() if waited else "continue"

    def _begin(self) -> Directive:
        self.exchanging, self.made = True, 0
        return "push_and_continue"


class OSP(Communication):
    """Push the gradients since the last push, and take local steps until the reply arrives.

    While a push is under way its worker steps its own model along its own gradients and adds them up. From
    the answer it steps once along that sum, w <- w_answer - lr sum, so that no gradient is lost;
    the next push takes the sum to the server, once. Only a worker that has made `local_steps` steps waits.

    Notes
    -----
    Reduces to: BSP, with a barrier, equal workers, and messages that take no time; SGD with one worker.
    A worker whose answer comes within `local_steps` steps does not wait. Each push carries the *sum* of its
    steps' gradients (aggregation `accumulated`). Part of it was computed on models that lack the others'
    last updates: a barrier's staleness of 0 counts versions, not these steps.
    Momentum belongs to the server. With it the model moves further than the workers' own steps foresaw, and
    several steps together go one long way: better use lr/(1 - momentum) without momentum.
    Our reading: the worker's own steps are plain ones, at the optimizer's rate without its momentum; the
    exchange begins after a step, with that step in the push; servers wait for all ("synchronous"), which is
    a choice of the consistency part.
    No value of T is given; 4 is ours.

    Examples
    --------
    >>> policy = OSP(local_steps=2).worker_policy()
    >>> [policy.after_step({}) for _ in range(3)], policy.on_answer(True)
    (['push_and_continue', 'continue', 'wait'], 'push_and_continue')
    """

    name = "osp"
    source = "Wang, Guo, Li 2019, OSP, as summarised in thesis 3.2.2"
    overlaps = True

    local_steps: int = parameter(
        4, "largest number of steps while a push is in transit", unit="steps", source=SOURCE, ge=1
    )

    def worker_policy(self) -> WorkerPolicy:
        """Return the worker policy that continues while it pushes."""
        return Overlapping(local_steps=self.local_steps)

    def begin(self, w: Vector, model: Vector, state: State, own: WorkerStep) -> None:
        """Step from the answer along the gradients not pushed yet: w <- w_answer - lr a."""
        unpushed = state.get("gradient")
        w.copy_(model if unpushed is None else model - own.lr * unpushed)

    def step(self, w: Vector, gradient: Vector, state: State, own: WorkerStep) -> None:
        """Step along the gradient, and add it to the gradients of the next push."""
        w.sub_(gradient, alpha=own.lr)
        if "gradient" in state:
            state["gradient"].add_(gradient)
        else:
            state.vector("gradient", gradient)

    def payload(self, w: Vector, state: State, own: WorkerStep) -> Vector:
        """Return the sum of the gradients since the last push."""
        gradient: Vector = state.pop("gradient")
        return gradient
