"""Invariants that hold after every event under every strategy, checked on the log and the view."""

from __future__ import annotations

from typing import Any

from psbench.core import Engine, Kind, Status
from psbench.core.log import ROW
from psbench.core.migration import REASSIGNMENT
from psbench.core.peer_to_peer import PeerToPeer
from psbench.errors import ProtocolError

_TEXT = (ROW.names or ()).index("text")


class BrokenContract(ProtocolError):
    """A strategy violates the contract; the message states the observation and the likely cause."""


class MisfitOrBroken(BrokenContract):
    """A worker's half gives wrong pushes, or pushes of another kind than the aggregation part takes."""


#: rows that begin an answer; drops and readmissions are performed after the rest of an answer
_EVENTS = frozenset(
    (
        *(Kind.JOIN, Kind.LEAVE, Kind.PUSH, Kind.VOTE, Kind.REPORT, Kind.TIMER, Kind.MEASURED),
        *(Kind.EVALUATED, Kind.SWITCH_REQUESTED, Kind.DROP, Kind.READMIT, Kind.RESUME),
    )
)
#: what the view counts and is counted again
_COUNTS = ("num_active", "num_computing", "num_voted", "min_clock", "clocks", "waiting")
#: hold reasons of the engine itself: a drain before a switch, or before parameters move
_ENGINES = ("switch", REASSIGNMENT)


class Invariants:
    """Follows a run and raises at the first event after which an invariant does not hold.

    Parameters
    ----------
    where : str
        Beginning of messages.
    engine : Engine
        An engine that writes a log.
    """

    def __init__(self, where: str, engine: Engine) -> None:
        if engine.log is None:
            raise ValueError(
                "the invariants are checked on the log, but this engine writes none; give it log=EventLog()"
            )
        self.where, self.engine, self.log = where, engine, engine.log
        self._seen = 0
        self._now = 0.0
        self._version = 0
        self._pending: dict[int, tuple[int, int]] = {}  # worker and base version by push
        self._done: set[int] = set()
        self._last = (0, 0)  # worker and base version of the push just taken
        self._commit: list[int] = []  # workers of the commit being read
        self._round: set[int] = set()  # released since the last commit
        self._pushed: set[int] = set()  # of those, who has pushed
        self._answers: dict[int, list[str]] = {}
        self._handed_over = self._resumed = False
        self._use(engine.strategy.compositions[0].consistency)
        readers = {kind: getattr(self, f"_{kind.name.lower()}", None) for kind in Kind}
        self._readers = {int(kind): reader for kind, reader in readers.items() if reader is not None}
        self.look()

    def _use(self, consistency: Any) -> None:
        """Use the declarations of the part that is active at the current row."""
        self._consistency = consistency
        self._staleness_bound = getattr(consistency, "staleness_bound", None)

    def look(self) -> None:
        """Check all rows since the last call.

        Raises
        ------
        BrokenContract
        """
        rows = self.log.tuples(self._seen)
        self._seen += len(rows)
        for row in rows:
            self._read(row)
        self._close_commit()
        self._end_of_answer()
        self._check_view()

    @property
    def _by_worker(self) -> bool:
        """Return True if each worker has its own versions, each made by one push."""
        return isinstance(self.engine.composition.placement, PeerToPeer)

    # ---------------------------------------------------------------- rows

    def _read(self, row: tuple[Any, ...]) -> None:
        now, kind, worker, number, version, *_ = row  # the first of `log.FIELDS`
        if kind in _EVENTS:  # one answer may cover several: those that were queued during a `Measure`
            self._end_of_answer()
        if now < self._now:
            self._broken(f"time runs backwards at a {Kind(kind).name} row")
        self._now = now
        if self._commit and (kind != Kind.APPLY or version != self._version or self._by_worker):
            self._close_commit()
        reader = self._readers.get(kind)
        if reader is not None:
            reader(worker, number, version, row)

    def _push(self, worker: int, push: int, version: int, row: Any) -> None:
        if push in self._pending or push in self._done:
            self._broken(f"push {push} was counted twice")
        self._pending[push] = worker, version
        self._pushed.add(worker)

    def _leave(self, worker: int, _id: int, _version: int, row: Any) -> None:
        self._answers.pop(worker, None)  # one that rejoins during a `Measure` is answered again
        if worker not in self._pushed:
            self._round.discard(worker)

    _drop = _leave

    def _apply(self, worker: int, push: int, version: int, row: Any) -> None:
        self._take(push, "applied")
        if not self._commit:
            if not self._by_worker and version != self._version + 1:
                self._broken(f"version {version} was made after version {self._version}")
            self._version += 1
        base = self._last[1]
        if version - 1 - base < 0:
            self._broken(f"push {push} started from version {base}, which did not exist yet")
        if version - 1 - base > 0 and self._consistency.barrier:
            self._broken(f"push {push} is stale under a barrier: {version - 1 - base} versions")
        self._commit.append(worker)

    def _discard(self, worker: int, push: int, _version: int, row: Any) -> None:
        self._take(push, "discarded")

    def _take(self, push: int, what: str) -> None:
        if push not in self._pending:
            self._broken(f"push {push} was {what} although it was not pending, perhaps twice")
        self._last = self._pending.pop(push)
        self._done.add(push)

    def _release(self, worker: int, then_push: int, _version: int, row: Any) -> None:
        drains = '"push":true' in self.log.text(row[_TEXT])  # the engine's own: its steps are not to be lost
        if not drains:
            self._answers.setdefault(worker, []).append("release")
        self._round.add(worker)
        self._pushed.discard(worker)
        bound, view = self._staleness_bound, self.engine.view
        if bound is None or then_push or drains or view.workers[worker].status != Status.COMPUTING:
            return
        if view.clock_lead(worker) > bound:
            self._broken(
                f"worker {worker} starts a step {view.clock_lead(worker)} steps ahead of the slowest, "
                f"but staleness_bound is {bound}. Most likely on_push compares before the push counts, or "
                "with < where the lead may equal the bound"
            )

    def _hold(self, worker: int, _id: int, _version: int, row: Any) -> None:
        reason = self.log.text(row[_TEXT])
        if reason in _ENGINES:
            return
        self._answers.setdefault(worker, []).append(f"hold ({reason})")
        if self._consistency.waits_for == "none" and reason != "vote":
            self._broken(
                f"worker {worker} is held ({reason}), although {self._consistency.name} declares "
                "waits_for = 'none'; release it, or declare 'some' or 'all'"
            )

    def _cancel(self, worker: int, _id: int, _version: int, row: Any) -> None:
        if not (self._consistency.cancels or self._resumed) and self.engine.rule is None:
            self._broken(
                f"worker {worker} is cancelled, although {self._consistency.name} does not declare `cancels`"
            )

    def _resume(self, _worker: int, _id: int, _version: int, row: Any) -> None:
        """Record that work in progress is void: computing workers are released again."""
        self._resumed = True
        self._round = {worker for worker in self._round if worker in self._pushed}

    def _handover(self, _worker: int, to: int, _version: int, row: Any) -> None:
        if self._pending:
            self._broken(
                f"pushes {sorted(self._pending)} are still pending at a hand-over; commit or discard them"
            )
        self._handed_over = True
        self._use(self.engine.strategy.compositions[to].consistency)
        self._round.clear()
        self._pushed.clear()

    def _close_commit(self) -> None:
        """Check a complete commit against the part's declarations."""
        if not self._commit:
            return
        workers, self._commit = self._commit, []
        part = self._consistency
        if part.singly and len(workers) > 1:
            self._broken(f"{len(workers)} pushes in one commit, although {part.name} declares `singly`")
        if part.barrier and sorted(workers) != sorted(self._round):
            self._broken(
                f"a commit takes pushes of workers {sorted(workers)}, but {sorted(self._round)} "
                f"were released; {part.name} declares a barrier: one push of every active worker. Most "
                "likely it commits before all have pushed, or forgets view.pending"
            )
        self._round -= self._pushed
        self._pushed.clear()

    # ---------------------------------------------------------------- answers and view

    def _end_of_answer(self) -> None:
        if self._answers:
            self._check_answers()
            self._answers = {}
        self._handed_over = self._resumed = False

    def _check_answers(self) -> None:
        if self._handed_over:  # a worker held for a switch is released by the next composition
            return
        for worker, answers in self._answers.items():
            if len(answers) > 1:
                self._broken(
                    f"worker {worker} was answered more than once: {', '.join(answers)}. Most likely on_push "
                    "releases or holds it in two places"
                )

    def _check_view(self) -> None:
        view = self.engine.view
        if view.pushes != view.committed + view.discarded + len(view.pending):
            self._broken(
                f"{view.pushes} pushes, but {view.committed} committed + {view.discarded} discarded + "
                f"{len(view.pending)} pending"
            )
        if view.pending.keys() != self._pending.keys():
            self._broken(
                "view.pending differs from the pending pushes in the log; parts must not change the view"
            )
        if view.version != self._version:
            self._broken(
                f"view.version is {view.version}, but the log has {self._version} commits; parts must not "
                "change the view"
            )
        here = [w for w in view.workers.values() if w.status != Status.GONE]
        computing = [w for w in here if w.status == Status.COMPUTING]
        clocks = [w.clock for w in here] or [view.min_clock]
        waiting = sorted(w.id for w in here if w.status in (Status.NEW, Status.PUSHED))
        num_clocks = sum(view.clock_counts.values())
        voted = [w for w in here if w.status == Status.VOTED]
        kept = view.num_active, view.num_computing, view.num_voted, view.min_clock, num_clocks, view.waiting
        counted = len(here), len(computing), len(voted), min(clocks), len(here), waiting
        if kept != counted:
            name, own, found = next(
                each for each in zip(_COUNTS, kept, counted, strict=True) if each[1] != each[2]
            )
            self._broken(f"view.{name} is {own}, but counting gives {found}; parts must not change the view")

    def _broken(self, what: str) -> None:
        raise BrokenContract(f"{self.where}, at {self._now:g} s: {what}")
