"""Random generation of schedules: the kinds of events and their frequencies are drawn for each.

Source
------
Groce et al. (2012), "Swarm Testing", ISSTA: a test that leaves some kinds of event out reaches states that
one with all kinds hides. Burckhardt et al. (2010), "A Randomized Scheduler with Probabilistic Guarantees of
Finding Bugs", ASPLOS (PCT): workers run by random priorities, which change at a few random moments.
"""

from __future__ import annotations

from random import Random

import numpy as np

from psbench.core import AnyStrategy, Status
from psbench_fuzz.liveness import heal
from psbench_fuzz.player import Player
from psbench_fuzz.schedule import FAULTS, Choice, Schedule

#: kinds that come from outside the workers, with their weight where they are not left out
_OUTSIDE = {
    "d": 0.05,
    "j": 0.1,
    "r": 0.05,
    "v": 0.1,
    "w": 0.02,
    "c": 0.03,
    "x": 0.02,
    "t": 0.2,
    "e": 0.1,
    "m": 0.5,
}
#: kinds that nothing may leave out for ever, or the cluster only waits
_ALWAYS = "tm"
#: kinds of which one follows at once, with this chance, when a switch has begun or has been made: it is then
#: that what is handed over may be lost
_AT_A_SWITCH, _SWITCH_CHANCE = "dcxj", 0.3
#: chance that a worker dies between its vote and the answer, at every choice meanwhile
_VOTER_DIES = 0.03
#: chance that a worker whose push waits dies, at every choice meanwhile; it comes back with the next choice
_PUSHER_DIES = 0.02
#: chance that the slowest worker dies while another one is held, at every choice meanwhile
_SLOWEST_DIES = 0.03
#: chance that the run is saved and loaded, or restarts, at every choice while something is half done
_SAVED_MIDWAY, _MIDWAY = 0.015, "cx"
#: moments at which the workers' priorities change
_CHANGES = 3


class Explorer:
    """Draws one choice after another for a player.

    Parameters
    ----------
    player : Player
    rng : numpy Generator
    events : int
        About how many events the schedule is to have.
    kinds : str
        Kinds of choice that may happen at all.
    """

    def __init__(self, player: Player, rng: np.random.Generator, events: int, kinds: str = FAULTS) -> None:
        self._player = player
        # of Python, which takes a tenth of the time for one number; the stream's own gives its seed
        self._rng = Random(int(rng.integers(2**63)))
        left_out = {kind for kind in _OUTSIDE if kind not in _ALWAYS and rng.random() < 0.5}
        left_out |= {kind for kind in FAULTS if kind not in kinds}
        scale = rng.exponential(size=len(_OUTSIDE))
        self._outside = [
            (kind, float(weight * scale[i]))
            for i, (kind, weight) in enumerate(_OUTSIDE.items())
            if kind not in left_out
        ]
        self._eager = float(rng.uniform(0.2, 1.0))  # how soon messages arrive
        size = len(player.workers)
        self._order = rng.permutation(size).tolist() if rng.random() < 1 / 3 else None
        self._switching = (0, False)  # hand-overs so far, and whether another is under way
        self._soon = [kind for kind in _AT_A_SWITCH if kind not in left_out]
        self._returns: Choice | None = None  # of a worker that has just died
        self._changes = set(rng.integers(1, max(2, events), _CHANGES).tolist())

    def next(self) -> Choice | None:
        """Return a choice that is possible now; None if there is none."""
        player, rng = self._player, self._rng
        if self._order is not None and player.events in self._changes:
            self._order.append(self._order.pop(0))
        switching = player.switching
        if switching != self._switching:
            self._switching = switching
            if self._soon and rng.random() < _SWITCH_CHANCE:
                soon = Choice(rng.choice(self._soon), int(rng.random() * len(player.workers)))
                if player.can(soon):
                    return soon
        if player.open_votes and "d" in self._soon and rng.random() < _VOTER_DIES:
            soon = Choice("d", rng.choice([*player.open_votes]))
            if player.can(soon):
                return soon
        for soon in (self._pusher_dies(), self._slowest_dies(), self._saved_midway()):
            if soon is not None and player.can(soon):
                return soon
        if rng.random() < 0.3:
            choice = self._from_outside()
            if choice is not None:
                return choice
        return self._of_worker() or self._from_outside() or self._anything()

    def _pusher_dies(self) -> Choice | None:
        """Return the death of a worker with a pending push, or the return of the one that has just died."""
        soon, self._returns = self._returns, None
        pending = self._player.view.pending
        if soon is None and pending and "d" in self._soon and self._rng.random() < _PUSHER_DIES:
            worker = self._rng.choice([push.worker for push in pending.values()])
            soon = Choice("d", worker)
            self._returns = Choice("j", worker) if "j" in self._soon else None
        return soon

    def _slowest_dies(self) -> Choice | None:
        """Return that the slowest worker dies, if another is held, which perhaps no longer leads by much."""
        here = [worker for worker in self._player.view.workers.values() if worker.status is not Status.GONE]
        held = any(worker.hold_reason for worker in here)
        if not held or "d" not in self._soon or self._rng.random() >= _SLOWEST_DIES:
            return None
        return Choice("d", min(here, key=lambda worker: (worker.clock, worker.id)).id)

    def _saved_midway(self) -> Choice | None:
        """Return a restart from the state while a timer, a vote, a push or an order is open."""
        player = self._player
        midway = player.timers or player.open_votes or player.view.pending
        if not midway or self._rng.random() >= _SAVED_MIDWAY:
            return None
        kinds = [kind for kind in _MIDWAY if kind in self._soon]
        return Choice(self._rng.choice(kinds)) if kinds else None

    def _of_worker(self) -> Choice | None:
        workers = self._player.workers
        able = [w for w in workers if w.outbox or w.computing]
        if not able:
            return None
        if self._order is not None:
            worker = min(able, key=lambda w: self._order.index(w.number))
        else:
            worker = able[int(self._rng.random() * len(able))]
        arrives = worker.outbox and (not worker.computing or self._rng.random() < self._eager)
        return Choice("a" if arrives else "s", worker.number)

    def _from_outside(self) -> Choice | None:
        draw, which = self._rng.random, self._rng.random()
        for kind, weight in self._outside:
            if draw() < weight:
                others = max(3, 1 + len(self._player.strategy.compositions)) if kind == "w" else 0
                numbers = len(self._player.workers) if kind in "djrv" else others
                number = int(which * numbers)
                if kind == "d" and draw() < 0.5:
                    number = self._dropped(number)
                choice = Choice(kind, number)
                if self._player.can(choice):
                    return choice
        return None

    def _dropped(self, number: int) -> int:
        """Return a dropped worker, or the given one if there is none."""
        known = [worker.id for worker in self._player.view.workers.values() if worker.dropped]
        return self._rng.choice(known) if known else number

    def _anything(self) -> Choice | None:
        """Return any possible event; without one the schedule is stuck."""
        number = int(self._rng.random() * len(self._player.workers))
        for choice in (Choice("m"), Choice("t"), Choice("j", number), Choice("e")):
            if self._player.can(choice):
                return choice
        return None


def explore(
    schedule: Schedule,
    strategy: AnyStrategy,
    rng: np.random.Generator,
    events: int,
    kinds: str = FAULTS,
    heals: bool = True,
) -> tuple[Schedule, Exception | None, Player | None]:
    """Draw the choices of a schedule while playing it; returns it, and the failure if there was one.

    `heals`: whether progress is asked for after the faults, which takes as long as half the faults.
    """
    made: list[Choice] = []
    player = None
    try:
        player = Player(schedule, strategy)
        explorer = Explorer(player, rng, events, kinds)
        while player.events < events and len(made) < 4 * events:
            choice = explorer.next()
            if choice is None:
                break
            made.append(choice)
            player.do(choice)
        if heals:
            heal(player)
    except Exception as error:  # whatever a part or the engine raises is what is looked for
        return schedule.but(choices=tuple(made)), error, player
    return schedule.but(choices=tuple(made)), None, player
