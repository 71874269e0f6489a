"""Outer optimizers: the workers' local steps become one step of an optimizer on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter
from psbench.core.arithmetic import in_blocks
from psbench.core.needs import NEEDS_BARRIER
from psbench.strategies.aggregation.mean import sample_shares
from psbench.strategies.aggregation.nesterov import NesterovForm, nesterov, steady_step

SOURCE = "Douillard et al. 2023 (DiLoCo); Reddi et al. 2021 (FedOpt)"


#: Reddi et al. (2021), as Flower has it
_USUAL_ADAPTIVE = 0.1
_ADAPTIVE = ("adam", "yogi")
#: rates that papers tuned with the form `sum`
_TUNED = {0.7: "Douillard et al. 2023", 0.4: "Douillard et al. 2025 (Streaming DiLoCo)"}


class Outer(Aggregation):
    """Take the mean difference D of the workers' local steps as the gradient of an outer optimizer.

    D = sum_i p_i (x - w_i), where x is the model that the workers started from, w_i what worker i has now and
    p_i its share of the samples. With v (and s) starting at 0:

    - plain: x <- x - lr D
    - nesterov: v <- beta v + D; x <- x - lr (D + beta v); or another `nesterov_form`
    - heavy_ball: v <- beta v + D; x <- x - lr v
    - adam: v <- beta v + (1 - beta) D; s <- beta_2 s + (1 - beta_2) D^2; x <- x - lr v / (sqrt(s) + tau)
    - yogi: as adam, with s <- s - (1 - beta_2) D^2 sign(s - D^2)

    Parameters
    ----------
    outer_lr : float, > 0
        lr, the rate of the outer step. The experiment's optimizer and rate are those of the workers' steps.
    outer_momentum : float, 0 <= beta < 1
        beta; beta_1 of adam and yogi. A momentum of .9 makes the first step 1.9 times, and a constant D 10
        times as large as without: comparing it with none at one rate compares two rates.
    nesterov_form : "sum", "average" or "blend"
        Three steps are called Nesterov's. `sum` is torch's, and DiLoCo's. `average` has v <- beta v + (1 -
        beta) D; with beta = .9 the first step is 1.09 times, and a constant D 1.9 times as large as without
        momentum. `blend` steps along (1 - beta) D + beta v, which is 1.0 and 9.1 times as large.
    outer_second_momentum, outer_epsilon : float
        beta_2 and tau of adam and yogi.

    Notes
    -----
    Reduces to: `model_average` with plain and a rate of 1; `block_momentum` with heavy_ball and a rate of 1,
    at a constant rate of the workers (whose momentum is v times that rate); Lookahead with one worker and
    plain; `mla` with average.
    Our reading: blend is the only combination of D and v with these two numbers, which an asynchronous
    implementation of DiLoCo is said to have; we have not seen its code. adam and yogi have no bias correction
    and s starts at 0, as in the paper's Alg. 2 with the initial value it leaves open; where workers' batches
    differ, differences are weighted by samples.
    """

    name = "outer"
    source = "Douillard et al. 2023 (DiLoCo), Alg. 1; Reddi et al. 2021 (FedOpt), Alg. 2"
    payload = "difference"
    needs = (NEEDS_BARRIER,)
    linear = True

    outer_optimizer: Literal["nesterov", "heavy_ball", "adam", "yogi", "plain"] = parameter(
        "nesterov", "optimizer of the step along the workers' mean difference", source=SOURCE
    )
    outer_lr: float = parameter(0.7, "rate of the outer step", source="Douillard et al. 2023", gt=0)
    outer_momentum: float = parameter(
        0.9, "momentum of the outer step", source="Douillard et al. 2023", ge=0, lt=1
    )
    nesterov_form: NesterovForm = parameter(
        "sum", "which of the steps called Nesterov's: torch's, or two others", source=SOURCE
    )
    outer_second_momentum: float = parameter(
        0.99, "decay of the mean square (adam, yogi)", source="Reddi et al. 2021", ge=0, lt=1
    )
    outer_epsilon: float = parameter(
        1e-3, "added to the root of the mean square (adam, yogi)", source="Reddi et al. 2021", gt=0
    )

    @property
    def effective_outer_rate(self) -> float | None:
        """lr/(1 - beta), or that of the form; of adam and yogi it follows the size of the differences."""
        if self.outer_optimizer in _ADAPTIVE:
            return None
        if self.outer_optimizer == "nesterov":
            return self.outer_lr * steady_step(self.outer_momentum, self.nesterov_form)
        return self.outer_lr / (1.0 - (self.outer_momentum if self.outer_optimizer != "plain" else 0.0))

    @property
    def outer_rate_in_words(self) -> str:
        """Return the outer rate as text; adaptive optimizers have no fixed effective rate."""
        if self.outer_optimizer not in _ADAPTIVE:
            return super().outer_rate_in_words
        rate = f"outer rate {self.outer_lr:g} of {self.outer_optimizer}"
        return f", {rate} (the effective one follows the differences)"

    def doubt_of_rates(self, lr: float) -> str:
        """Warn if an outer rate tuned for Nesterov is used with Adam or Yogi, or in another form."""
        if self.outer_optimizer == "nesterov":
            return self._doubt_of_form()
        if self.outer_optimizer not in _ADAPTIVE or self.outer_lr <= 3 * _USUAL_ADAPTIVE:
            return ""
        return (
            f"outer_lr = {self.outer_lr:g} is for steps along the mean difference, and a step of "
            f"{self.outer_optimizer} moves an entry by about the rate; give outer_lr = {_USUAL_ADAPTIVE:g}"
        )

    def _doubt_of_form(self) -> str:
        if self.nesterov_form == "sum" or not self.outer_momentum or self.outer_lr not in _TUNED:
            return ""
        ours, theirs = (steady_step(self.outer_momentum, form) for form in (self.nesterov_form, "sum"))
        return (
            f"outer_lr = {self.outer_lr:g} is that of {_TUNED[self.outer_lr]} for nesterov_form 'sum', whose "
            f"steps along a constant difference are {theirs:.3g} times as large as without momentum; those "
            f"of {self.nesterov_form!r} are {ours:.3g} times as large: the same effective rate is outer_lr = "
            f"{self.outer_lr * theirs / ours:.3g}"
        )

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each difference by its samples."""
        return [Apply(pushes, sample_shares(pushes))]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Take the outer step along the mean difference."""
        mean, beta = step.sum(pushes), self.outer_momentum
        if self.outer_optimizer == "plain":
            x.sub_(mean, alpha=self.outer_lr)
        elif self.outer_optimizer == "nesterov" and self.nesterov_form != "sum":
            direction = nesterov(mean, state.vector("velocity"), beta, self.nesterov_form)
            x.sub_(direction, alpha=self.outer_lr)
        elif self.outer_optimizer in ("nesterov", "heavy_ball"):
            is_nesterov = self.outer_optimizer == "nesterov"
            step.momentum(x, mean, state.vector("velocity"), self.outer_lr, beta, nesterov=is_nesterov)
        else:
            kept = state.vector("velocity"), state.vector("mean_square")
            for own, difference, velocity, square in in_blocks(x, mean, *kept):
                velocity.mul_(beta).add_(difference, alpha=1 - beta)
                root = self._mean_square(difference, square).sqrt().add_(self.outer_epsilon)
                own.sub_(velocity / root, alpha=self.outer_lr)

    def _mean_square(self, mean: Vector, square: Vector) -> Vector:
        decay = self.outer_second_momentum
        if self.outer_optimizer == "adam":
            return square.mul_(decay).addcmul_(mean, mean, value=1 - decay)
        new = mean * mean
        return square.addcmul_(new, (square - new).sign(), value=decay - 1)
