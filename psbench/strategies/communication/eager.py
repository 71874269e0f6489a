"""The worker's half of Eager DiLoCo: an outer step with its fresh difference and the others' last."""

from __future__ import annotations

from collections.abc import Mapping

from psbench.core import ClusterView, Directive, Orders, OwnSteps, WorkerPolicy, parameter
from psbench.core.arithmetic import State, Vector, WorkerStep
from psbench.strategies.aggregation.nesterov import nesterov

SOURCE = "Kale et al. 2025 (Eager updates), sec. 3"


class Eagerly(WorkerPolicy):
    """A worker that computes on when it has pushed, except at first, and waits before the next push."""

    local_steps: int = 1
    made: int = 0
    begun: bool = False  # whether its first push is answered
    exchanging: bool = False

    def on_orders(self, orders: Orders) -> None:
        """Begin a round; unless a push is in transit, earlier steps may be cancelled."""
        self.local_steps = orders.get("local_steps", self.local_steps)
        if not self.exchanging:
            self.begun, self.made = self.made > 0, 0

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Push after the last step, unless the answer to the previous push is still outstanding."""
        self.made += 1
        if self.made < self.local_steps:
            return "continue"
        return "wait" if self.exchanging else self._push()

    def on_answer(self, waited: bool) -> Directive:
        """Continue, or send a push that had to wait."""
        self.exchanging = False
        return self._push() if waited else "continue"

    def _push(self) -> Directive:
        if not self.begun:
            return "push"
        self.made, self.exchanging = 0, True
        return "push_and_continue"


class Eager(OwnSteps):
    """Step along D + (D_i - D_i')/k: the last mean difference D with the worker's own share updated.

    After H = `local_steps` steps worker i pushes its difference D_i and does not wait: it takes the outer
    step itself, with its own momentum, and goes on from its own x_i. D is the mean that the others' answers
    have brought meanwhile, and D_i' its own share of that. The first round is DiLoCo's: there is no D yet.

    Parameters
    ----------
    outer_lr, outer_momentum : float
        Of the outer step, which is Nesterov's; the same as of the aggregation part `eager_outer`.

    Notes
    -----
    Reduces to: `local_sgd` with `outer` (DiLoCo) with one worker.
    The workers' models differ; the mean of all x_i is the server's.
    An implementation of others takes D_i/k + (k - 1)/k D, which counts the own last share too: equal only if
    all differences are.
    Our reading: k is the number of workers when the last answer was sent; the first round; that a worker that
    comes later begins without momentum.

    Examples
    --------
    >>> policy = Eager(local_steps=1).worker_policy()
    >>> policy.on_orders({"local_steps": 1})
    >>> first = policy.after_step({})
    >>> policy.on_orders({"local_steps": 1})
    >>> first, policy.after_step({}), policy.after_step({})
    ('push', 'push_and_continue', 'wait')
    """

    name = "eager"
    source = SOURCE
    overlaps = True
    forgets_momentum = False

    # the paper: 500; a laptop's runs have 500 to 2,000 steps
    local_steps: int = parameter(
        20, "steps of a worker between two pushes", unit="steps", source=SOURCE, ge=1
    )
    outer_lr: float = parameter(0.7, "rate of the outer step", source=SOURCE, gt=0)
    outer_momentum: float = parameter(0.9, "momentum of the outer step", source=SOURCE, ge=0, lt=1)

    def worker_policy(self) -> WorkerPolicy:
        """Return the worker policy that does not wait for other workers."""
        return Eagerly()

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the steps until the next push, and the number of workers that share the mean."""
        return {"local_steps": self.local_steps, "workers": view.num_active}

    def begin(self, w: Vector, model: Vector, state: State, own: WorkerStep) -> None:
        w.copy_(model)
        state.clear()
        state.vector("x", model)

    def payload(self, w: Vector, state: State, own: WorkerStep) -> Vector:
        """Return the worker's difference, and step along the known mean with it."""
        difference: Vector = state["x"] - w
        if "mean" in state:
            known = state["mean"] + (difference - state["share"]) / own.orders["workers"]
            self._step(w, known, state)
        state["share"] = difference
        return difference

    def receive(self, w: Vector, answer: Vector, state: State, own: WorkerStep) -> None:
        """Store the mean of the last round; the first mean is applied at once."""
        if "mean" not in state:
            self._step(w, answer, state)
        state["mean"] = answer

    def _step(self, w: Vector, difference: Vector, state: State) -> None:
        x = state["x"]
        x.sub_(nesterov(difference, state.vector("velocity"), self.outer_momentum), alpha=self.outer_lr)
        w.copy_(x)
