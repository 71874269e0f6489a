"""Numbers that parts ask for with `Measure`: the keeper has the tensors, the evaluator takes the losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from psbench.backends.dask.protocol.roles import EVALUATOR
from psbench.backends.dask.protocol.transport import ServerSocket, pack
from psbench.backends.dask.server.parameter_server import ParameterServerStore
from psbench.backends.dask.server.store import ParameterStore, State
from psbench.core.actions import Measure
from psbench.core.events import Push


class Measurements:
    """Measures one thing after another, as the engine asks: while it waits for one it asks no other.

    Parameters
    ----------
    hub : Hub
    then : callable
        Called with the numbers by name when all are there.
    """

    def __init__(self, hub: ServerSocket, then: Callable[[dict[str, float]], None]) -> None:
        self._hub, self._then = hub, then
        self._missing: set[str] = set()
        self._facts: dict[str, float] = {}
        self._samples = 0  # that losses are taken over

    def measure(self, measure: Measure, keeper: ParameterStore, pending: Mapping[int, Push]) -> None:
        """Begin to measure what is needed."""
        needs, self._samples = measure.needs, measure.samples
        self._missing, self._facts = set(needs), {}
        loads = [name for name in needs if name.startswith("server_load:")]
        if loads:
            assert isinstance(keeper, ParameterServerStore)
            keeper.loads(partial(self._take_loads, loads))
        for name, number in needs.items():
            kind = name.split(":")[0]
            if kind == "server_load":
                continue
            push = pending[number] if number is not None else None
            if kind == "train_loss":
                keeper.gather(False, partial(self._evaluate, name, "train"))
            elif push is None:
                keeper.gather(False, partial(self._evaluate, name, "test"))
            elif kind == "candidate_loss":
                keeper.payload(push, partial(self._evaluate, name, "test"))
            else:
                keeper.distance_sq(push, partial(self.take, name))

    def _take_loads(self, names: list[str], seconds: list[float]) -> None:
        for name in names:
            self.take(name, seconds[int(name.partition(":")[2])])

    def _evaluate(self, name: str, which: Literal["train", "test"], state: State) -> None:
        if not state:  # lost with the worker that had it
            self.take(name, float("nan"))
            return
        shapes, flat = pack({part: state[part] for part in ("parameters", "buffers")})
        asked = {"name": name, "which": which, "samples": self._samples}
        self._hub.tell(EVALUATOR, {"do": "loss", **asked, "shapes": shapes}, flat)

    def take(self, name: str, number: float) -> None:
        """Take one of the numbers."""
        self._facts[name] = number
        self._missing.discard(name)
        if not self._missing:
            self._then(self._facts)
