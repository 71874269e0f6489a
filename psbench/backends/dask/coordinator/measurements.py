"""Numbers that parts ask for with `Measure`: the store has the tensors, the evaluator computes the losses."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Literal

from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import MeasureLoss
from psbench.backends.dask.protocol.roles import EVALUATOR
from psbench.backends.dask.server.store import ParameterStore
from psbench.core.actions import Measure
from psbench.core.events import Event, Measured, Push


class Measurements:
    """Measures what the engine asks for; while it waits for numbers it asks for no others.

    Parameters
    ----------
    out : Outbox
    events : deque
        Where the numbers, when all are there, go before all other events.
    """

    def __init__(self, out: Outbox, events: deque[Event]) -> None:
        self._out, self._events = out, events
        self._missing: set[str] = set()
        self._asked: dict[str, MeasureLoss] = {}  # of the evaluator
        self._numbers: dict[str, float] = {}
        self._samples = 0  # that losses are taken over

    def measure(self, measure: Measure, store: ParameterStore, pending: Mapping[int, Push]) -> None:
        """Begin to measure what is needed."""
        needs, self._samples = measure.needs, measure.samples
        self._missing, self._numbers, self._asked = set(needs), {}, {}
        loads = [name for name in needs if name.startswith("server_load:")]
        if loads:
            store.loads(partial(self._take_loads, loads))
        if products := [name for name in needs if name.startswith("dot:")]:
            store.products(products, pending, self.take)
        for name, number in needs.items():
            kind = name.split(":")[0]
            if kind in ("server_load", "dot"):
                continue
            push = pending[number] if number is not None else None
            if kind == "train_loss":
                store.gather(False, partial(self._evaluate, name, "train"))
            elif push is None:
                store.gather(False, partial(self._evaluate, name, "test"))
            elif kind == "candidate_loss":
                store.payload(push, partial(self._evaluate, name, "test"))
            else:
                store.distance_sq(push, partial(self.take, name))

    def _take_loads(self, names: list[str], seconds: list[float]) -> None:
        for name in names:
            self.take(name, seconds[int(name.partition(":")[2])])

    def _evaluate(self, name: str, which: Literal["train", "test"], state: StateDict) -> None:
        if not state:  # lost with the worker that had it
            self.take(name, float("nan"))
            return
        tensors = {part: state[part] for part in ("parameters", "buffers")}
        self._asked[name] = MeasureLoss(name, which, self._samples, tensors)
        self._out.send(EVALUATOR, self._asked[name])

    def take(self, name: str, number: float) -> None:
        """Take one of the numbers, if it is awaited."""
        if name not in self._missing:
            return  # of an evaluator that was given up
        self._asked.pop(name, None)
        self._numbers[name] = number
        self._missing.discard(name)
        if not self._missing:
            self._events.appendleft(Measured(self._numbers))

    def begin_again(self) -> None:
        """Ask another evaluator for what the one before has not answered."""
        for message in self._asked.values():
            self._out.send(EVALUATOR, message)
