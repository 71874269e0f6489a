"""Models on their way to the evaluator, which works while training goes on."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import EvaluateModel
from psbench.backends.dask.protocol.roles import EVALUATOR
from psbench.core.view import ClusterView

#: bytes of models that may wait for the evaluator; beyond, training waits for it
_WAITING_BYTES = 1 << 28
_WAITING_AT_LEAST = 4


class PendingEvaluation(NamedTuple):
    """An evaluation under way: its number, and the version and epoch that are evaluated."""

    number: int
    version: int
    epoch: float


class EvaluationQueue:
    """The evaluations under way.

    Parameters
    ----------
    out : Outbox
    model_bytes : int

    Attributes
    ----------
    is_off : bool
        Whether nothing is evaluated: there is no place for an evaluator.
    """

    def __init__(self, out: Outbox, model_bytes: int) -> None:
        self._out = out
        self._room = max(_WAITING_AT_LEAST, _WAITING_BYTES // max(1, model_bytes))
        self._pending: dict[int, PendingEvaluation] = {}
        self._sent: dict[int, StateDict] = {}  # what another evaluator is sent again
        self.is_off = False
        self._keys = count()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def is_full(self) -> bool:
        """Whether training should wait for the evaluator."""
        return len(self._pending) > self._room

    def expect(self, number: int, view: ClusterView) -> int:
        """Expect an evaluation of the view's version, and return its key."""
        key = next(self._keys)
        if not self.is_off:
            self._pending[key] = PendingEvaluation(number, view.version, view.epoch)
        return key

    @property
    def numbers(self) -> list[int]:
        """The numbers of the evaluations under way."""
        return [each.number for each in self._pending.values()]

    def send(self, key: int, state: StateDict) -> None:
        """Send the model that was expected."""
        if key in self._pending:
            self._sent[key] = state
            self._out.send(EVALUATOR, EvaluateModel(key, state))

    def take(self, key: int) -> PendingEvaluation | None:
        """Return which evaluation has come; None if it is not awaited."""
        self._sent.pop(key, None)
        return self._pending.pop(key, None)

    def begin_again(self) -> None:
        """Send another evaluator what the one before has not answered."""
        self.is_off = False
        for key, state in self._sent.items():
            self._out.send(EVALUATOR, EvaluateModel(key, state))

    def do_without(self) -> None:
        """Evaluate nothing until there is an evaluator again."""
        self.is_off = True
        self._pending.clear()
        self._sent.clear()
