"""The rows that the model expects in the log."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from psbench.core import Kind
from psbench.core import events as ev
from psbench_fuzz.model.view import ModelCluster


class Row(NamedTuple):
    """A row of the log: columns that are not named are 0."""

    kind: Kind
    time_s: float
    worker: int
    text: Any
    columns: dict[str, float]


class ExpectedRows:
    """The rows of one answer, with the time that the cluster shows."""

    def __init__(self, cluster: ModelCluster) -> None:
        self.cluster = cluster
        self.rows: list[Row] = []

    def add(self, kind: Kind, worker: int = 0, text: Any = "", **columns: float) -> None:
        """Expect a row in the log; a `text` that is no string is written as JSON."""
        self.rows.append(Row(kind, self.cluster.now, worker, text, columns))

    def add_event(self, event: ev.Event) -> None:
        """Expect the row of an event that counts; of a push, all that a replay needs."""
        columns: dict[str, float]
        match event:
            case ev.Push():
                bare = event.stats is None and not event.overlapping
                goes_on = {"goes_on": 1.0} if event.overlapping else {}
                names = "id", "samples", "steps", "bytes", "compute_s", "send_s", "loss"
                columns = {name: getattr(event, name) for name in names} | {"version": event.base_version}
                self.add(Kind.PUSH, event.worker, "" if bare else (event.stats or {}) | goes_on, **columns)
            case ev.Vote():
                columns = {"samples": event.samples, "compute_s": event.compute_s, "loss": event.value}
                self.add(Kind.VOTE, event.worker, json.dumps(event.value), **columns)
            case ev.Report():
                self.add(Kind.REPORT, event.worker, dict(event.stats))
            case ev.Join():
                self.add(Kind.JOIN, event.worker)
            case ev.Timer():
                self.add(Kind.TIMER, text=event.key, id=event.composition_id)
            case ev.Evaluated():
                self.add(Kind.EVALUATED, text=event.values, id=event.epoch, version=event.version)
            case ev.SwitchRequested():
                self.add(Kind.SWITCH_REQUESTED, id=-1 if event.to is None else event.to)
