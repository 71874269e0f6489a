"""Every error that psbench raises on purpose.

::

    PsbenchError
      SpecError                what was asked for cannot be
        UnknownName            no such strategy, data set, parameter, ...
        ParameterError         a value out of range, or two that do not go together
      ProtocolError            a strategy broke its contract
        UnansweredWorker       a worker spoke and was neither released nor held
        Deadlock               no worker can ever go on
        ReplayMismatch         a recorded run decided otherwise
      Diverged                 the loss stopped being a number
      CodecError               a vector cannot be written on the wire, or what came cannot be read
      BackendError             the machinery under a run failed
        WorkerLost             too many workers are gone
        ServerLost             a parameter server is gone
        Cancelled              stopped from outside before anything was computed
      DataError                a data file is missing, truncated or not what it says

    DoubtfulComposition        a warning: parts that work together, and probably not as meant

A message says what, where, and the next thing to try.

>>> try:
...     raise UnknownName("strategy", "spp", ["ssp", "bsp"])
... except PsbenchError as error:
...     print(error)
unknown strategy 'spp'; did you mean 'ssp'? (known: bsp, ssp)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PsbenchError(Exception):
    """Base class of everything psbench raises on purpose."""


class SpecError(PsbenchError):
    """What was asked for cannot be."""


class UnknownName(SpecError):
    """No such name; the message suggests the nearest known one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        near = difflib.get_close_matches(name.lower(), self.known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        super().__init__(f"unknown {kind} {name!r}{hint} (known: {', '.join(self.known)})")

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, list[str]]]:
        return UnknownName, (self.kind, self.name, self.known)


class ParameterError(SpecError):
    """A value out of range, or two values that do not go together."""


class DoubtfulComposition(UserWarning):
    """Parts that work together, and probably not as meant."""


class ProtocolError(PsbenchError):
    """A strategy broke the contract of its parts."""


class UnansweredWorker(ProtocolError):
    """A worker spoke and was neither released nor held."""


class Deadlock(ProtocolError):
    """No worker can ever go on; the message lists who waits and why."""


class ReplayMismatch(ProtocolError):
    """A replayed run took another decision than the recorded one."""


class Diverged(PsbenchError):
    """The loss or a gradient stopped being a number; names the push that did it."""


class CodecError(PsbenchError):
    """A vector cannot be written on the wire, or what came cannot be read."""


class BackendError(PsbenchError):
    """The machinery under a run failed."""


class WorkerLost(BackendError):
    """So many workers are gone that the run cannot go on."""


class ServerLost(BackendError):
    """A parameter server is gone; the message names the last checkpoint."""


class Cancelled(BackendError):
    """The run was stopped from outside before anything was computed."""


class DataError(PsbenchError):
    """A data file is missing, truncated, or not what it says."""
