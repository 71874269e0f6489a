"""A schedule: a strategy, a cluster's size, and the choices of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from psbench.core import AnyStrategy
from psbench.errors import ParameterError
from psbench.strategies import make_strategy

#: kinds of choice, by the letter that a schedule is written with
KINDS = {
    "s": "a worker's step ends",
    "a": "a worker's oldest message arrives",
    "d": "a worker dies",
    "j": "a worker joins, or comes back",
    "r": "a worker's last message arrives once more",
    "v": "a message of void work arrives",
    "t": "the next timer is due",
    "e": "an evaluation arrives",
    "w": "the user asks for a switch",
    "m": "a measurement arrives",
    "c": "the engine is saved and loaded",
    "x": "the run restarts from a checkpoint of this moment",
}
#: kinds that are faults or requests from outside: they end before progress is asked for
FAULTS = "djrvwcx"


class Choice(NamedTuple):
    """One choice: its kind, and the worker (or, of a switch, the composition) that it is about."""

    kind: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.number}"


@dataclass(frozen=True)
class Schedule:
    """Everything that a run of the engine depends on.

    Parameters
    ----------
    strategy : mapping
        The specification of a strategy.
    workers : int, >= 1
    starters : int
        How many workers are there at the beginning; the others may join.
    seed : int
        Of the numbers that no choice gives: statistics, losses, seconds between two events.
    batches : tuple of int, samples
        Of the workers' batches, in turn; empty leaves them to the engine, which shares out the global batch.
    momentum : float or None
        Of the optimizer that steps on the schedule's vectors; None carries no vectors.
    wrong : bool
        Whether some workers push NaN to an aggregation that withstands it.
    ties : bool
        Whether seconds and losses are quarters, and something else may happen in the instant of a timer.
    choices : tuple of Choice
        In order. One that makes no sense when its turn comes is passed over, so any part of a schedule is a
        schedule.

    Examples
    --------
    >>> Schedule({"name": "asp"}, workers=2, choices=Schedule.parse("s0 a0")).text
    's0 a0'
    """

    strategy: Mapping[str, Any]
    workers: int
    starters: int = 0
    seed: int = 0
    choices: tuple[Choice, ...] = field(default=())
    batches: tuple[int, ...] = (4, 5, 3)
    momentum: float | None = None
    wrong: bool = False
    ties: bool = False

    @staticmethod
    def parse(text: str) -> tuple[Choice, ...]:
        """Read choices as `text` writes them.

        Raises
        ------
        ParameterError
            If a word is no choice.
        """
        found = []
        for word in text.split():
            kind, number = word[:1], word[1:]
            if kind not in KINDS or not number.isdecimal():
                raise ParameterError(
                    f"schedule: {word!r} is not one of {', '.join(f'{k}<number>' for k in KINDS)}"
                )
            found.append(Choice(kind, int(number)))
        return tuple(found)

    @property
    def text(self) -> str:
        """The choices, as `parse` reads them."""
        return " ".join(map(str, self.choices))

    @property
    def global_batch(self) -> int:
        """The sum of all workers' batches, which may be uneven."""
        if self.batches:
            return sum(self.batches[number % len(self.batches)] for number in range(self.workers))
        return 4 * self.workers + 1 if self.seed % 2 else self.workers + (self.workers > 1)

    def batch_of(self, worker: int) -> int:
        if self.batches:
            return self.batches[worker % len(self.batches)]
        return max(1, self.global_batch // self.workers)

    def made(self) -> AnyStrategy:
        return make_strategy(dict(self.strategy))

    def but(self, **changes: Any) -> Schedule:
        """Return a schedule with other fields."""
        return replace(self, **changes)
