"""The witness of a run: compares a driver's operations with the answers of the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.driver import is_void
from psbench.core.engine import Engine
from psbench.core.view import ClusterView, Status
from psbench.testing.invariants import BrokenContract

#: what names the payload of one step, on its way through a backend: no other step's is equal
Mark = Hashable
#: events after which what is due is lost: while the slowest worker takes a step the others take six
_PATIENCE = 20
_ROUNDING_S = 1e-9


@dataclass
class _Due:
    """An expected consequence of an action, with the number of the answered event."""

    what: str
    event: int


@dataclass
class _Model:
    """A version to make from these payloads."""

    version: int
    marks: list[Mark]
    pushes: list[ev.Push]


class Witness:
    """Observes one run, and raises at the first violation of the contract.

    An engine that is watched says which events it is handed and what it answers. The other methods are
    called by what performs the answers, or by the watched arithmetic (`psbench.testing.watched`).

    Parameters
    ----------
    where : str
        Beginning of messages.
    leaves : (worker, seconds, seconds) or None
        A worker that fails, when, and when it is back.
    sees_model : bool
        Whether `computed`, `made` and `handed_over` are called.

    Attributes
    ----------
    events : int
        Those handed over so far.
    """

    def __init__(
        self, where: str, leaves: tuple[int, float, float] | None = None, sees_model: bool = True
    ) -> None:
        self.where, self.leaves, self.sees_model = where, leaves, sees_model
        self.events, self.now = 0, 0.0
        self._released: dict[int, act.Release] = {}  # by worker, unless void since
        self._due: dict[int, _Due] = {}  # a message of each worker that is released
        self._computed: dict[int, deque[tuple[int, Mark, int]]] = {}
        self._marks: dict[int, Mark] = {}  # by the number of a push
        self._fates: dict[Mark, str] = {}  # of payloads that are in no version to come
        self._pushed = set[tuple[int, int]]()  # workers and tickets
        self._to_make = deque[_Model]()
        self._handovers: list[act.Handover] = []
        self._timers: list[tuple[act.SetTimer, _Due]] = []
        self._measures: list[tuple[act.Measure, _Due]] = []
        self._made, self._is_away = 0, False

    def fail(self, what: str) -> NoReturn:
        """Raise an error about the difference."""
        raise BrokenContract(f"{self.where}, at {self.now:g} s, event {self.events}: {what}")

    # ---------------------------------------------------------------- what the engine is handed and answers

    def event(self, event: ev.Event, now: float, view: ClusterView) -> None:
        """Check an event that the engine is about to receive."""
        if now < self.now - _ROUNDING_S:
            self.fail(f"{_name(event)} is delivered for {now:g} s, which is past")
        self.events, self.now = self.events + 1, now
        self._check_performed(f"before {_name(event)} is handed over")
        self.check_patience()
        if check := _CHECKS.get(type(event)):
            check(self, event, view)

    def answer(self, actions: Sequence[Action], view: ClusterView) -> None:
        """Record the operations that an answer requires."""
        for action in actions:
            if note := _NOTES.get(type(action)):
                note(self, action, view)

    def end(self) -> None:
        """Check that nothing was overdue at the end of the run, and that a model was seen."""
        self.check_patience()
        if self.sees_model and not self._made:
            self.fail("no version was made: does the model come from `workload.server()`, or is it reported?")

    def check_patience(self, patience: int = _PATIENCE) -> None:
        """Check that nothing is overdue by more than `patience` events."""
        timers = [due for timer, due in self._timers if timer.at < self.now - _ROUNDING_S]
        due = [*self._due.values(), *timers, *(due for _, due in self._measures)]
        for each in sorted(due, key=lambda due: due.event):
            if (since := self.events - each.event) > patience:
                self.fail(f"{each.what}, after {since} more events")

    # ---------------------------------------------------------------- what is performed

    def computed(self, worker: int, version: int, mark: Mark, steps: int = 1) -> None:
        """Record the steps that a worker has computed from the model of a version.

        A push carries the mark of its last step.
        """
        self._computed.setdefault(worker, deque()).append((version, mark, steps))

    def made(self, version: int, marks: Iterable[Mark]) -> None:
        """Check a version made of these payloads, in this order."""
        found = [*marks]
        if not self._to_make:
            self.fail(f"version {version} is made of {self._words(found)}; no Apply is pending")
        expected = self._to_make.popleft()
        if found != expected.marks or version != expected.version:
            numbers = [push.id for push in expected.pushes]
            self.fail(
                f"version {version} is made of {self._words(found)}; the Apply of version {expected.version} "
                f"names pushes {numbers}"
            )
        self._made += 1
        for mark, push in zip(found, expected.pushes, strict=True):
            self._fates[mark] = f"push {push.id}, which is in version {version} already"

    def handed_over(self, to: int) -> None:
        """Check a hand-over to a composition."""
        if not self._handovers:
            self.fail(f"the model is handed over to composition {to}; no Handover is pending")
        expected = self._handovers.pop(0)
        if expected.to != to:
            self.fail(f"the model is handed over to composition {to}; the Handover says {expected.to}")

    def _words(self, marks: Sequence[Mark]) -> str:
        numbers = {mark: f"push {number}" for number, mark in self._marks.items()}
        named = [self._fates.get(m) or numbers.get(m, "a payload that no push delivered") for m in marks]
        return f"[{', '.join(named)}]"

    # ---------------------------------------------------------------- checks

    def _check_performed(self, when: str) -> None:
        if not self.sees_model:
            return
        if self._to_make:
            self.fail(f"version {self._to_make[0].version} is not made {when}")
        if self._handovers:
            self.fail(f"composition {self._handovers[0].to} is not in force {when}")

    def _push(self, push: ev.Push, view: ClusterView) -> None:
        versions, mark = self._take_computed(push)
        if push.id in self._marks:
            self.fail(f"push {push.id} is delivered twice")
        if self.sees_model and mark is None:
            self.fail(f"{_name(push)} is delivered, but its worker has computed nothing")
        self._marks[push.id] = mark
        release = self._message(push, view)
        if release is None:
            self._fates[mark] = f"push {push.id}, which is void"
            return
        if self.leaves is not None and self._has_left(push.worker):
            self.fail(f"{_name(push)} is handled, but its worker left at {self.leaves[1]:g} s")
        key = push.worker, push.ticket
        if key in self._pushed and not push.overlapping:
            self.fail(f"{_name(push)} is delivered twice")
        self._pushed.add(key)
        if push.base_version != release.load:
            self.fail(f"{_name(push)} says that it began from version {push.base_version}{_load(release)}")
        for version in versions:
            if self.sees_model and version != release.load:
                self.fail(f"{_name(push)} was computed from the model of version {version}{_load(release)}")
            if view.neighbourhood is not None and version > 0:
                self._made += 1  # no server shows what mixtures are

    def _take_computed(self, push: ev.Push) -> tuple[list[int], Mark]:
        """Return the versions that the steps of a push were computed from, and the last step's mark."""
        computed, versions, mark, steps = self._computed.get(push.worker), list[int](), None, 0
        while computed and steps < push.steps:
            version, mark, more = computed.popleft()
            versions.append(version)
            steps += more
        return versions, mark

    def _message(self, message: ev.Push | ev.Vote | ev.Report, view: ClusterView) -> act.Release | None:
        """Return the release that a message answers; None if the message is void."""
        seen = view.workers.get(message.worker)
        if seen is None or seen.ticket != message.ticket or seen.status is not Status.COMPUTING:
            return None
        release = self._released.get(message.worker)
        if release is None or release.ticket != message.ticket:
            self.fail(f"{_name(message)} refers to ticket {message.ticket}, which no release has")
        self._due.pop(message.worker, None)
        if release.then == "push" and not isinstance(message, ev.Push):
            self.fail(f"{_name(message)} is delivered, but its worker was released to push")
        return release

    def _has_left(self, worker: int) -> bool:
        """Return whether a worker is away now although the engine was not notified."""
        assert self.leaves is not None
        who, left_s, back_s = self.leaves
        return worker == who and not self._is_away and left_s + _ROUNDING_S < self.now < back_s

    def _change(self, change: ev.Leave | ev.Join, view: ClusterView) -> None:
        leaves = isinstance(change, ev.Leave)
        at_s = None if self.leaves is None else self.leaves[1 if leaves else 2]
        if self.leaves is None or at_s is None or change.worker != self.leaves[0]:
            self.fail(f"{_name(change)} is delivered, but the cluster has no such change")
        elif self.now < at_s - _ROUNDING_S or self._is_away is leaves:
            self.fail(f"{_name(change)} is delivered, but happens once, at {at_s:g} s")
        self._is_away = leaves
        self._void(change.worker)

    def _timer(self, timer: ev.Timer, view: ClusterView) -> None:
        for place, (each, _) in enumerate(self._timers):
            is_same = (each.key, each.composition_id) == (timer.key, timer.composition_id)
            if is_same and each.at <= self.now + _ROUNDING_S:
                del self._timers[place]
                return
        self.fail(f"{_name(timer)} happens, but no SetTimer is due")

    def _measured(self, measured: ev.Measured, view: ClusterView) -> None:
        if not self._measures:
            self.fail("numbers are delivered, but no Measure has requested any")
        names, found = self._measures.pop(0)[0].needs.keys(), measured.facts.keys()
        if names != found:
            self.fail(f"the Measure requests {sorted(names)}; delivered are {sorted(found)}")

    def _evaluated(self, evaluated: ev.Evaluated, view: ClusterView) -> None:
        if evaluated.version > view.version:
            self.fail(f"version {evaluated.version} is evaluated; the last one is {view.version}")

    # ---------------------------------------------------------------- notes

    def _note_release(self, release: act.Release, view: ClusterView) -> None:
        if is_void(release, view):
            return
        worker = release.worker
        self._released[worker] = release
        if release.then == "step":
            self._computed.pop(worker, None)  # steps that were voted on, and that workers keep
        given = f"released with ticket {release.ticket} at {self.now:g} s"
        what = f"worker {worker} was {given}, but has sent nothing"
        self._due[worker] = _Due(what, self.events)

    def _note_void(self, action: act.Cancel | act.Drop, view: ClusterView) -> None:
        self._void(action.worker)

    def _void(self, worker: int) -> None:
        for known in (self._released, self._due, self._computed):
            known.pop(worker, None)

    def _note_apply(self, apply: act.Apply, view: ClusterView) -> None:
        if view.neighbourhood is not None:
            return  # workers make their own models: what their next steps are computed from shows which
        marks = [self._marks[push.id] for push in apply.pushes]
        self._to_make.append(_Model(apply.version, marks, [*apply.pushes]))

    def _note_discard(self, discard: act.Discard, view: ClusterView) -> None:
        number = discard.push.id
        self._fates[self._marks[number]] = f"push {number}, which is discarded"

    def _note_timer(self, timer: act.SetTimer, view: ClusterView) -> None:
        what = f"timer {timer.key!r} was set for {timer.at:g} s, but has not happened"
        self._timers.append((timer, _Due(what, self.events)))

    def _note_measure(self, measure: act.Measure, view: ClusterView) -> None:
        what = f"numbers were requested at {self.now:g} s, but are not delivered"
        self._measures.append((measure, _Due(what, self.events)))

    def _note_handover(self, handover: act.Handover, view: ClusterView) -> None:
        self._handovers.append(handover)


_CHECKS: dict[type, Callable[[Witness, Any, ClusterView], Any]] = {
    ev.Push: Witness._push,
    ev.Vote: Witness._message,
    ev.Report: Witness._message,
    ev.Leave: Witness._change,
    ev.Join: Witness._change,
    ev.Timer: Witness._timer,
    ev.Measured: Witness._measured,
    ev.Evaluated: Witness._evaluated,
}
_NOTES: dict[type, Callable[[Witness, Any, ClusterView], Any]] = {
    act.Release: Witness._note_release,
    act.Cancel: Witness._note_void,
    act.Drop: Witness._note_void,
    act.Apply: Witness._note_apply,
    act.Discard: Witness._note_discard,
    act.SetTimer: Witness._note_timer,
    act.Measure: Witness._note_measure,
    act.Handover: Witness._note_handover,
}


_WORDS = {
    ev.Vote: "a vote",
    ev.Report: "a report",
    ev.Leave: "the departure",
    ev.Join: "the arrival",
    ev.Timer: "a timer",
    ev.Measured: "a measurement",
    ev.Evaluated: "an evaluation",
    ev.SwitchRequested: "a request to switch",
}


def _name(event: ev.Event) -> str:
    what = f"push {event.id}" if isinstance(event, ev.Push) else _WORDS[type(event)]
    worker = getattr(event, "worker", None)
    return what if worker is None else f"{what} of worker {worker}"


def _load(release: act.Release) -> str:
    return f"; its release with ticket {release.ticket} says version {release.load}"


class WatchedEngine(Engine):
    """An engine that reports its events and answers to a witness; see `Engine`."""

    def __init__(self, witness: Witness, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._witness = witness

    def begin(self, workers: Iterable[int], now: float = 0.0) -> list[Action]:
        actions = super().begin(workers, now)
        self._witness.answer(actions, self.view)
        return actions

    def handle(self, event: ev.Event, now: float) -> list[Action]:
        """See `Engine`."""
        self._witness.event(event, now, self.view)
        actions = super().handle(event, now)
        self._witness.answer(actions, self.view)
        return actions
