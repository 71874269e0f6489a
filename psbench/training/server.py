"""The update of the model's vector on a server: the arithmetic behind `Apply`, and nothing else.

The same class serves the simulator, a parameter server, each of its shards (on a slice), and each replica
under All-Reduce, so that one sequence of updates gives one sequence of models everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from psbench.training.device import copied
from psbench.training.optim import Optimizer


class Server:
    """A flat parameter vector, its optimizer, and the model's buffers.

    Parameters
    ----------
    parameters : float32 tensor, (num_params,)
        Copied.
    buffers : float32 tensor, (num_buffers,)
        Running statistics such as BatchNorm's; may be empty. Copied.
    optimizer : Optimizer
    global_batch : int, samples
        B; a push of b samples moves the buffers by b/B.
    """

    def __init__(self, parameters: Tensor, buffers: Tensor, optimizer: Optimizer, global_batch: int) -> None:
        self.parameters, self.buffers = copied(parameters.detach()), copied(buffers.detach())
        self.spec = optimizer
        self.global_batch = global_batch
        self._update = optimizer.update(self.parameters)
        self._momentum_scale = 1.0
        self._block: Tensor | None = None  # the momentum of blocks of local steps
        self._stages: dict[int, Tensor] = {}  # the mean gradient of each open stage
        #: whether, and where, the last commit's mean gradient is kept, for workers that apply it themselves
        self.keeps_aggregate = False
        self.aggregate: Tensor | None = None
        #: whether the last update's movement is measured: ||w_new - w_old|| / max(||w_new||, 1)
        self.measures_movement = False
        self.movement = math.inf

    def apply(
        self,
        payloads: Sequence[Tensor],
        weights: Sequence[float],
        *,
        lr_scale: float = 1.0,
        epoch: float = 0.0,
        rule: str = "gradient",
        keep: float = 1.0,
        momentum_scale: float = 1.0,
    ) -> None:
        """Make the next version from the payloads of a commit.

        Parameters
        ----------
        rule : "gradient", "average", "block_momentum", "stage_mean" or "last_of_stage"
            An optimizer step along the weighted sum of gradients; the weighted sum of models plus `keep`
            times the own one; the workers' mean movement as one big step, of momentum `keep`; or a step
            along the change of the mean gradient of stage number `keep`, with the last of which stages up to
            that one are forgotten.

        Shapes
        ------
        payloads : float32, (num_params,) each, in the order of the commit; not changed
        """
        if momentum_scale != self._momentum_scale:
            self._scale_momentum(momentum_scale)
        before = self.parameters.clone() if self.measures_movement else None
        _RULES[rule](self, payloads, weights, keep, self.spec.rate(epoch) * lr_scale)
        if before is not None:
            self.movement = _movement(before, self.parameters)

    def _gradient_step(
        self, gradients: Sequence[Tensor], weights: Sequence[float], keep: float, lr: float
    ) -> None:
        """Take an optimizer step along sum_i weight_i g_i, summed in the order given."""
        gradient = weighted_sum(gradients, weights)
        if self.keeps_aggregate:
            self.aggregate = gradient
        self._update.step(gradient, lr)

    def _average(
        self, parameters: Sequence[Tensor], weights: Sequence[float], keep: float, lr: float
    ) -> None:
        """Move to keep w + sum_i weight_i w_i."""
        mean = weighted_sum(parameters, weights)
        self.parameters.copy_(mean.add(self.parameters, alpha=keep) if keep else mean)

    def _block_momentum(
        self, parameters: Sequence[Tensor], weights: Sequence[float], keep: float, lr: float
    ) -> None:
        """Take the way to the mean, m = sum_i weight_i w_i, as one gradient step with momentum.

        u <- keep u + (w - m)/lr and w <- w - lr u: that is m, less lr keep times the u before.
        """
        mean = weighted_sum(parameters, weights)
        before, self._block = self._block, (self.parameters - mean) / lr
        if before is not None:
            self._block.add_(before, alpha=keep)
            mean = mean.sub(before, alpha=lr * keep)
        self.parameters.copy_(mean)

    def _stage_mean(
        self, gradients: Sequence[Tensor], weights: Sequence[float], keep: float, lr: float
    ) -> None:
        """Step along (g - m)/d, m the mean of the stage's d - 1 gradients before; the weight is 1/d."""
        stage, (gradient,) = int(keep), gradients
        before = self._stages.get(stage)
        change = gradient * weights[0] if before is None else (gradient - before) * weights[0]
        self._gradient_step([change], [1.0], keep, lr)
        self._stages[stage] = change.clone() if before is None else before + change

    def _last_of_stage(
        self, gradients: Sequence[Tensor], weights: Sequence[float], keep: float, lr: float
    ) -> None:
        """Step as in `_stage_mean`, and forget the stages that are complete."""
        self._stage_mean(gradients, weights, keep, lr)
        self._stages = {stage: mean for stage, mean in self._stages.items() if stage > keep}

    def merge_buffers(
        self,
        buffers: Sequence[Tensor],
        samples: Sequence[int],
        *,
        rule: str = "gradient",
        weights: Sequence[float] = (),
        keep: float = 0.0,
    ) -> None:
        """Move the buffers towards the pushers', each by its share of the global batch.

        r <- (1 - sum_i s_i) r + sum_i s_i r_i with s_i = b_i/B, the s_i scaled down should they exceed 1
        together. A full barrier thus takes the mean of its workers' running statistics, and one of n
        asynchronous pushes moves the server by 1/n: after one global batch the statistics have moved about
        as far in either, and they always stay between the values seen. Papers are silent; this is our rule.
        Where models are averaged, their statistics are, with the same weights and the same `keep`.
        """
        if not len(self.buffers):
            return
        if rule in _OF_GRADIENTS:
            shares = [count / self.global_batch for count in samples]
            excess = max(1.0, sum(shares))
            shares = [share / excess for share in shares]
            kept = 1.0 - sum(shares)
        else:
            shares, kept = list(weights), keep if rule == "average" else 0.0
        self.buffers.mul_(kept)
        for share, theirs in zip(shares, buffers, strict=True):
            self.buffers.add_(theirs, alpha=share)

    def forget_momentum(self) -> None:
        """Reset the optimizer's state; the model stays."""
        self._update = self.spec.update(self.parameters)
        self._momentum_scale = 1.0
        self._block = None
        self._stages = {}

    def _scale_momentum(self, scale: float) -> None:
        """Multiply the optimizer's own coefficient; its buffer stays as it is."""
        self._update.set_momentum(scale * self.spec.coefficient)
        self._momentum_scale = scale

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors by name (momentum buffers, Adam's moments and its step)."""
        state = self._update.state()
        state |= {} if self._block is None else {_BLOCK: self._block}
        return state | {f"{_STAGE}{stage}": mean for stage, mean in self._stages.items()}

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        """Restore tensors returned by `optimizer_state`."""
        self.forget_momentum()
        own = {name: value.clone() for name, value in state.items()}
        self._block = own.pop(_BLOCK, None)
        stages = [name for name in own if name.startswith(_STAGE)]
        self._stages = {int(name.removeprefix(_STAGE)): own.pop(name) for name in stages}
        if own:
            self._update.load_state(own)


def _movement(before: Tensor, after: Tensor) -> float:
    # in float64, as differences of nearly equal numbers are what this is about
    old, new = before.double(), after.double()
    return float(torch.linalg.vector_norm(new - old)) / max(float(torch.linalg.vector_norm(new)), 1.0)


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return sum_i weight_i t_i as a new tensor, or the only tensor itself if its weight is 1."""
    if len(tensors) == 1 and weights[0] == 1.0:
        return tensors[0]
    total = tensors[0] * weights[0]
    for tensor, weight in zip(tensors[1:], weights[1:], strict=True):
        total.add_(tensor, alpha=weight)
    return total


_RULES = {
    "gradient": Server._gradient_step,
    "average": Server._average,
    "block_momentum": Server._block_momentum,
    "stage_mean": Server._stage_mean,
    "last_of_stage": Server._last_of_stage,
}
#: rules whose payloads are gradients
_OF_GRADIENTS = ("gradient", "stage_mean", "last_of_stage")
#: the mean of a stage, among the tensors of the optimizer
_STAGE = "stage_"
#: name of the block momentum among the tensors of the optimizer
_BLOCK = "block_momentum"


def finite(tensor: Tensor) -> bool:
    """Return whether no entry is NaN or infinite."""
    # no sum is finite that has a nan or an infinity in it; one that overflows is looked at closely
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())
