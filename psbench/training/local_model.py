"""The model that a worker computes on between two answers, for each way of working.

Every backend uses it alike: `load` what was sent, compute a step from `parameters` and `buffers`, tell it
with `stepped`, and then either `keep` the step or push the `payload`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from psbench.core.strategy import Strategy
from psbench.training.evaluator import Evaluator
from psbench.training.optim import Optimizer
from psbench.training.trainer import StepResult
from psbench.training.update import Update


class LocalModel:
    """A worker that sends the mean gradient of its steps from the model it was given.

    Parameters
    ----------
    composition : Strategy
    optimizer : Optimizer
        For those that step by themselves.

    Attributes
    ----------
    parameters : float32 tensor, (num_params,)
    buffers : float32 tensor, (num_buffers,)
        What the next step computes from; not changed in place unless the worker steps by itself.
    """

    def __init__(self, composition: Strategy, optimizer: Optimizer) -> None:
        self.spec = optimizer
        self.forgets_momentum = composition.communication.forgets_momentum
        #: samples that the worker takes a test loss over
        self.test_samples = composition.communication.evaluated_samples
        self.parameters = self.buffers = torch.zeros(0)
        self._gradient = torch.zeros(0)
        self._samples = 0

    def load(self, parameters: Tensor, buffers: Tensor, lr: float) -> None:
        """Start from a model that was received; `lr` is the rate of the steps to come."""
        self.parameters, self.buffers = parameters, buffers
        self._samples = 0

    def receive(self, aggregate: Tensor, lr: float) -> None:
        """Apply the mean gradient of a commit, received instead of a model."""
        raise NotImplementedError(f"{type(self).__name__} is sent models only")

    def stepped(self, step: StepResult, samples: int, lr: float) -> None:
        """Add the result of a step."""
        self.buffers = step.buffers
        if not self._samples:
            self._gradient = step.gradient
        else:
            self._gradient = (self._gradient * self._samples + step.gradient * samples) / (
                self._samples + samples
            )
        self._samples += samples

    def keep(self, lr: float) -> None:
        """Keep the last step without pushing it."""

    def payload(self) -> Tensor:
        """Return the vector that a push carries, and reset the accumulated steps."""
        self._samples = 0
        return self._gradient

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of a worker that waits, as copies."""
        state = {"parameters": self.parameters, "buffers": self.buffers, "gradient": self._gradient}
        return {name: value.clone() for name, value in state.items()} | {
            "samples": torch.tensor(self._samples)
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.parameters, self.buffers = state["parameters"].clone(), state["buffers"].clone()
        self._gradient, self._samples = state["gradient"].clone(), int(state["samples"])


class _Stepping(LocalModel):
    """A worker with an optimizer of its own that sends its parameters."""

    def __init__(self, composition: Strategy, optimizer: Optimizer) -> None:
        super().__init__(composition, optimizer)
        self._update: Update | None = None
        self._sends_difference = composition.aggregation.payload == "difference"
        self._received = torch.zeros(0)

    def load(self, parameters: Tensor, buffers: Tensor, lr: float) -> None:
        if self._sends_difference:
            self._received = parameters.clone()
        if self._update is None or self.forgets_momentum:
            self.parameters = parameters.clone()
            self._update = self.spec.update(self.parameters)
        else:
            self.parameters.copy_(parameters)
        self.buffers = buffers

    def stepped(self, step: StepResult, samples: int, lr: float) -> None:
        self.buffers = step.buffers
        self._apply(step.gradient, lr)

    def payload(self) -> Tensor:
        return self._received - self.parameters if self._sends_difference else self.parameters.clone()

    def state_dict(self) -> dict[str, Tensor]:
        state = super().state_dict()
        if self._sends_difference:
            state["received"] = self._received.clone()
        own = {} if self._update is None else self._update.state()
        return state | {f"optimizer/{name}": value.clone() for name, value in own.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        if not len(self.parameters):
            return  # it has not been sent a model yet
        self._update = self.spec.update(self.parameters)
        self._received = state.get("received", self._received)
        prefix = "optimizer/"
        own = {n.removeprefix(prefix): t.clone() for n, t in state.items() if n.startswith(prefix)}
        if own:
            self._update.load_state(own)

    def _apply(self, gradient: Tensor, lr: float) -> None:
        assert self._update is not None
        self._update.step(gradient, lr)


class _Replying(_Stepping):
    """A worker that applies its own gradient, or the aggregate where it sent its own."""

    def receive(self, aggregate: Tensor, lr: float) -> None:
        self._apply(aggregate, lr)

    def stepped(self, step: StepResult, samples: int, lr: float) -> None:
        self.buffers = step.buffers
        self._gradient = step.gradient

    def keep(self, lr: float) -> None:
        self._apply(self._gradient, lr)

    def payload(self) -> Tensor:
        return self._gradient


class _Overlapping(LocalModel):
    """A worker that steps on while its push is under way, and steps again from the answer what is unpushed.

    w <- w_answer - lr a, with a the sum of the gradients that no push has carried.
    """

    def load(self, parameters: Tensor, buffers: Tensor, lr: float) -> None:
        self.buffers = buffers
        if self._samples:
            self.parameters = parameters - lr * self._gradient
        else:
            self.parameters, self._gradient = parameters.clone(), torch.zeros_like(parameters)

    def stepped(self, step: StepResult, samples: int, lr: float) -> None:
        self.buffers = step.buffers
        self.parameters.sub_(step.gradient, alpha=lr)
        self._gradient.add_(step.gradient)
        self._samples += samples

    def payload(self) -> Tensor:
        accumulated, self._gradient = self._gradient, torch.zeros_like(self._gradient)
        self._samples = 0
        return accumulated


class StepStatistics(Mapping[str, float]):
    """The statistics of a step, each computed when it is first read.

    Parameters
    ----------
    step : StepResult
    model : LocalModel
        After the step.
    evaluator : Evaluator
    """

    def __init__(self, step: StepResult, model: LocalModel, evaluator: Evaluator) -> None:
        self._step, self._model, self._evaluator = step, model, evaluator
        self._measured: float | None = None

    def __getitem__(self, name: str) -> float:
        return _STATISTICS[name](self)

    def __iter__(self) -> Iterator[str]:
        return iter(_STATISTICS)

    def __len__(self) -> int:
        return len(_STATISTICS)

    def _grad_norm_sq(self) -> float:
        gradient = self._step.gradient
        return float(torch.dot(gradient, gradient))

    def _test_loss(self) -> float:
        if self._measured is None:
            model = self._model
            self._measured = self._evaluator.loss("test", model.parameters, model.buffers, model.test_samples)
        return self._measured

    @property
    def evaluated_samples(self) -> int:
        """Samples that a loss was taken over, beside those of the step; 0 if nobody asked for one."""
        asked = self._measured is not None
        return self._evaluator.sample_size("test", self._model.test_samples) if asked else 0


_STATISTICS: dict[str, Callable[[StepStatistics], float]] = {
    "loss": lambda stats: stats._step.loss,
    "grad_norm_sq": StepStatistics._grad_norm_sq,
    "test_loss": StepStatistics._test_loss,
}


def local_model(composition: Strategy, optimizer: Optimizer) -> LocalModel:
    """Return the model of a worker under a composition."""
    communication, aggregation = composition.communication, composition.aggregation
    if communication.overlaps:
        return _Overlapping(composition, optimizer)
    if not communication.local:
        return LocalModel(composition, optimizer)
    return (_Replying if aggregation.reply == "aggregate" else _Stepping)(composition, optimizer)
