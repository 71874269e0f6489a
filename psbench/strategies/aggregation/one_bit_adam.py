"""1-bit Adam: Adam with a variance frozen at some point, and momentum sent as signs from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from psbench.core import Action, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter
from psbench.core.aggregation import Exchanging
from psbench.core.arithmetic import Shapes, ToAll, apart, weighted_sum
from psbench.strategies.aggregation.mean import Mean, sample_shares
from psbench.strategies.codecs.base import Packed

SOURCE = "Tang et al. 2021 (1-bit Adam), Alg. 1; DeepSpeed's OnebitAdam"


class OneBitAdam(Mean):
    """Adam that exchanges full gradients until `freeze_step`, and then signs of the momentum.

    Before: m <- b1 m + (1 - b1) g and v <- b2 v + (1 - b2) g^2, with the mean gradient g. From then on v
    stays, and worker i adds its own gradient to the momentum that all have, c_i = b1 m + (1 - b1) g_i + e_i.
    Each tensor of it travels as q_i = sign(c_i) norm(c_i) / sqrt(n), with e_i <- c_i - q_i. So does in effect
    what they come to, with what that has lost before: s = mean q_i + e, m <- sign(s) norm(s) / sqrt(n),
    e <- s - m. In both phases w <- w - lr (m / (sqrt(v) + epsilon) + weight_decay w), with lr the rate of the
    experiment's optimizer, of which nothing else is used: 1e-3, as is usual for Adam, unless one is given.

    Notes
    -----
    Reduces to: Adam without correction of the bias on the mean gradient, before `freeze_step`.
    A sign of 0 is +, so an entry that has never had a gradient (v = 0) is moved by lr norm(s) / epsilon:
    m is kept 0 there, which DeepSpeed leaves to a mask by the user (`exp_avg_mask`). Entries whose v is small
    because it was frozen early are in the same danger.
    sum_i p_i e_i + e + m is what was to be sent and what was left before; p_i is 1/k, or the worker's share
    of the samples. The residual that a checkpoint holds, or another composition's first push takes along, is
    e_i / (1 - b1): what a gradient would have to be for it.
    DeepSpeed sends signs to the owner of each piece, who sends on those of the sum: 2 (k - 1)/k n bits a
    worker. Our reading: each sends all its signs to all, (k - 1) n bits, as much for two workers and k/2
    times as much for k; then all have the same e, and it needs no owner. The scale of the sum is of a whole
    tensor, not of a piece, and no worker's own signs are spared. Servers (`summing_servers`) hand on all
    signs too, (k + 1) n bits a worker. If each held e of its slice, it would scale its pieces of tensors by
    itself, and iterates would depend on the number of servers; a residual that servers do hold, sliced as the
    model is, is that of `double_squeeze`. DeepSpeed freezes after 100,000 steps.

    Examples
    --------
    >>> list(OneBitAdam(freeze_step=2).sums([(20, 30), (20,)], version=2))
    [ToAll(num_bytes=86)]
    """

    name = "one_bit_adam"
    source = SOURCE
    usual_lr = 1e-3

    # DeepSpeed: 100,000, the paper 15 to 20 % of all steps; a laptop's runs have 500 to 2,000 updates
    freeze_step: int = parameter(
        100, "updates until the variance is frozen", unit="updates", source=SOURCE, ge=0
    )
    beta1: float = parameter(0.9, "decay of the mean", source=SOURCE, ge=0, lt=1)
    beta2: float = parameter(0.999, "decay of the mean square", source=SOURCE, ge=0, lt=1)
    adam_epsilon: float = parameter(1e-8, "added to the root of the mean square", source=SOURCE, gt=0)
    adam_weight_decay: float = parameter(0.0, "share of the model in a step", source=SOURCE, ge=0)

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each push by its samples, and pass the base version to the update."""
        return [Apply(pushes, sample_shares(pushes), {"version": view.version})]

    def sums(self, shapes: Shapes, version: int) -> Sequence[int | ToAll]:
        """Return the bytes of all signs, and of a scale for each tensor, once v is frozen."""
        if version < self.freeze_step:
            return ()
        sizes = [prod(shape) for shape in shapes]
        return [ToAll(4 * len(sizes) + (sum(sizes) + 7) // 8)]

    def exchange(
        self, mine: Vector, state: State, shapes: Shapes, numbers: Mapping[str, float]
    ) -> Exchanging:
        """Compute a member's part: the mean gradient, or the next momentum with its compression error.

        A generator: it gives the driver what this member sends with `yield`, and the value of `yield` is what
        comes back. The gradient comes back as the mean over all members; signs, which are bytes, come back as
        a list with the weight and the signs of each member. What it returns is the push that `update` gets.
        See `Aggregation.exchange`.
        """
        if numbers["version"] < self.freeze_step:
            return {"vector": (yield mine)}
        sizes = [prod(shape) for shape in shapes]
        found = yield _signs(self._momentum(mine, state), sizes)
        sent = [_unpacked(message, mine, sizes) for _, message in found]
        total = weighted_sum(sent, [weight for weight, _ in found]) + state.get("lost", 0.0)
        momentum = _unpacked(_signs(total, sizes), mine, sizes)
        return {"vector": momentum, "lost": total - momentum}

    def left_out(
        self, mine: Vector, total: Pushed, state: State, shapes: Shapes, numbers: Mapping[str, float]
    ) -> Vector | None:
        """Return e_i, in the unit of a gradient."""
        if numbers["version"] < self.freeze_step:
            return None
        sizes, own = [prod(shape) for shape in shapes], self._momentum(mine, state)
        residual: Vector = (own - _unpacked(_signs(own, sizes), mine, sizes)) / (1.0 - self.beta1)
        return residual

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Take Adam's step."""
        (total,) = pushes
        m, v = state.vector("mean"), state.vector("mean_square")
        if "lost" in total.more:
            m.copy_(total.vector).mul_(v > 0)
            state["lost"] = total.more["lost"]
        else:
            m.mul_(self.beta1).add_(total.vector, alpha=1.0 - self.beta1)
            v.mul_(self.beta2).addcmul_(total.vector, total.vector, value=1.0 - self.beta2)
        rate = step.lr
        x.mul_(1.0 - rate * self.adam_weight_decay).addcdiv_(m, v.sqrt().add_(self.adam_epsilon), value=-rate)

    def _momentum(self, mine: Vector, state: State) -> Vector:
        """Return c_i; `mine` already includes the residual of the last push."""
        found: Vector = mine * (1.0 - self.beta1) + self.beta1 * state.get("mean", 0.0)
        return found


def _signs(vector: Vector, sizes: Sequence[int]) -> Packed:
    """Return the scale of each tensor, and one bit per entry: 1 if negative."""
    scales = [float(part.norm()) / max(1, len(part)) ** 0.5 for part in apart(vector, sizes)]
    return np.concatenate([np.array(scales, np.float32).view(np.uint8), np.packbits(vector.numpy() < 0)])


def _unpacked(packed: Packed, like: Vector, sizes: Sequence[int]) -> Vector:
    """Return the vector with these signs and scales."""
    header = 4 * len(sizes)
    scales = packed[:header].copy().view(np.float32)
    negative = np.unpackbits(packed[header:], count=sum(sizes))
    return like.new_tensor(np.repeat(scales, sizes) * (1 - 2 * negative.view(np.int8)))
