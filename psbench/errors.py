"""Every error that psbench raises on purpose.

::

    PsbenchError
      SpecError                a specification is invalid
        UnknownName            no such strategy, data set, parameter, ...
        ParameterError         a value out of range, or two that do not go together
      ProtocolError            a strategy broke its contract
        UnansweredWorker       a worker spoke and was neither released nor held
        Deadlock               no worker can ever go on
        ReplayMismatch         a replayed run decides differently
      Diverged                 the loss or a gradient is NaN or infinite
      CodecError               a vector cannot be encoded, or a message cannot be decoded
      BackendError             a process or connection under a run failed
        WorkerLost             too many workers are lost
        ServerLost             a parameter server is lost
        Cancelled              stopped from outside before anything was computed
      NotSaved               a run has ended and its folder cannot be written; its `run` can still be saved
      DataError                a data file is missing, truncated or not what it says

    DoubtfulComposition        a warning: a valid composition that is probably not intended
    DamagedFile                a warning: a saved result that cannot be read, and is made again
    Interrupted                a KeyboardInterrupt: Ctrl-C has stopped a run, and what it has is kept

A message says what, where, and the next thing to try.

>>> try:
...     raise UnknownName("strategy", "spp", ["ssp", "bsp"])
... except PsbenchError as error:
...     print(error)
unknown strategy 'spp'; did you mean 'ssp'? (known: bsp, ssp)
>>> str(UnknownName("strategy", "aps", ["asp", "psp"]))
"unknown strategy 'aps'; did you mean 'asp'? (known: asp, psp)"
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

#: characters of a value that a message repeats
_LONGEST = 60


def in_short(value: Any) -> str:
    r"""Return a value for messages: in full if it is short.

    >>> in_short("asp"), in_short({"workers": 4})
    ("'asp'", "{'workers': 4}")
    >>> in_short(type("Two", (), {"__repr__": lambda self: "one\n  two"})())
    'one two'
    >>> in_short([0.25] * 40), in_short(dict.fromkeys("abcdefgh", 0.25))
    ('a list of 40', 'a dict of 8: a, b, c, d, ...')
    """
    # a message has one line, and torch's objects print several
    text = " ".join(line.strip() for line in repr(value).splitlines())
    if len(text) <= _LONGEST:
        return text
    if not isinstance(value, Collection) or isinstance(value, (str, bytes)):
        return f"{text[: _LONGEST - 3]}..."
    names = f": {', '.join([*map(str, list(value)[:4]), '...'])}" if isinstance(value, dict) else ""
    return f"a {type(value).__name__} of {len(value)}{names}"


class PsbenchError(Exception):
    """Base class of everything psbench raises on purpose."""


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Prefix errors of psbench in this block with the name of a run or file.

    >>> with naming("a.yaml"):
    ...     raise SpecError("seed: must be a whole number")
    Traceback (most recent call last):
    psbench.errors.SpecError: a.yaml: seed: must be a whole number
    """
    try:
        yield
    except PsbenchError as error:
        if not str(error).startswith(what):
            error.args = (f"{what}: {error}",)
        raise


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return the nearest name, of equally near ones one with the same first letter; empty without any."""
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.5)

    def nearness(each: str) -> tuple[float, bool]:
        return difflib.SequenceMatcher(None, each, name).ratio(), each[:1] == name[:1]

    return max(near, key=nearness, default="")


class SpecError(PsbenchError):
    """A specification is invalid."""


class UnknownName(SpecError):
    """No such name; the message suggests the nearest known one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        near = _nearest(name.lower(), self.known)
        hint = f"; did you mean {near!r}?" if near else ""
        super().__init__(f"unknown {kind} {name!r}{hint} (known: {', '.join(self.known)})")

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, list[str]]]:
        return UnknownName, (self.kind, self.name, self.known)


class ParameterError(SpecError):
    """A value out of range, or two values that do not go together."""


class DoubtfulComposition(UserWarning):
    """A valid composition of parts that is probably not intended."""


class DamagedFile(UserWarning):
    """A saved result that cannot be read, and is computed again."""


class ExtensionWarning(UserWarning):
    """A part of another package, such as a command, that cannot be loaded."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has stopped a run; the attribute `run`, a `Run`, holds the completed part."""

    def __init__(self, run: Any, where: str = "") -> None:
        self.run = run
        go_on = f"; it is saved; to continue: psbench.resume({where!r})" if where else ""
        super().__init__(
            f"Ctrl-C stopped a run of {run.experiment.title}, which is the `.run` of this exception{go_on}"
        )


class NotSaved(PsbenchError):
    """A run has ended and its folder cannot be written, as on a full disk; `run` can still be saved."""

    def __init__(self, run: Any, why: str) -> None:
        self.run, self.why = run, why
        super().__init__(f"{why}; the run has ended and is the `.run` of this error: save it elsewhere")


class ProtocolError(PsbenchError):
    """A strategy broke the contract of its parts."""


class UnansweredWorker(ProtocolError):
    """A worker spoke and was neither released nor held."""


class Deadlock(ProtocolError):
    """No worker can ever continue; the message lists the waiting workers and the reasons."""


class ReplayMismatch(ProtocolError):
    """A replayed run decides differently from the recorded one."""


class ForkDiffers(PsbenchError):
    """The beginning of a fork differs from the run it was forked from."""


class Diverged(PsbenchError):
    """The loss or a gradient is NaN or infinite; the message names the push."""


class CodecError(PsbenchError):
    """A vector cannot be encoded, or a message cannot be decoded."""


class BackendError(PsbenchError):
    """A process or connection under a run failed."""


class WorkerLost(BackendError):
    """Too many workers are lost for the run to continue."""


class ServerLost(BackendError):
    """A parameter server is lost; the message names the last checkpoint.

    `role` says which, where that is known.
    """

    def __init__(self, reason: str, role: str = "") -> None:
        super().__init__(reason)
        self.role = role


class Cancelled(BackendError):
    """The run was stopped from outside before anything was computed."""


class DataError(PsbenchError):
    """A data file is missing, truncated, or in another format than expected."""
