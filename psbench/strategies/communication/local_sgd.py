"""Local SGD: several steps on the worker between two pushes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from psbench.core import ClusterView, Directive, Orders, OwnSteps, WorkerPolicy, parameter

SOURCE = "Wang and Joshi 2019 (AdaComm), eq. 1"


class LocalSteps(WorkerPolicy):
    """A worker that pushes after the number of steps in its last orders."""

    local_steps: int = 1
    made: int = 0

    def on_orders(self, orders: Orders) -> None:
        """Restart the count: orders come with every release, and earlier steps may be cancelled."""
        if "local_steps" in orders:
            self.local_steps, self.made = orders["local_steps"], 0

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        self.made += 1
        return "push" if self.made >= self.local_steps else "continue"


class Local(OwnSteps):
    """A worker takes steps with its own optimizer, and pushes its parameters after some of them."""

    local_momentum: Literal["cleared", "kept"] = parameter(
        "cleared", "a worker's local momentum when it receives the mean model", source=SOURCE
    )

    @property
    def forgets_momentum(self) -> bool:  # pyrefly: ignore[bad-override]
        """Return True if a worker that receives the model resets its own optimizer."""
        return self.local_momentum == "cleared"

    def worker_policy(self) -> WorkerPolicy:
        return LocalSteps()

    def steps(self, view: ClusterView) -> int:
        """Return the number of steps for a worker that is released now."""
        raise NotImplementedError(f"{type(self).__name__} must define steps")

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the steps until the next push."""
        return {"local_steps": self.steps(view)}


class LocalSGD(Local):
    """Push the parameters after every `local_steps` steps.

    Parameters
    ----------
    local_momentum : "cleared" or "kept"
        The paper clears it; then a period of one step has no momentum at all.

    Notes
    -----
    Reduces to: BSP under a barrier with a period of 1 (plain SGD, or momentum that is kept); workers that
    never communicate, with an infinite one.
    Each step reads the rate's schedule again, as if all workers made it together.
    The later code of the authors averages first after tau + 1 steps and keeps the local momentum; here it is
    after tau = `local_steps` steps, as printed.

    Examples
    --------
    >>> policy = LocalSGD(local_steps=2).worker_policy()
    >>> policy.on_orders({"local_steps": 2})
    >>> policy.after_step({}), policy.after_step({})
    ('continue', 'push')
    """

    name = "local_sgd"
    source = "Wang and Joshi 2019 (AdaComm), eq. 1 (PASGD)"

    # 10: the period that the paper sets against 1 where it shows the trade-off (fig. 3)
    local_steps: int = parameter(
        10, "steps of a worker between two averagings", unit="steps", source=SOURCE, ge=1
    )

    def steps(self, view: ClusterView) -> int:
        """Return the constant number of steps."""
        return self.local_steps
