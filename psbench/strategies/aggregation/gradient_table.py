"""A table with the gradients of every worker, whose mean is the step of each version."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Pushed, State, Step, Vector
from psbench.core.arithmetic import weighted_sum
from psbench.core.needs import Need
from psbench.strategies.consistency.ringleader import SOURCE, Ringleader


class GradientTable(Aggregation):
    """Step along the mean of the workers' mean gradients: x <- x - lr/n sum_i G_i / b_i.

    G_i is the sum of the b_i gradients of worker i in the table. A commit with a push of every worker begins
    a new table; any other adds to it, and the step is along what is then in it, gradients of earlier commits
    included.

    Notes
    -----
    Reduces to: the mean gradient, each worker's alike, under a barrier; SGD with one worker.
    Under `ringleader` each gradient is part of up to n steps, each at the whole rate: a round moves the model
    about as far as n updates of `bsp`, so that a comparison at one rate gives it lr/n.
    """

    name = "gradient_table"
    source = f"{SOURCE}, Alg. 1"
    weighs_samples = False
    needs = (
        Need(
            "consistency",
            lambda c: c.barrier or isinstance(c, Ringleader),
            "{part} needs a commit with a push of every worker, which {other} may never make",
        ),
    )

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Give each push weight 1, and start a new table if every worker has pushed."""
        begins = {push.worker for push in pushes}.issuperset(view.active)
        return [Apply(pushes, [1.0] * len(pushes), {"begins": float(begins)})]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Enter the gradients into the table, and step along the mean of its workers' means."""
        if step.numbers["begins"]:
            state.clear()
        for push in pushes:
            total, count = f"sum {push.worker}", f"count {push.worker}"
            if total in state:
                state[total].add_(push.vector)
            else:
                state[total] = push.vector.clone()
            state[count] = state.number(count) + 1
        workers = sorted(int(name.removeprefix("sum ")) for name in state if name.startswith("sum "))
        sums = [state[f"sum {worker}"] for worker in workers]
        step.move(weighted_sum(sums, [1 / (len(workers) * state.number(f"count {w}")) for w in workers]))
