"""Play a schedule; afterwards all workers return, all messages arrive, and it must make progress.

Progress is asked for in rounds. In a round every worker that computes ends its step, and every message
arrives; the bound says after how many rounds each worker must have taken a step, and, where workers always
push, the model must have a new version.
"""

from __future__ import annotations

import math

from psbench.core import AnyStrategy, Status, Strategy
from psbench.testing.invariants import BrokenContract
from psbench_fuzz.player import Player
from psbench_fuzz.schedule import Choice, Schedule


def play(schedule: Schedule, strategy: AnyStrategy | None = None) -> Player:
    """Play a schedule, then let it heal and ask for progress; see `heal`.

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


def rounds_bound(strategy: Strategy, num_workers: int) -> int:
    """Return the rounds within which a healthy cluster must make progress under a composition.

    A version takes at most as many pushes as the largest of the consistency's whole numbers (k, n, a
    bound), and a push as many steps as the largest of the communication's and stragglers' (steps, pieces,
    patience); a lead may have to be made up for. Twice that, and a few rounds for a switch or a migration.
    What is left of an epoch comes on top (`heal`): some strategies wait for its end.
    """
    waits = _largest(strategy.consistency)
    pushes = math.ceil(waits / num_workers) + waits
    steps = max(_largest(strategy.communication), _largest(strategy.stragglers))
    return 10 + 2 * (1 + pushes) * (1 + steps)


def _largest(part: object) -> int:
    values = [
        value for value in vars(part).values() if isinstance(value, int) and not isinstance(value, bool)
    ]
    return max(values, default=1)


def heal(player: Player) -> None:
    """Return all workers, deliver everything, and check that the run continues.

    Raises
    ------
    BrokenContract
        If a worker takes no step, or no version is made, within the bound.
    """
    _settle(player)
    for worker in player.workers:
        player.make(Choice("j", worker.number))
        _settle(player)
    bound = sum(rounds_bound(each, len(player.workers)) for each in player.strategy.compositions)
    bound += _epoch(player)
    _await_progress(player, bound)
    if len(player.strategy.compositions) > 1:
        _await_switch(player, bound)
        _await_progress(player, bound)


def _epoch(player: Player) -> int:
    """Return the maximum steps per epoch: only the worker with the smallest batch may remain."""
    view = player.view
    smallest = min((worker.batch_size for worker in view.workers.values()), default=1)
    pieces: int = max(getattr(each.communication, "pieces", 1) for each in player.strategy.compositions)
    return int(pieces * math.ceil(view.dataset_size / max(1, smallest)))


def _await_switch(player: Player, bound: int) -> None:
    """Request a switch, which must be completed within the bound."""
    before = player.handovers
    player.make(Choice("w", len(player.strategy.compositions)))  # to the next one, whichever it is
    for _ in range(bound):
        if player.handovers > before:
            return
        _round(player)
    raise BrokenContract(f"a switch that was asked for has not come within {bound} rounds")


def _await_progress(player: Player, bound: int) -> None:
    steps = [worker.steps for worker in player.workers]
    version, handovers = player.view.version, player.handovers
    for _ in range(bound):
        _round(player)
        if _has_progressed(player, steps, version) and handovers == player.handovers:
            return
        handovers = player.handovers
    stuck = [w.number for w in player.workers if w.steps == steps[w.number] and _is_here(player, w.number)]
    raise BrokenContract(
        f"no progress within {bound} rounds after the faults: workers {stuck} took no step, version "
        f"{player.view.version} was {version}; {player.view.waits()}"
    )


def _has_progressed(player: Player, steps: list[int], version: int) -> bool:
    moved = all(w.steps > steps[w.number] for w in player.workers if _is_here(player, w.number))
    always = player.engine.composition.communication.pushes == "always"
    return moved and (player.view.version > version or not always)


def _is_here(player: Player, number: int) -> bool:
    seen = player.view.workers.get(number)
    return seen is not None and seen.status is not Status.GONE


def _round(player: Player) -> None:
    """Finish every step and deliver every message; then fire due timers, or the next one."""
    computing = [worker for worker in player.workers if worker.computing]
    for worker in computing:
        player.make(Choice("s", worker.number))
        _settle(player)
    due = [timer for timer in player.timers if timer[0] <= player.now]
    for _ in due if computing else player.timers[:1]:
        player.make(Choice("t"))
        _settle(player)


def _settle(player: Player) -> None:
    """Deliver everything in transit."""
    while player.measures or any(worker.outbox for worker in player.workers):
        if player.measures:
            player.make(Choice("m"))
        for worker in player.workers:
            if worker.outbox:
                player.make(Choice("a", worker.number))
