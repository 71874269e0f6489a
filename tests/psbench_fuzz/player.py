"""Plays the choices of a schedule: the next event of a worker, a network, a clock or the user."""

from __future__ import annotations

from collections.abc import Callable

from psbench.core import Status, Strategy
from psbench.core import events as ev
from psbench_fuzz.fuzzed_cluster import FuzzedCluster
from psbench_fuzz.numbers import noise, plane, quarters
from psbench_fuzz.schedule import Choice
from psbench_fuzz.workers import FuzzedWorker

#: share of the choices that are made in the instant of the next timer, where ties are asked for
_WITH_TIMER = 0.1


def copied(event: ev.Event) -> ev.Event:
    """Return a copy of an event; `copy.copy` takes five times as long."""
    kind = type(event)
    other = object.__new__(kind)
    for name in kind.__slots__:
        setattr(other, name, getattr(event, name))
    return other


class Player(FuzzedCluster):
    """Makes the choices of a schedule, one at a time.

    The schedule's own choices are made by its holder (`play`), or drawn (`explore`).
    """

    _choices = _evaluations = 0
    _reading: Strategy | None = None
    _reads: tuple[str, ...] = ()

    def can(self, choice: Choice) -> bool:
        """Whether a choice is possible now."""
        kind, number = choice
        if kind in "sadjrv":
            return number < len(self.workers) and self._worker_can(kind, self.workers[number])
        if kind == "t":
            return bool(self.timers)
        if kind == "m":
            return bool(self.measures)
        return kind not in "cx" or not self.engine.measuring

    def _worker_can(self, kind: str, worker: FuzzedWorker) -> bool:
        if kind == "s":
            return worker.computing
        if kind == "a":
            return bool(worker.outbox)
        if kind == "d":
            return worker.alive and sum(other.alive for other in self.workers) > 1
        if kind == "j":
            return not worker.alive and worker.number not in self.unseen_deaths
        if kind == "r":
            return worker.alive and worker.last is not None
        return bool(worker.void)

    def make(self, choice: Choice) -> None:
        """Make a choice; one that makes no sense now is passed over.

        Raises
        ------
        ProtocolError
            If the engine or a part breaks the contract; anything else that they raise is their fault too.
        """
        if self.can(choice):
            self.do(choice)

    def do(self, choice: Choice) -> None:
        """Make a choice that can be made; see `make`."""
        if choice.kind != "c":  # saving takes no time: without it the log is the same
            self._choices += 1
            step = noise(self.seed, 101, self._choices)
            if self.schedule.ties:
                step = quarters(step)
            self.now += 0.0 if step < 0.3 else step  # many things happen at one instant
            if self.schedule.ties and self.timers and noise(self.seed, 110, self._choices) < _WITH_TIMER:
                self.now = max(self.now, min(at for at, *_ in self.timers))
        _MAKE[choice.kind](self, choice.number)

    def _end_step(self, number: int) -> None:
        composition = self.engine.composition
        if composition is not self._reading:
            self._reading, self._reads = composition, composition.reads
        self.workers[number].end_step(self._reads, self.seed)

    def _arrive(self, number: int) -> None:
        worker = self.workers[number]
        worker.last = copied(worker.outbox[0])
        self.handle(worker.outbox.popleft())

    def _die(self, number: int) -> None:
        worker = self.workers[number]
        worker.alive = False
        worker.forget()
        if self.vectors is not None:
            self.vectors.wire.leave(number)
        self.open_votes.pop(number, None)
        self.unseen_deaths.add(number)
        self.handle(ev.Leave(number, "lost"))

    def _join(self, number: int) -> None:
        self.workers[number].alive = True
        self.handle(ev.Join(number))

    def _repeat(self, number: int) -> None:
        last = self.workers[number].last
        assert last is not None
        self.handle(copied(last))

    def _void(self, number: int) -> None:
        if number in self.view.workers:
            self.handle(self.workers[number].void.pop(0))

    def _timer(self, _number: int) -> None:
        self.timers.sort(key=lambda timer: timer[:2])
        at, _, timer = self.timers.pop(0)
        self.now = max(self.now, at)
        self.handle(timer)

    def _evaluate(self, _number: int) -> None:
        self._evaluations += 1
        fresh = noise(self.seed, 102, self._evaluations)
        fresh = quarters(fresh) if self.schedule.ties else fresh
        loss = 1.0 if noise(self.seed, 103) < 0.5 else fresh  # one that settles, or one that never does
        values = {"epoch": self.view.epoch, "val_loss": loss, "train_loss": loss, "val_accuracy": fresh}
        self.handle(ev.Evaluated(self._evaluations, self.view.version, values))

    def _switch(self, number: int) -> None:
        self.handle(ev.SwitchRequested(number if number < max(2, len(self.strategy.compositions)) else None))

    def _measured(self, _number: int) -> None:
        measure = self.measures.pop(0)
        facts = {
            name: noise(self.seed, 104, self.events, i) if known is None else known
            for i, (name, push) in enumerate(measure.needs.items())
            for known in [self._of_vectors(name, push)]
        }
        self.handle(ev.Measured(facts))

    def _of_vectors(self, name: str, push: int | None) -> float | None:
        """Return a number computed from vectors, or from points in a plane; None for other names."""
        kind, _, pair = name.partition(":")
        if kind == "dot":
            one, other = map(int, pair.split(":"))
            if self.vectors is not None:
                return self.vectors.product(one, other)
            pairs = zip(plane(self.seed, one), plane(self.seed, other), strict=True)
            return sum(a * b for a, b in pairs)
        if kind == "distance_sq" and push is not None and self.vectors is not None:
            return self.vectors.distance_sq(self.view.pending[push].base_version)
        return None

    def _restart(self, _number: int) -> None:
        """Restart from a checkpoint: steps and messages in progress are void."""
        self.save_and_load()
        waiting = set()
        for worker in self.workers:
            seen = self.view.workers.get(worker.number)
            if seen is not None and (seen.status in (Status.COMPUTING, Status.VOTED) or seen.overlapping):
                worker.forget()
            else:
                worker.drop_work()
                waiting.add(worker.number)
        if self.vectors is not None:
            self.vectors.wire.restart(waiting)
        self.open_votes.clear()
        epochs = self.view.epochs
        actions = self.engine.resume(epochs=epochs)
        self._check(self.model.resume(epochs), actions)
        self.perform(actions)


_MAKE: dict[str, Callable[[Player, int], None]] = {
    "s": Player._end_step,
    "a": Player._arrive,
    "d": Player._die,
    "j": Player._join,
    "r": Player._repeat,
    "v": Player._void,
    "t": Player._timer,
    "e": Player._evaluate,
    "w": Player._switch,
    "m": Player._measured,
    "c": lambda player, _: player.save_and_load(),
    "x": Player._restart,
}
