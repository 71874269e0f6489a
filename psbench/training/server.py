"""The model's vector on a server, and the state from which the aggregation part updates it.

The same class serves the simulator, a parameter server, each of its shards (on a slice), and each replica
under All-Reduce, so that one sequence of updates gives one sequence of models everywhere.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

from psbench.core import Aggregation, Apply, Pushed, State, Step
from psbench.core.arithmetic import Entries, Shapes, put_back, weighted_sum
from psbench.errors import ProtocolError
from psbench.optimization.absent import absent_in_all
from psbench.optimization.optimizer import SGD, Optimizer
from psbench.optimization.piecewise import PiecewiseSteps
from psbench.training.device import copied
from psbench.training.fused import fused_momentum_step

#: prefixes of the optimizer's and the part's tensors, among those of a server
OPTIMIZER, AGGREGATION = "optimizer/", "aggregation/"
_PLAIN = Apply((), ())


class How(Protocol):
    """Settings of an update, except its pushes; see `Apply`."""

    numbers: dict[str, float]
    lr_scale: float
    epoch: float
    momentum_scale: float
    fragment: int


class Server:
    """A flat parameter vector, the model's buffers, and the update of both.

    Parameters
    ----------
    parameters : float32 tensor, (num_params,)
        Copied.
    buffers : float32 tensor, (num_buffers,)
        Running statistics such as BatchNorm's; may be empty. Copied.
    optimizer : Optimizer
    global_batch : int, samples
        B; a push of b samples moves the buffers by b/B.
    aggregation : Aggregation or None
        Computes the updates; a step along the weighted sum if None.
    fragments : sequence of Entries
        Where in the vector each fragment's entries are, if pushes are of fragments.
    shapes : sequence of sequence of int
        Of the model's tensors, where this holds them all; parts that are `per_tensor`, or have an exchange,
        need them.
    """

    def __init__(
        self,
        parameters: Tensor,
        buffers: Tensor,
        optimizer: Optimizer,
        global_batch: int,
        aggregation: Aggregation | None = None,
        fragments: Sequence[Entries] = (),
        shapes: Shapes = (),
    ) -> None:
        self.shapes = shapes
        self.parameters, self.buffers = copied(parameters.detach()), copied(buffers.detach())
        self.spec = optimizer
        self.global_batch = global_batch
        self._update = PiecewiseSteps(optimizer, self.parameters)
        self._momentum_scale = 1.0
        self.aggregation = Aggregation() if aggregation is None else aggregation
        self.state, self.fragments = State(self.parameters), fragments
        #: what the last commit left for workers that are not sent the model
        self.aggregate: Tensor | None = None
        #: whether the last update's movement is measured: ||w_new - w_old|| / max(||w_new||, 1)
        self.measures_movement = False
        self.movement = math.inf

    def use(self, aggregation: Aggregation, fragments: Sequence[Entries] = ()) -> None:
        """Use another aggregation part; its state starts from zero, unless it is the same part."""
        if aggregation.name != self.aggregation.name:
            self.state = State(self.parameters)
        self.aggregation, self.aggregate, self.fragments = aggregation, None, fragments

    def apply(self, pushes: Sequence[Pushed], how: How = _PLAIN) -> None:
        """Make the next version from the pushes of a commit, in order, with the settings of its `Apply`."""
        if how.momentum_scale != self._momentum_scale:
            self._scale_momentum(how.momentum_scale)
        before = self.parameters.clone() if self.measures_movement else None
        rate, fragment = self.spec.rate(how.epoch) * how.lr_scale, how.fragment
        epoch, numbers, plain = how.epoch, how.numbers, self._update.step
        if self.aggregation.carries:
            for push in pushes:
                push.split(self.aggregation.carries)
        if self.aggregation.payload == "gradient":
            absent = absent_in_all([push.vector for push in pushes])
            plain = plain if absent is None else _leaving_alone(plain, absent)
        step = Step(rate, epoch, numbers, self.global_batch, plain, _momentum_step=fused_momentum_step)
        if self.aggregation.per_tensor:
            step.tensors = self._tensors(fragment)
        if fragment < 0:
            self.state.lent = pushes
            self.aggregation.update(self.parameters, pushes, self.state, step)
            self.state.lent = ()  # or their vectors would be held until the next version
        else:
            self._update_fragment(fragment, pushes, step)
        if self.buffers.numel():  # `len` of a tensor is Python, and as slow as a small update
            self.aggregation.update_buffers(self.buffers, pushes, step)
        self.aggregate = self._checked(step.answer)
        if before is not None:
            self.movement = _movement(before, self.parameters)

    def sent_model(self) -> Tensor:
        """Return the model as workers receive it: the parameters, then the state that the part `sends`.

        The parameters themselves, not a copy, where it sends none.
        """
        if not self.aggregation.sends:
            return self.parameters
        zeros = torch.zeros_like(self.parameters)
        return torch.cat([self.parameters, *(self.state.get(name, zeros) for name in self.aggregation.sends)])

    def _checked(self, answer: Tensor | None) -> Tensor | None:
        """Return the answer that replaces the model, if the part has declared one."""
        part = self.aggregation
        if answer is None and part.reply != "model":
            raise ProtocolError(
                f"aggregation {part.name!r} never calls step.reply, but its `reply` is {part.reply!r}"
            )
        if answer is not None and getattr(answer, "shape", None) != self.parameters.shape:
            what = f"{len(answer)} entries" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"
            raise ProtocolError(
                f"aggregation {part.name!r} replies with {what}; step.reply takes one vector as long as `x`"
            )
        return answer

    def exchange(self, pushes: Sequence[Pushed], numbers: Mapping[str, float]) -> list[Pushed]:
        """Run the exchange of all pushers of a commit, and return each one's result."""
        weights = [push.weight for push in pushes]
        samples, steps = counted(self.aggregation, [p.samples for p in pushes], [p.steps for p in pushes])
        buffers = weighted_sum([push.buffers for push in pushes], [own / sum(samples) for own in samples])
        members = [
            self.aggregation.exchange(push.vector, self.state, self.shapes, numbers) for push in pushes
        ]
        given = [next(member) for member in members]
        found: list[Pushed] = []
        while not found:
            messages = None if isinstance(given[0], Tensor) else [*zip(weights, given, strict=True)]
            total = weighted_sum(given, weights) if messages is None else None
            given = []
            for member, push in zip(members, pushes, strict=True):
                try:
                    given.append(member.send(messages if total is None else total.clone()))
                except StopIteration as end:
                    found.append(added_up(end.value, buffers, push.worker, samples, steps))
        assert not given, "members of one exchange make as many sums"
        return found

    def left_out(self, mine: Tensor, total: Pushed, numbers: Mapping[str, float]) -> Tensor | None:
        """Return a member's compression error for its next push; call this before the update."""
        return self.aggregation.left_out(mine, total, self.state, self.shapes, numbers)

    def _tensors(self, fragment: int) -> list[tuple[int, int]]:
        """Return the tensors, and the number of entries of each in a fragment or in total (-1), in order."""
        sizes = [math.prod(shape) for shape in self.shapes] or [len(self.parameters)]
        if fragment < 0:
            return [*enumerate(sizes)]
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        counts = torch.bincount(self.fragments[fragment].of(owner), minlength=len(sizes))
        return [(tensor, count) for tensor, count in enumerate(counts.tolist()) if count]

    def _update_fragment(self, fragment: int, pushes: Sequence[Pushed], step: Step) -> None:
        entries = self.fragments[fragment]
        x, state = entries.of(self.parameters), self.state.of(entries, fragment)
        state.lent = pushes
        self.aggregation.update(x, pushes, state, step)
        put_back(entries, self.parameters, x)
        self.state.put(entries, fragment, state)

    def forget_momentum(self) -> None:
        """Reset the state of the optimizer and of the aggregation part; the model stays."""
        self._update = PiecewiseSteps(self.spec, self.parameters)
        self._momentum_scale = 1.0
        self.state = State(self.parameters)

    def _scale_momentum(self, scale: float) -> None:
        """Multiply the optimizer's own coefficient; its buffer stays as it is."""
        self._update.set_momentum(scale * self.spec.coefficient)
        self._momentum_scale = scale

    def tensors(self) -> dict[str, Tensor]:
        """Return the state of the next update by name: the model, the optimizer's state, the part's.

        Not copied. The part's numbers are tensors of no dimension.
        """
        found = {"parameters": self.parameters, "buffers": self.buffers}
        found |= {OPTIMIZER + name: value for name, value in self._update.state().items()}
        prefix = f"{AGGREGATION}{self.aggregation.name}/"
        return found | {prefix + name: tensor for name, tensor in self.state.tensors().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore copies of the tensors that `tensors` returned; missing states start afresh."""
        self.parameters.copy_(tensors["parameters"])
        self.buffers.copy_(tensors["buffers"])
        self.load_states(tensors)

    def load_states(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the states of the optimizer and the part only."""
        self.forget_momentum()
        if own := copies_under(OPTIMIZER, tensors):
            self._update.load_state(own)
        self.state.load(copies_under(f"{AGGREGATION}{self.aggregation.name}/", tensors))


def _leaving_alone(move: Callable[..., None], absent: Tensor) -> Callable[[Tensor, float], None]:
    """Return the optimizer's step, restricted to entries with a gradient or an update."""
    return lambda direction, lr: move(direction, lr, absent & (direction == 0))


def _movement(before: Tensor, after: Tensor) -> float:
    # in float64, as differences of nearly equal numbers are what this is about
    old, new = before.double(), after.double()
    return float(torch.linalg.vector_norm(new - old)) / max(float(torch.linalg.vector_norm(new)), 1.0)


def counted(
    aggregation: Aggregation, samples: Sequence[float], steps: Sequence[int]
) -> tuple[Sequence[float], int]:
    """Return the weight of each push's statistics in a sum, and the number of their steps.

    A difference is of many steps, and counts by the samples of one: see `Aggregation.update_buffers`.
    """
    if aggregation.payload == "difference":
        return [own / made for own, made in zip(samples, steps, strict=True)], 1
    return samples, max(steps)


def added_up(
    vectors: Mapping[str, Tensor], buffers: Tensor, worker: int, samples: Sequence[float], steps: int
) -> Pushed:
    """Return the result of an exchange as the single push of a version; see `counted`."""
    more = {name: vector for name, vector in vectors.items() if name != "vector"}
    return Pushed(vectors["vector"], buffers, worker, sum(samples), steps, more=more)


def copies_under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of the tensors whose names begin with `prefix`, without the prefix."""
    return {name.removeprefix(prefix): t.clone() for name, t in tensors.items() if name.startswith(prefix)}


def all_finite(tensor: Tensor) -> bool:
    """Return whether no entry is NaN or infinite."""
    # no sum is finite that has a nan or an infinity in it; one that overflows is looked at closely
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def kept_vectors(aggregation: Aggregation) -> int:
    """Return the number of vectors that an aggregation part keeps between updates, found by a trial.

    On few entries, with one push and every number 0; of an exchange, so large that it has begun. A part that
    cannot do with that is taken by what it had until then: an estimate from below.
    """
    entries = torch.zeros(64)
    server = Server(entries, torch.zeros(0), _TRIAL, 1, aggregation.fresh(), shapes=[(8, 8)])
    pushed = Pushed(entries.clone(), server.buffers, base=entries.clone())
    numbers: dict[str, float] = defaultdict(lambda: 1e9 if aggregation.exchanges else 0.0)
    with suppress(Exception):
        for _ in range(2):
            pushes = server.exchange([pushed], numbers) if aggregation.exchanges else [pushed]
            server.apply(pushes, Apply((), (), numbers))
    return sum(tensor.dim() > 0 for tensor in server.state.tensors().values())


_TRIAL = SGD(lr=1.0)
