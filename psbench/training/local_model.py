"""The model that a worker computes on between two answers.

Every backend uses it alike: `load` what was sent, compute a step from `parameters` and `buffers`, tell it
with `stepped`, and then either `keep` the step or push the `payload`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from psbench.core import State, Strategy
from psbench.core.arithmetic import Entries, put_back
from psbench.core.own_steps import OwnSteps
from psbench.core.part import overrides
from psbench.errors import ProtocolError
from psbench.optimization.absent import absent_entries
from psbench.optimization.optimizer import SGD, Optimizer
from psbench.optimization.piecewise import PiecewiseSteps
from psbench.training.evaluator import Evaluator
from psbench.training.server import OPTIMIZER, copies_under
from psbench.training.trainer import StepResult

#: prefix of the part's vectors and numbers, among a worker's tensors
STATE = "state/"
#: prefix of what came with the last model, among them
ANSWER = "answer/"
#: name of a number among them: where in the rate's schedule the last step was
EPOCH = "epoch"


class LocalModel:
    """A worker's vectors: arguments of the worker methods of a communication part.

    Parameters
    ----------
    composition : Strategy
    optimizer : Optimizer
        For workers that step by themselves.
    fragments : sequence of Entries
        Where in the vector each fragment's entries are, if pushes are of fragments.

    Attributes
    ----------
    parameters : float32 tensor, (num_params,)
    buffers : float32 tensor, (num_buffers,)
        What the next step computes from. The parameters are the worker's own, and changed in place, if it
        keeps a model; else they are those received.
    state : State
        The part's.
    """

    def __init__(
        self, composition: Strategy, optimizer: Optimizer, fragments: Sequence[Entries] = ()
    ) -> None:
        self._fragments = fragments
        self._part = part = composition.communication
        self._carries, self._sent = composition.aggregation.carries, composition.aggregation.sends
        self._keeps_model = isinstance(part, OwnSteps) or part.overlaps
        #: whether it receives the decoded content of pushes
        self.notes_pushes = overrides(part, "sent")
        self._own = _OwnStep(optimizer, composition.aggregation.payload)
        #: samples that the worker takes a test loss over
        self.test_samples = part.evaluated_samples
        self.parameters = self.buffers = torch.zeros(0)
        self.state = State(self.parameters)

    @property
    def orders(self) -> Mapping[str, Any]:
        """The orders of the last release, as the worker's half reads them."""
        return self._own.orders

    def obey(self, orders: Mapping[str, Any]) -> None:
        """Pass the orders of the last release to the worker's half."""
        self._own.orders = orders

    def load(self, parameters: Tensor, buffers: Tensor, fragment: int = -1) -> None:
        """Start from a received model, with the vectors sent after it, or from a fragment."""
        if fragment >= 0:
            self.buffers = buffers
            self._at(fragment, lambda w, state: self._part.begin(w, parameters, state, self._own))
            return
        if self._sent:
            parameters, *others = parameters.view(1 + len(self._sent), -1).unbind()
            self._own.answer = dict(zip(self._sent, others, strict=True))
        if not self._keeps_model:
            self.parameters = self.state.like = parameters
        elif not len(self.parameters):
            self._take(parameters.clone())
        self.buffers = buffers
        self._part.begin(self.parameters, parameters, self.state, self._own)

    def receive(self, answer: Tensor) -> None:
        self._part.receive(self.parameters, answer, self.state, self._own)

    def stepped(self, step: StepResult, samples: int, epoch: float) -> None:
        """Add the result of a step, with the learning rate of that epoch."""
        self.buffers, self._own.samples, self._own.epoch = step.buffers, samples, epoch
        self._part.step(self.parameters, step.gradient, self.state, self._own)

    def keep(self) -> None:
        """Keep the last step without pushing it."""
        self._part.keep(self.parameters, self.state, self._own)

    def payload(self, fragment: int = -1) -> Tensor:
        """Return the payload of a push, for a fragment or for all entries."""
        found: Any
        if fragment >= 0:
            found = self._at(fragment, lambda w, state: self._part.payload(w, state, self._own))
        else:
            found = self._part.payload(self.parameters, self.state, self._own)
        payload: Tensor = self._end_to_end(found) if self._carries or isinstance(found, Mapping) else found
        return payload

    def sent(self, vector: Tensor) -> None:
        """Pass the last push, as decoded by its receivers, to the worker methods."""
        self._part.sent(self.parameters, vector, self.state, self._own)

    def _end_to_end(self, found: Any) -> Tensor:
        """Return the concatenated vectors of a push after checking that the server expects them."""
        names = ("vector", *self._carries) if self._carries else ()
        given = tuple(found) if isinstance(found, Mapping) else ()
        if not names or {*given} != {*names}:
            returned = f"a mapping with {list(given)}" if given else "one vector"
            wanted = f"a mapping with {list(names)}, as it `carries` them" if names else "one vector"
            raise ProtocolError(
                f"payload of communication {self._part.name!r} returns {returned}; the aggregation part "
                f"takes {wanted}"
            )
        return torch.cat([found[name] for name in names])

    def _at(self, fragment: int, compute: Callable[[Tensor, State], Any]) -> Any:
        entries = self._fragments[fragment]
        w, state = entries.of(self.parameters), self.state.of(entries, fragment)
        found = compute(w, state)
        put_back(entries, self.parameters, w)
        self.state.put(entries, fragment, state)
        return found

    def _take(self, own: Tensor) -> None:
        self.parameters = self.state.like = own
        self._own.of(own)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of a waiting worker, read-only; later steps do not change it.

        A received model is not copied: live workers store their state at every release.
        """
        own = self._own
        parameters = self.parameters.clone() if self._keeps_model else self.parameters
        found = {"parameters": parameters, "buffers": self.buffers}
        if own.epoch:
            found[EPOCH] = torch.tensor(own.epoch, dtype=torch.float64)
        for name, tensor in own.answer.items():
            found[ANSWER + name] = tensor
        for prefix, changing in (STATE, self.state.tensors()), (OPTIMIZER, own.tensors()):
            for name, tensor in changing.items():
                found[prefix + name] = tensor.clone()
        return found

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state that `state_dict` returned."""
        self.buffers, self._own.epoch = state["buffers"].clone(), float(state.get(EPOCH, 0.0))
        if not len(state["parameters"]):
            return  # it has not been sent a model yet
        self._take(state["parameters"].clone())
        self.state.load(copies_under(STATE, state))
        self._own.answer = copies_under(ANSWER, state)
        if own := copies_under(OPTIMIZER, state):
            self._own.load(own)


def kept_by_worker(composition: Strategy) -> int:
    """Return the number of vectors that a worker keeps beside its model, found by a trial.

    On few entries, over three pushes. A part that cannot do with that is taken by what it had until then: an
    estimate from below.
    """
    composition = composition.model_copy(update={"communication": composition.communication.fresh()})
    zeros, none = torch.zeros(64), torch.zeros(0)
    model, sent = LocalModel(composition, SGD(lr=1.0)), torch.zeros(64 * composition.vectors_of_an_answer)
    with suppress(Exception):
        model.obey(defaultdict(lambda: 1))
        model.load(sent, none)
        for _ in range(3):
            model.stepped(StepResult(zeros.clone(), none, 0.0), 1, 0.0)
            payload = model.payload()
            if model.notes_pushes:
                model.sent(payload)
            if composition.aggregation.reply == "model":
                model.load(sent, none)
            else:
                model.receive(zeros.clone())
    kept = sum(tensor.dim() > 0 for tensor in model.state.tensors().values())
    return kept + len(composition.aggregation.sends)


def numbers_of(payload: Tensor | None, reads: Collection[str]) -> dict[str, float]:
    """Return the statistics of a payload that some part reads.

    >>> numbers_of(torch.tensor([3.0, 4.0]), ["loss", "push_norm"])
    {'push_norm': 5.0}
    """
    if payload is None or "push_norm" not in reads:
        return {}
    return {"push_norm": float(torch.linalg.vector_norm(payload))}


class _OwnStep:
    """The steps of a worker's own optimizer; see `WorkerStep`."""

    def __init__(self, optimizer: Optimizer, kind: str) -> None:
        self._spec, self.kind = optimizer, kind
        self.epoch, self.samples = 0.0, 0
        self.orders: Mapping[str, Any] = {}
        self.answer: Mapping[str, Tensor] = {}
        self._parameters = torch.zeros(0)
        self._update: PiecewiseSteps | None = None

    def of(self, parameters: Tensor) -> None:
        """Use this vector for the following steps."""
        self._parameters, self._update = parameters, None

    @property
    def lr(self) -> float:
        return self._spec.rate(self.epoch) * float(self.orders.get("lr_scale", 1.0))

    def move(self, direction: Tensor) -> None:
        if self._update is None:
            self._update = PiecewiseSteps(self._spec, self._parameters)
        self._update.step(direction, self.lr, absent_entries(direction))

    def forget(self) -> None:
        self._update = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors; not copied."""
        return {} if self._update is None else self._update.state()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._update = PiecewiseSteps(self._spec, self._parameters)
        self._update.load_state(tensors)


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
        """Number of samples evaluated for a loss, besides the step's samples; 0 if none is evaluated."""
        asked = self._measured is not None
        return self._evaluator.sample_size("test", self._model.test_samples) if asked else 0


_STATISTICS: dict[str, Callable[[StepStatistics], float]] = {
    "loss": lambda stats: stats._step.loss,
    "grad_norm_sq": StepStatistics._grad_norm_sq,
    "test_loss": StepStatistics._test_loss,
}
