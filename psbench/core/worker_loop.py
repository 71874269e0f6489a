"""The worker's side of the protocol, without tensors, clocks or sockets; every backend drives it.

A backend computes steps and carries messages. This decides what a worker does after a step, and adds up the
statistics of the steps since its last message.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from psbench.core.actions import Orders
from psbench.core.events import Push, Report, Vote
from psbench.core.strategy import Strategy
from psbench.core.worker_policy import Directive, WorkerPolicy

_NOTHING: Mapping[str, float] = MappingProxyType({})


class WorkerLoop:
    """One worker under one composition, from one release to the next.

    Parameters
    ----------
    composition : Strategy
    worker : int
    batch_size : int
        Samples of the worker's batch, until an order changes it.

    Attributes
    ----------
    chunk : int
        Samples of the chunk of data that the next step begins; 0 if it continues with the current one.
    injection : dict
        `workers` whose shards the next step takes samples from, too, and how many of `each`; empty for none.
    exchanging : bool
        Whether a push is under way while the worker computes (overlap).
    fragment : int
        The entries that the next push carries, by the last orders; -1: all.
    setting : int
        The codec's setting for the next push, by the last release; -1: the only one, or the first.

    Examples
    --------
    >>> from psbench.strategies import bsp
    >>> loop = WorkerLoop(bsp(), worker=0, batch_size=8)
    >>> loop.release("step", 1, 0, {})
    'continue'
    >>> loop.stepped(8, 0.5, 2.0, {})
    'push'
    >>> loop.push(0, bytes=100).samples
    8
    """

    def __init__(self, composition: Strategy, worker: int, batch_size: int) -> None:
        self.worker, self._batch = worker, batch_size
        self._policy: WorkerPolicy = composition.communication.worker_policy()
        self.reads = composition.reads
        self.ticket = self.version = -1
        self.exchanging = False
        self.fragment = self.setting = -1
        self.chunk = 0
        self._chunk_orders: Orders = {}
        self.injection: Orders = {}
        self._steps = self._samples = 0
        self._epoch = self._epochs_per_step = 0.0
        self._compute_s = self._reported_s = self._loss = self._first_loss = 0.0
        self._stats: Mapping[str, float] = {}
        self._push_ordered = self._waiting = False
        self._allowance: int | None = None  # samples until the next push; None: no limit

    @property
    def batch_size(self) -> int:
        """Samples that the next step is to take."""
        return self._policy.step_samples(self._batch)

    @property
    def epoch(self) -> float:
        """The epoch at which the next step reads the rate's schedule.

        It is that of the last release, and each step since that no commit has counted advances it as one step
        of all workers would: as `scheduler.step()` after each `optimizer.step()` does.
        """
        # rounded, as a schedule may have a step at a whole epoch
        return round(self._epoch + self._steps * self._epochs_per_step, 9) if self._steps else self._epoch

    def release(
        self,
        then: str,
        ticket: int,
        version: int,
        orders: Orders,
        allowance: int = -1,
        epoch: float = 0.0,
        epochs_per_step: float = 0.0,
    ) -> Directive:
        """Handle a release; return whether to push at once or to `continue` with steps.

        Steps made while a push was under way are in no push yet, and are kept.
        """
        self.ticket, self.version = ticket, version
        self._allowance = None if allowance < 0 else allowance
        self._push_ordered = False  # an order that came while it waited is obsolete: it has pushed
        self.setting = orders.get("codec", -1)
        self.on_orders(orders)
        if then == "push":
            return "push"
        self._epoch, self._epochs_per_step = epoch, epochs_per_step
        exchanged, self.exchanging = self.exchanging, False
        waited, self._waiting = self._waiting, False
        if not exchanged:
            self._reset_statistics()
            self._begin_chunk()
            return "continue"
        directive = self._policy.on_answer(waited)
        if waited and self._push_ordered:
            return "push"
        return self._within_allowance(directive) if waited else directive

    def _within_allowance(self, directive: Directive) -> Directive:
        """Return `push` instead of another step if no samples are left.

        With a push under way the worker goes on until its answer is due, which its policy counts in steps.
        """
        is_used_up = self._allowance is not None and self._samples >= self._allowance
        return (
            "push"
            if is_used_up and not self.exchanging and directive in ("continue", "report")
            else directive
        )

    def takes_answer(self, stepped: bool) -> bool:
        """Return whether an early answer is applied now, or after later steps."""
        return self._policy.takes_answer(stepped)

    def on_orders(self, orders: Orders) -> None:
        """Handle orders of a release, or between two steps.

        Orders with `samples` apply to chunks of data, from the next chunk on.
        """
        if not orders:
            return
        self._push_ordered = self._push_ordered or bool(orders.get("push"))
        self.fragment = orders.get("fragment", self.fragment)
        if "samples" in orders:
            self._chunk_orders = orders
        else:
            self._apply_orders(orders)

    def stepped(self, samples: int, compute_s: float, loss: float, stats: Mapping[str, float]) -> Directive:
        """Return the directive after a step of `samples` samples; `stats` may be computed lazily."""
        if not self._steps:
            self._first_loss = loss
        self._steps += 1
        self._samples += samples
        self._compute_s += compute_s
        self._loss += samples * loss
        self._stats = stats
        self.chunk = 0
        directive = self._policy.after_step(stats)
        if self._push_ordered and not self.exchanging:
            return "push"
        directive = self._within_allowance(directive)
        self._waiting = directive == "wait"
        return directive

    def vote(self) -> Vote:
        """Return the vote requested by `stepped`."""
        self._reported_s = self._compute_s  # the push that may follow does not report it again
        return Vote(self.worker, self.ticket, self._policy.vote_value(), self._samples, self._compute_s)

    def report(self) -> Report:
        """Return the report requested by `stepped`; it also requests the next chunk of data, if any."""
        report = Report(self.worker, self.ticket, self._policy.report(self._statistics()))
        if self._chunk_orders:
            report.stats["next_samples"] = self._chunk_orders["samples"]
        self._begin_chunk()
        return report

    def push(
        self,
        number: int,
        *,
        bytes: int,
        overlapping: bool = False,
        measured: Mapping[str, float] = _NOTHING,
        reported: Mapping[str, float] = _NOTHING,
    ) -> Push:
        """Return the push requested by `stepped` or `release`, and reset the statistics.

        `measured` has statistics of what is pushed, `reported` those of the worker's selection.
        """
        push = Push(
            id=number,
            worker=self.worker,
            ticket=self.ticket,
            base_version=self.version,
            samples=self._samples,
            steps=self._steps,
            bytes=bytes,
            compute_s=self._compute_s - self._reported_s,
            loss=self._loss / max(1, self._samples),
            stats={**self._statistics(measured), **reported} or None,
            overlapping=overlapping,
            fragment=self.fragment,
            setting=self.setting,
        )
        self.exchanging, self._push_ordered = overlapping, False
        self._epoch = self.epoch
        if self._allowance is not None:
            self._allowance -= push.samples
        self._reset_statistics()
        return push

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a waiting worker's loop as plain data, read-only; later steps do not change it.

        Orders are read-only too, so they are not copied: live workers store this state at every release.
        """
        own = dict(zip(_SAVED, _values_of(self), strict=True))
        own["_stats"] = {n: self._stats[n] for n in self.reads if n in self._stats and n != "compute_s"}
        policy = dict(self._policy.__dict__) | dict(self._policy.__pydantic_private__ or {})
        own["policy"] = copy.deepcopy(policy)
        return own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state from `state_dict`."""
        own = copy.deepcopy(dict(state))
        for name, value in own.pop("policy").items():
            setattr(self._policy, name, value)
        for name, value in own.items():
            setattr(self, name, value)

    def _begin_chunk(self) -> None:
        """Start a chunk by the latest orders; without orders, the worker uses its whole shard."""
        if self._chunk_orders:
            self.chunk = self._chunk_orders["samples"]
            self._apply_orders(self._chunk_orders)

    def _apply_orders(self, orders: Orders) -> None:
        self._batch = orders.get("batch_size", self._batch)
        self.injection = orders.get("injection", self.injection)
        self._policy.on_orders(orders)

    def _statistics(self, measured: Mapping[str, float] = _NOTHING) -> dict[str, float]:
        if not self.reads:
            return {}
        own: dict[str, Any] = {"compute_s": self._compute_s, "loss": self._loss / max(1, self._samples)}
        own |= {"first_loss": self._first_loss, **measured}
        known = {*own, *self._stats} - {"send_s"}  # which is known only to the receiver
        names = (name for name in self.reads if name in known)
        return {name: own[name] if name in own else self._stats[name] for name in names}

    def _reset_statistics(self) -> None:
        self._steps = self._samples = 0
        self._compute_s = self._reported_s = self._loss = 0.0


#: attributes that are written as they are
_SAVED = (
    *("ticket", "version", "exchanging", "chunk", "_batch", "_chunk_orders", "_steps", "_samples"),
    *(
        "injection",
        "fragment",
        "setting",
        "_epoch",
        "_epochs_per_step",
        "_compute_s",
        "_reported_s",
        "_loss",
        "_first_loss",
        "_push_ordered",
        "_waiting",
        "_allowance",
    ),
)
_values_of = operator.attrgetter(*_SAVED)
