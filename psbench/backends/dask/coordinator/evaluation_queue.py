"""Models on their way to the evaluator, which works while training goes on."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from psbench.backends.dask.protocol.roles import EVALUATOR
from psbench.backends.dask.protocol.transport import ServerSocket, pack
from psbench.backends.dask.server.store import State
from psbench.core.view import ClusterView

#: bytes of models that may wait for the evaluator; beyond, training waits for it
_WAITING_BYTES = 1 << 28
_WAITING_AT_LEAST = 4


class Awaited(NamedTuple):
    """An evaluation under way: its number, and the version and epoch that are evaluated."""

    number: int
    version: int
    epoch: float


class EvaluationQueue:
    """The evaluations under way.

    Parameters
    ----------
    hub : Hub
    model_bytes : int
    """

    def __init__(self, hub: ServerSocket, model_bytes: int) -> None:
        self._hub = hub
        self._room = max(_WAITING_AT_LEAST, _WAITING_BYTES // max(1, model_bytes))
        self._awaited: dict[int, Awaited] = {}
        self._keys = count()

    def __len__(self) -> int:
        return len(self._awaited)

    @property
    def too_many(self) -> bool:
        """Whether training should wait for the evaluator."""
        return len(self._awaited) > self._room

    def expect(self, number: int, view: ClusterView) -> int:
        """Expect an evaluation of what the view stands at, and return its key."""
        key = next(self._keys)
        self._awaited[key] = Awaited(number, view.version, view.epoch)
        return key

    def numbers_at(self, version: int) -> list[int]:
        """Return the numbers of the evaluations of a version that are awaited."""
        return [each.number for each in self._awaited.values() if each.version == version]

    def send(self, key: int, state: State) -> None:
        """Send the model that was expected."""
        shapes, flat = pack(state)
        self._hub.tell(EVALUATOR, {"do": "evaluate", "id": key, "shapes": shapes}, flat)

    def take(self, key: int) -> Awaited:
        """Return which evaluation has come."""
        return self._awaited.pop(key)
