"""Replay: feed a recorded run's events to fresh parts and check that they decide the same again.

A push's tensor is not needed: decisions depend on events alone. So a run that was recorded on a cluster
is replayed on a laptop, without its data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.engine import Engine
from psbench.core.log import EventLog, Kind
from psbench.core.view import ClusterView
from psbench.errors import ProtocolError, ReplayMismatch

_EVENTS = {
    *(Kind.JOIN, Kind.LEAVE, Kind.PUSH, Kind.VOTE, Kind.REPORT, Kind.TIMER, Kind.MEASURED),
    *(Kind.EVALUATED, Kind.SWITCH_REQUESTED, Kind.VOID, Kind.RESUME),
}

#: what parts raise that are sent what no run sends
_FAILING = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Decision:
    """One answer of a recorded run's engine.

    Attributes
    ----------
    rows : (int, int)
        Its rows of the log: the first, and the one after the last.
    event : Event or None
        What it answers; None at the begin and after a resume, and of an evaluation that no rule sees.
    actions : sequence of Action
        What the engine decided, in order; complete, as a backend performs it.
    view : ClusterView
        As of the end of the answer: read it before the next decision is taken.
    """

    rows: tuple[int, int]
    event: ev.Event | None
    actions: Sequence[Action]
    view: ClusterView


class Replay:
    """Passes the events of a log to an engine, and compares the decisions.

    It is the half of a driver (`psbench.core.driver`) that hands over events: what comes of actions is in the
    log already, so none is performed.

    Parameters
    ----------
    recorded : EventLog
    again : EventLog
        That of the engine; empty.
    engine : Engine
        As it was before the run.
    """

    def __init__(self, recorded: EventLog, again: EventLog, engine: Engine) -> None:
        self._recorded, self._again, self._engine = recorded, again, engine

    def play(self) -> int:
        """Repeat every decision; return the number of rows, all of them equal.

        Raises
        ------
        ReplayMismatch
            With the first row that differs.
        """
        rows = 0
        for decision in self.decisions():
            rows = decision.rows[1]
        return rows

    def decisions(self) -> Iterator[Decision]:
        """Yield every decision as it is repeated.

        Raises
        ------
        ReplayMismatch
            At the first row that differs.
        """
        recorded, again, engine = self._recorded, self._again, self._engine
        rows = recorded.rows()
        engine.pause_for_evaluations(lambda: bool((rows["kind"][len(again) :][:1] == Kind.EVALUATED).any()))
        at = 0
        while at < len(rows):
            row = rows[at]
            event: ev.Event | None = None
            actions: Sequence[Action] = ()
            if row["kind"] == Kind.EVALUATED and row["id"] <= 0:  # no rule sees the first and the last
                evaluated = rows[at : at + 1].copy()
                evaluated["text"] = again.number(recorded.text(row["text"]))
                again.extend(evaluated, ())
            elif not engine.view.workers:
                with _deciding(recorded, at):
                    actions = engine.begin(_starters(rows[at:]), float(row["time_s"]))
            elif row["kind"] in _EVENTS:
                event, actions = _feed(engine, row, recorded, at)
            else:  # fewer rows were decided now than then
                break
            before, at = at, _compare(recorded, again, at)
            if at == before:  # nothing was decided: the log begins with no worker
                break
            yield Decision((before, at), event, actions, engine.view)
        if at < len(rows):
            raise ReplayMismatch(f"row {at}: recorded {describe(recorded, at)}; decided now: nothing more")


def _starters(rows: np.ndarray[Any, Any]) -> list[int]:
    """Return the workers of the JOIN rows at the beginning of the log."""
    others = np.flatnonzero(rows["kind"] != Kind.JOIN)
    return [int(worker) for worker in rows["worker"][: others[0] if len(others) else len(rows)]]


def _feed(engine: Engine, row: Any, recorded: EventLog, at: int) -> tuple[ev.Event | None, Sequence[Action]]:
    with _deciding(recorded, at):
        event = _event(engine, row, recorded.text(row["text"]))
        if isinstance(event, dict):
            return None, engine.resume(event["spared"], event["epochs"][1], event.get("again", ()))
        return event, engine.handle(event, float(row["time_s"]))


@contextmanager
def _deciding(recorded: EventLog, at: int) -> Iterator[None]:
    """Add the log row to any error that a part raises."""
    try:
        yield
    except (ProtocolError, *_FAILING) as error:
        what = str(error) if isinstance(error, ProtocolError) else f"{type(error).__name__}: {error}"
        raise ReplayMismatch(
            f"row {at}: after {describe(recorded, at)} the parts now fail: {' '.join(what.split())}"
        ) from error


def _event(engine: Engine, row: Any, text: str) -> ev.Event | dict[str, Any]:
    kind, worker = Kind(row["kind"]), int(row["worker"])
    ticket = engine.view.workers[worker].ticket if worker in engine.view.workers else 0
    if kind == Kind.RESUME:
        resumed: dict[str, Any] = json.loads(text)
        return resumed
    if kind == Kind.VOID:
        return _message(text, worker, int(row["id"]), row)
    if kind in (Kind.PUSH, Kind.VOTE, Kind.REPORT):
        return _message(kind.name.lower(), worker, ticket, row, json.loads(text) if text else None)
    if kind == Kind.JOIN:
        return ev.Join(worker)
    if kind == Kind.LEAVE:
        return ev.Leave(worker, text)
    if kind == Kind.TIMER:
        return ev.Timer(text, int(row["id"]))
    if kind == Kind.MEASURED:
        return ev.Measured(json.loads(text))
    if kind == Kind.SWITCH_REQUESTED:
        return ev.SwitchRequested(None if row["id"] < 0 else int(row["id"]))
    return ev.Evaluated(int(row["id"]), int(row["version"]), json.loads(text))


def _message(what: str, worker: int, ticket: int, row: Any, stats: Any = None) -> ev.Event:
    if what == "vote":
        value = float(row["loss"]) if stats is None else stats
        return ev.Vote(worker, ticket, value, int(row["samples"]), float(row["compute_s"]))
    if what == "report":
        return ev.Report(worker, ticket, stats or {})
    sent = dict(stats or {})
    overlapping = bool(sent.pop("goes_on", False))
    return ev.Push(
        id=int(row["id"]),
        worker=worker,
        ticket=ticket,
        base_version=int(row["version"]),
        samples=int(row["samples"]),
        steps=int(row["steps"]),
        bytes=int(row["bytes"]),
        compute_s=float(row["compute_s"]),
        send_s=float(row["send_s"]),
        loss=float(row["loss"]),
        stats=sent or None,
        overlapping=overlapping,
    )


def _compare(recorded: EventLog, again: EventLog, start: int) -> int:
    """Check the rows decided since `start`, and return the length of the equal part of both logs."""
    end = len(again)
    same = recorded.rows(start, end).tobytes() == again.rows(start, end).tobytes()
    if same and recorded.texts_of(start, end) == again.texts_of(start, end):
        return end
    for at in range(start, end):
        new = describe(again, at)
        old = describe(recorded, at) if at < len(recorded) else "nothing more"
        if old != new or recorded.rows(at, at + 1).tobytes() != again.rows(at, at + 1).tobytes():
            raise ReplayMismatch(f"row {at}: recorded {old}; decided now: {new}")
    return end


def describe(log: EventLog, at: int) -> str:
    """Return one row of a log in words."""
    row = log.rows(at, at + 1)[0]
    shown = {name: row[name].item() for name in ("worker", "id", "version") if row[name]}
    text = log.text(row["text"])
    facts = ", ".join([f"{name} {value}" for name, value in shown.items()] + ([repr(text)] if text else []))
    return f"{Kind(row['kind']).name.lower()} at {row['time_s']:.6g} s" + (f" ({facts})" if facts else "")
