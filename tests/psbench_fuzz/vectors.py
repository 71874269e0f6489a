"""The toy vectors of a schedule: models of few entries, which the real servers and workers' halves move.

A gradient is of small whole numbers, and an eighth of the model that it was computed on: a worker that has
the wrong version pushes something else. Whatever servers and workers compute is computed again by the model.
What codecs and exchanges leave out of a push is part of the worker's next one (`wire`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from psbench.core import AnyStrategy, Pushed, Strategy
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.collective import Collective
from psbench.core.peer_to_peer import PeerToPeer
from psbench.optimization.optimizer import SGD
from psbench.testing.arithmetic import Some, some_fragments
from psbench.testing.invariants import BrokenContract
from psbench.training.local_model import LocalModel
from psbench.training.server import Server
from psbench.training.trainer import StepResult
from psbench_fuzz.model import arithmetic
from psbench_fuzz.model.arithmetic import RATE, ROUNDING, GivenPush, ModelVector
from psbench_fuzz.numbers import noise
from psbench_fuzz.schedule import Schedule
from psbench_fuzz.wire import Wire

#: of the model: one tensor, which an exchange may compress if there is one
SHAPE, SHAPE_EXCHANGED = (3,), (3, 2)
#: entries beyond which rounding is not small any more
_LARGEST = 1e6
#: share of the largest entry that rounding may make of sums in another order
_ROUNDING = 1e-8
_NONE = torch.zeros(0)
#: vectors of numbers between -3 and 3
_WHOLE = tuple(
    torch.tensor([first, second, third], dtype=torch.float64)
    for first in range(-3, 4)
    for second in range(-3, 4)
    for third in range(-3, 4)
)


def unequal(one: ModelVector, other: ModelVector, rounding: float = _ROUNDING) -> bool:
    """Return whether two vectors differ by more than rounding; overflows are equal to anything."""
    pairs = list(zip(one.tolist(), other.tolist(), strict=True))
    most = max((abs(a) for pair in pairs for a in pair if a == a), default=0.0)
    if most > _LARGEST:
        return False
    return not all(abs(a - b) <= rounding * max(1.0, most) or (a != a and b != b) for a, b in pairs)


def can_carry(strategy: AnyStrategy) -> bool:
    """Return whether vectors can be simulated: a common model, with entries for each fragment."""
    parts = strategy.compositions
    have_entries = all(len(some_fragments(each, range(0))) <= math.prod(SHAPE) for each in parts)
    return have_entries and not any(isinstance(each.placement, PeerToPeer) for each in parts)


class WorkerVectors:
    """A worker's vectors: those of the package, and the model's expectations."""

    def __init__(
        self,
        composition: Strategy,
        optimizer: SGD,
        number: int,
        schedule: Schedule,
        wire: Wire,
        entries: int,
    ) -> None:
        self._optimizer, self._number, self._seed = optimizer, number, schedule.seed
        self._wire, self._entries = wire, entries
        self._composition = composition
        withstands = composition.aggregation.withstands_nan and wire.is_exact
        self._has_nan = schedule.wrong and withstands and noise(self._seed, 105, number) < 0.3
        self._fragments = some_fragments(composition, range(entries))
        self.real = LocalModel(composition, optimizer, self._fragments)
        self.model = arithmetic.ModelWorker(composition, optimizer.momentum)
        self._epoch = self._epochs_per_step = 0.0
        self._unpushed = 0  # steps since the last push or, without one under way, since the last release
        self._steps = 0
        self.has_model = False

    def renew(self, release: act.Release, vectors: tuple[Tensor, ...], exchanging: bool) -> None:
        """Take the vectors of a release that orders a step; see `backends.local_steps.renew`."""
        self._epoch, self._epochs_per_step = release.epoch, release.epochs_per_step
        self._unpushed = self._unpushed if exchanging else 0
        self._wire.received(self._number)
        self.real.obey(release.orders)
        self.model.orders = release.orders
        if not vectors:
            if not self.has_model:
                raise BrokenContract(f"worker {self._number} has no model and is sent none")
            self.keep()
        elif release.aggregate:
            self.real.receive(vectors[0])
            self.model.receive(vectors[0].numpy())
        else:
            self.has_model = True
            self.real.load(vectors[0], _NONE, release.fragment)
            self.model.load(vectors[0].numpy(), self._places(release.fragment))

    def keep(self) -> None:
        """Keep the last step."""
        self.real.keep()
        self.model.keep()

    def step(self, samples: int, epoch: float) -> None:
        """Compute a gradient at an epoch of the schedule, which is computed again."""
        self._steps += 1
        draws = [noise(self._seed, 106 + i, self._number, self._steps) for i in range(self._entries // 3)]
        whole = torch.cat([_WHOLE[int(draw * len(_WHOLE))] for draw in draws])
        gradient = whole.add(self.real.parameters, alpha=0.125)
        if self._has_nan and self._steps % 5 == 0:
            gradient[0] = math.nan
        self.real.stepped(StepResult(gradient, _NONE, 0.0), samples, epoch)
        rate = self._optimizer.rate(self._epoch + self._unpushed * self._epochs_per_step)
        self.model.stepped(gradient.numpy().copy(), samples, rate)
        self._unpushed += 1

    def _places(self, fragment: int) -> ModelVector | None:
        return None if fragment < 0 else self._fragments[fragment].places.numpy()

    def payload(self, push: ev.Push) -> Tensor:
        """Return the payload of a push as it arrives."""
        self._epoch += self._unpushed * self._epochs_per_step
        self._unpushed = 0
        payload = self.real.payload(push.fragment)
        expected = self.model.payload(self._places(push.fragment))
        own = self.real.parameters.numpy().copy()
        if unequal(own, self.model.own):
            raise BrokenContract(f"worker {self._number} is at {own}, but by the rules at {self.model.own}")
        self.model.own = own  # so that rounding does not add up
        if unequal(payload.numpy(), expected):
            who = f"{self._composition.communication.name}: worker {self._number}"
            raise BrokenContract(
                f"{who} pushes {payload.tolist()}, but by the rules it is {expected.tolist()}"
            )
        arrived = self._wire.push(push, payload)
        if self.real.notes_pushes:
            self.real.sent(arrived)
            self.model.sent(arrived.numpy())
        return arrived

    @property
    def own(self) -> Tensor:
        return self.real.parameters


class Vectors:
    """The servers' side of a schedule's vectors.

    Parameters
    ----------
    schedule : Schedule
    strategy : Strategy or SwitchingStrategy
        The schedule's.

    Attributes
    ----------
    versions : list of float64 arrays, (entries,)
        Every version of the model.
    payloads : dict of push to tensor
    wire : Wire
        What lies between workers and servers.
    """

    def __init__(self, schedule: Schedule, strategy: AnyStrategy) -> None:
        self._strategy, self._schedule = strategy, schedule
        momentum = schedule.momentum or 0.0
        self._optimizer = SGD(lr=RATE, momentum=momentum, milestones=(2.0, 4.0), gamma=0.5)
        exchanges = any(each.aggregation.exchanges for each in strategy.compositions)
        self._shape = SHAPE_EXCHANGED if exchanges else SHAPE
        start = torch.arange(1.0, math.prod(self._shape) + 1, dtype=torch.float64)
        self._entries = range(len(start))
        self._composition = strategy.compositions[0]
        self._server = self._new_server(start)
        self.versions = [start.numpy()]
        self._model = arithmetic.ModelServer(start.numpy(), self._composition.aggregation.name, self._shape)
        self._last: tuple[act.Apply, ModelVector, ModelVector] | None = (
            None  # with the version before, and the push
        )
        self.payloads: dict[int, Tensor] = {}
        self.wire = Wire(self._composition, len(start), schedule.seed)

    def _new_server(self, start: Tensor) -> Server:
        part = self._composition.aggregation
        return Server(start, _NONE, self._optimizer, 1, part, self._fragments, shapes=[self._shape])

    @property
    def _fragments(self) -> list[Some]:
        return some_fragments(self._composition, self._entries)

    def half(self, number: int) -> WorkerVectors:
        own = self._composition, self._optimizer, number, self._schedule
        return WorkerVectors(*own, self.wire, len(self._entries))

    def carried(self, release: act.Release) -> tuple[Tensor, ...]:
        """Return the vectors that a release carries."""
        if not release.send:
            return ()
        if release.aggregate:
            assert self._server.aggregate is not None
            return (self.wire.aggregate(release, self._server.aggregate),)
        if release.fragment >= 0:
            return (self._fragments[release.fragment].of(self._server.parameters),)
        return (self.wire.model(release, self._server.sent_model()),)

    def apply(self, apply: act.Apply, gone: Collection[int]) -> None:
        """Make the next version, and compare; workers that are `gone` have no residual."""
        part = self._composition.aggregation
        given = [
            GivenPush(self.payloads[push.id].numpy(), weight, self.versions[push.base_version], push.worker)
            for push, weight in zip(apply.pushes, apply.weights, strict=True)
        ]
        pushes = [
            Pushed(
                self.payloads[p.id], _NONE, p.worker, p.samples, p.steps, torch.from_numpy(g.base), g.weight
            )
            for p, g in zip(apply.pushes, given, strict=True)
        ]
        left: list[Tensor | None] = []
        if part.exchanges:
            totals = self._server.exchange(pushes, apply.numbers)
            if not all(torch.equal(each.vector, totals[0].vector) for each in totals):
                raise BrokenContract(f"{part.name}: members of one exchange come to different vectors")
            left = [self._server.left_out(push.vector, totals[0], apply.numbers) for push in pushes]
            pushes = totals[:1]
        elif isinstance(self._composition.placement, Collective):  # a ring adds up
            total = torch.from_numpy(np.sum([each.weight * each.vector for each in given], axis=0))
            pushes = [Pushed(total, _NONE, samples=sum(push.samples for push in pushes))]
        self._server.apply(pushes, apply)
        before = self._model.x
        rate = self._optimizer.rate(apply.epoch) * apply.lr_scale
        momentum = self._optimizer.momentum * apply.momentum_scale
        places = self._fragments[apply.fragment].places.numpy() if apply.fragment >= 0 else None
        self._model.apply(part, given, apply.numbers, rate, momentum, places)
        found = self._server.parameters.numpy().copy()
        if unequal(found, self._model.x, ROUNDING.get(part.name, _ROUNDING)):
            raise BrokenContract(
                f"{part.name}: version {apply.version} is {found.tolist()}, but by the rules it is "
                f"{self._model.x.tolist()}"
            )
        self._model.x = found  # so that rounding does not add up
        self._check_sent_state()
        if part.exchanges:
            self._leave_out(apply, pushes[0].vector, left, gone)
        self._last = apply, before, given[0].vector
        self.versions.append(found)

    def _check_sent_state(self) -> None:
        """Compare the state that goes with the model."""
        part = self._composition.aggregation
        for name in part.sends:
            found = self._server.state[name].numpy().copy()
            if unequal(found, self._model.memory[name]):
                raise BrokenContract(
                    f"{part.name}: {name!r} is {found.tolist()}, but by the rules it is "
                    f"{self._model.memory[name].tolist()}"
                )
            self._model.memory[name] = found

    def _leave_out(
        self, apply: act.Apply, total: Tensor, left: list[Tensor | None], gone: Collection[int]
    ) -> None:
        """Return residuals of an exchange to workers, and check that no part of the pushes is lost."""
        name, sent = self._composition.aggregation.name, torch.zeros_like(total)
        rounding = ROUNDING.get(name, _ROUNDING)
        rules: list[ModelVector | None] = [*self._model.left] or [None] * len(left)
        for push, weight, residual, rule in zip(apply.pushes, apply.weights, left, rules, strict=True):
            pushed = self.payloads[push.id]
            if residual is None and rule is None:
                sent.add_(pushed, alpha=weight)
                continue
            if residual is None or rule is None or unequal(residual.numpy(), rule, rounding):
                raise BrokenContract(
                    f"{name}: leaves {residual} out of worker {push.worker}'s push, but by the rules it is "
                    f"{rule}"
                )
            sent.add_(pushed - residual, alpha=weight)
            if push.worker not in gone:
                self.wire.leave_out(push.worker, residual)
        keeps = self._composition.aggregation.conserves_sums and any(each is not None for each in left)
        if keeps and unequal(sent.numpy(), total.numpy(), rounding):
            raise BrokenContract(
                f"{name}: the pushes less what is left out of them come to {sent.tolist()}, and the "
                f"aggregate is {total.tolist()}"
            )

    def check_sum(self, worker: int, own: ModelVector) -> None:
        """Check the sum of both models after an exchange, for parts that declare it conserved.

        Called when a worker has taken its answer, before another version is made.
        """
        halves: tuple[Any, Any] = (self._composition.aggregation, self._composition.communication)
        exact = self._last is not None and self.wire.is_exact
        if self._last is None or not exact or not all(hasattr(part, "elastic_rate") for part in halves):
            return
        (apply, centre, pushed), self._last = self._last, None
        if apply.pushes[0].worker != worker or len({part.elastic_rate for part in halves}) > 1:
            return
        before, after = centre + pushed, self.versions[-1] + own
        if unequal(before, after):
            raise BrokenContract(
                f"{self._composition.aggregation.name}: the models of worker {worker} and of the server came "
                f"to {before.tolist()}, and come to {after.tolist()} after their exchange"
            )

    def product(self, one: int, other: int) -> float:
        """Return the scalar product of two pushes' payloads."""
        return float(torch.dot(self.payloads[one], self.payloads[other]))

    def distance_sq(self, base: int) -> float:
        """Return the squared distance of the model from a version."""
        away = self.versions[-1] - self.versions[base]
        return float(away @ away)

    def hand_over(self, handover: act.Handover) -> None:
        """Continue under another composition."""
        if handover.forgets_momentum:
            self._server.forget_momentum()
            self._model.forget()
        self._composition = self._strategy.compositions[handover.to]
        self.wire.hand_over(self._composition)
        self._server.use(self._composition.aggregation, self._fragments)
        self._model.use(self._composition.aggregation.name)
        self._last = None

    def save_and_load(self) -> None:
        """Replace the server by a new one with the same tensors."""
        saved, aggregate = self._server.tensors(), self._server.aggregate
        self._server = self._new_server(self._server.parameters)
        self._server.load(saved)
        self._server.aggregate = aggregate
