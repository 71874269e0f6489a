"""Mixing of workers' models without a server, and their distance from the mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from psbench.core import Aggregation, Pushed, State, Step

#: parameters, (num_params,), and buffers, (num_buffers,)
ModelVectors: TypeAlias = tuple[Tensor, Tensor]
#: what is evaluated beside the mean model's loss and accuracy
CONSENSUS = "consensus_distance"


class Mixer:
    """Mixes models by the arithmetic of an aggregation part; keeps a state for each worker."""

    def __init__(self, aggregation: Aggregation, global_batch: int) -> None:
        self._part, self._global_batch = aggregation, global_batch
        self.states: dict[int, State] = {}

    def mix(self, worker: int, models: Sequence[ModelVectors], row: Mapping[int, float]) -> ModelVectors:
        """Return a worker's new model.

        Parameters
        ----------
        models : sequence of (parameters, buffers)
            Those that `row` weighs, in its order; not changed.
        row : mapping of worker to weight
        """
        own = list(row).index(worker) if worker in row else 0
        parameters, buffers = models[own][0].clone(), models[own][1].clone()
        pushes = [
            Pushed(model[0], model[1], other, weight=weight)
            for model, (other, weight) in zip(models, row.items(), strict=True)
        ]
        state = self.states.setdefault(worker, State(parameters))
        state.like, state.lent = parameters, pushes
        step = Step(0.0, 0.0, {}, self._global_batch, _no_optimizer)
        self._part.update(parameters, pushes, state, step)
        if len(buffers):
            self._part.update_buffers(buffers, pushes, step)
        return parameters, buffers

    def load(self, worker: int, tensors: Mapping[str, Tensor]) -> None:
        """Restore a worker's state."""
        like = next((tensor for tensor in tensors.values() if tensor.dim()), torch.zeros(0))
        self.states[worker] = state = State(like)
        state.load(tensors)


def _no_optimizer(direction: Tensor, lr: float) -> None:
    raise NotImplementedError("models that are mixed have no optimizer; workers step by themselves")


def consensus_distance(vectors: Sequence[Tensor]) -> dict[str, float]:
    """Return sum_i |w_i - mean|^2 of the workers' parameters by name; 0 if all agree.

    Source
    ------
    Lian et al. (2017); Kong et al. (2021), "Consensus Control for Decentralized Deep Learning", who take its
    root over the number of workers.

    Examples
    --------
    >>> consensus_distance([torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])])
    {'consensus_distance': 2.0}
    """
    if not vectors:
        return {CONSENSUS: 0.0}  # before the first step all have the same
    mean = sum(vector.double() for vector in vectors) / len(vectors)
    found = sum(float((vector.double() - mean).square().sum()) for vector in vectors)
    return {CONSENSUS: found}
