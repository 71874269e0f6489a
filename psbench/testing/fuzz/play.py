"""Plays a whole schedule: its choices, and then what must happen once the faults have ended."""

from __future__ import annotations

from psbench.core import AnyStrategy
from psbench.testing.fuzz.liveness import heal
from psbench.testing.fuzz.player import Player
from psbench.testing.fuzz.schedule import Schedule


def play(schedule: Schedule, strategy: AnyStrategy | None = None) -> Player:
    """Play a schedule, then let it heal and ask for progress; see `liveness.heal`.

    Raises
    ------
    PsbenchError
        If it breaks the contract, or makes no progress.
    """
    player = Player(schedule, strategy)
    for choice in schedule.choices:
        player.make(choice)
    heal(player)
    return player
