"""Delayed Nesterov: asynchronous differences are applied at once, momentum after every N of them."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter

SOURCE = "Liu et al. 2024 (Async Local-SGD)"


class DelayedNesterov(Aggregation):
    """Apply each worker's difference D when it arrives, and the momentum m once in N arrivals.

    Every push: total <- total + D. If it is the N-th: m <- beta m + total / N;
    x <- x - lr ((1 - c N + c) beta m + D / N); total <- 0. Otherwise: x <- x - lr (c beta m + D / N).

    Parameters
    ----------
    momentum_every : int, pushes, >= 0
        N; 0 is the number of workers. The paper asks for at least as many.
    momentum_between : float, 0 <= c <= 1
        How much of the momentum the other pushes get, times N: c = momentum_between / N.

    Notes
    -----
    Reduces to: Nesterov's step at every push with N = 1, and then DiLoCo with one worker; ASP with N = 1, no
    momentum, a rate of 1 and one plain step a push. Over N pushes with c = 0 the model moves by -lr (mean D +
    beta m).
    Our reading: c is between 0 and 1/N in the paper; as a share of 1/N it does not depend on the number of
    workers.
    N and c are not checked in the paper: they are as in the implementation of others, utnslab/halos 4b5bf73,
    src/halos/opt.py, lines 93-112, whose rate is ours.

    Examples
    --------
    >>> DelayedNesterov().on_commit([Push(0, 0, 1, 0, samples=8)], ClusterView(4, 1, 1))[0].numbers
    {'every': 4.0}
    """

    name = "delayed_nesterov"
    source = "Liu et al. 2024 (Async Local-SGD), Alg. 3"
    payload = "difference"
    weighs_samples = False

    outer_lr: float = parameter(0.7, "rate of the outer step", source=SOURCE, gt=0)
    outer_momentum: float = parameter(0.9, "momentum of the outer step", source=SOURCE, ge=0, lt=1)
    momentum_every: int = parameter(
        0,
        "pushes between two updates of the momentum; 0: number of workers",
        unit="pushes",
        source=SOURCE,
        ge=0,
    )
    momentum_between: float = parameter(
        0.0, "share of the momentum applied in the other pushes", source=SOURCE, ge=0, le=1
    )

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Give each push weight 1; `every` is the number of pushes per momentum step."""
        return [Apply(pushes, [1.0] * len(pushes), {"every": float(self.momentum_every or view.num_workers)})]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Apply the differences one after another."""
        every, beta = step.numbers["every"], self.outer_momentum
        between = self.momentum_between / every
        total, momentum = state.vector("total"), state.vector("momentum")
        for push in pushes:
            state["pushes"] = state.number("pushes") + 1
            total.add_(push.vector)
            share = between
            if state["pushes"] % every == 0:
                momentum.mul_(beta).add_(total, alpha=1 / every)
                total.zero_()
                share = 1 - between * every + between
            x.sub_(push.vector / every + share * beta * momentum, alpha=self.outer_lr)
