"""The event log: the only record of a run, from which every metric, chart and report is derived.

A row is a packed record of 47 bytes; `columns()` shows the rows as NumPy columns. Long or rare things (a
hold's reason, evaluated values, the statistics a part reads) are texts: each is stored once and named by
its number. A message that reaches a part carries its worker's current ticket, so tickets need no column.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from psbench.arrays import Array
from psbench.core.events import Push


class Kind(IntEnum):
    """Kinds of rows and the meaning of their columns; unused columns are 0, and text 0 is empty."""

    JOIN = 0  #: worker
    LEAVE = 1  #: worker, text = reason
    PUSH = 2  #: worker, id, version = base, samples, steps, bytes (up), compute_s, send_s, loss, text = stats
    VOTE = 3  #: worker, samples, compute_s, loss = value, text = the same with all its digits
    REPORT = 4  #: worker, text = stats
    TIMER = 5  #: text = key, id = composition
    MEASURED = 6  #: text = facts
    EVALUATED = 7  #: id = epoch, version, text = values
    SWITCH_REQUESTED = 8  #: id = composition asked for, -1 for the next
    #: one row a push: worker, id = push, version made (without a server, of the worker), samples, steps,
    #: loss = weight
    APPLY = 9
    #: worker, id = 1 if ordered to push, version loaded, bytes (down), samples of a vote kept, text = orders
    RELEASE = 10
    HOLD = 11  #: worker, text = reason
    CANCEL = 12  #: worker
    DISCARD = 13  #: worker, id = push, text = reason
    TELL = 14  #: worker, text = orders
    NOTE = 15  #: text
    HANDOVER = 16  #: id = to, version, steps = from, compute_s = cost, text = reason
    MEASURE = 17  #: text = the asking part's domain, and needs
    SET_TIMER = 18  #: compute_s = at, text = key
    VOID = 19  #: worker, id = ticket, text = kind of message: it came with a void ticket
    DROP = 20  #: worker, text = reason: counts as gone until readmitted
    READMIT = 21  #: worker
    REASSIGN = 22  #: version, text = entries that changed their server, and the ranges of each server now
    RESUME = 23  #: version, text = workers spared and repeating steps, the stop rule's epochs before and now
    #: without a server: worker, id = push or -1, version = the worker's own from then on, bytes (of models
    #: received), text = for each worker whose model is mixed the weight of each that it takes
    MIX = 24


FIELDS = (
    *(("time_s", "<f8"), ("kind", "u1"), ("worker", "<u2"), ("id", "<i4"), ("version", "<i4")),
    *(("samples", "<i4"), ("steps", "<u4"), ("bytes", "<u4")),
    *(("compute_s", "<f4"), ("send_s", "<f4"), ("loss", "<f4"), ("text", "<u4")),
)
ROW = np.dtype([*FIELDS])
_ROW = struct.Struct("<dBHiiiIIfffI")
#: packs the columns of one row, in the order of `FIELDS`; faster than `EventLog.add`
pack_row = _ROW.pack
#: the same for the other frequent rows, whose remaining columns are 0
#: APPLY: time_s, kind, worker, id, version, samples, steps, loss
pack_apply = struct.Struct("<dBHiiiI12xf4x").pack
#: RELEASE, HOLD: time_s, kind, worker, id, version, samples, bytes, text
pack_release = struct.Struct("<dBHiii4xI12xI").pack


#: made once: `json.dumps` makes an encoder for each call that has options
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def plain_json(value: Any) -> str:
    """Return `value` as JSON with sorted keys, so that equal values give equal texts."""
    return _encode(value)


def push_text(push: Push) -> str:
    """Return the text of a push's row: its statistics, and whether its worker continued (`goes_on`)."""
    if not (push.stats or push.overlapping):
        return "{}"
    return plain_json((push.stats or {}) | ({"goes_on": 1.0} if push.overlapping else {}))


class EventLog:
    """A growing record of events and actions; resuming from a checkpoint truncates it.

    `notebooks/site/glossary.md` defines the events and actions (push, vote, commit, release, hold).

    Examples
    --------
    >>> log = EventLog()
    >>> log.add(Kind.HOLD, 0.5, worker=2, text="barrier")
    >>> len(log), log.columns()["worker"].tolist(), log.text(1)
    (1, [2], 'barrier')
    """

    def __init__(self) -> None:
        self._rows = bytearray()
        #: appends a row made by `pack_row`
        self.append = self._rows.extend
        self._numbers: dict[str, int] = {"": 0}
        self._texts: list[str] = [""]

    def __len__(self) -> int:
        return len(self._rows) // ROW.itemsize

    def add(
        self,
        kind: int,
        time_s: float,
        worker: int = 0,
        id: int = 0,
        version: int = 0,
        samples: int = 0,
        steps: int = 0,
        bytes: int = 0,
        compute_s: float = 0.0,
        send_s: float = 0.0,
        loss: float = 0.0,
        text: str = "",
    ) -> None:
        """Append one row; the columns' meaning for each kind is in `Kind`."""
        number = self.number(text) if text else 0
        row = (time_s, kind, worker, id, version, samples, steps, bytes, compute_s, send_s, loss, number)
        self.append(pack_row(*row))

    def number(self, text: str) -> int:
        """Return the number of a text, which is stored if it is new."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return number

    def text(self, number: int) -> str:
        """Return the text of that number."""
        return self._texts[number]

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts in the order of their numbers."""
        return tuple(self._texts)

    def texts_of(self, start: int, stop: int) -> list[str]:
        """Return the texts of the rows `start` to `stop`."""
        return [self._texts[number] for number in self.rows(start, stop)["text"]]

    def rows(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.void]:
        """Return a copy of rows `start` to `stop` as a structured array (dtype `ROW`).

        A copy, because a view would forbid the log to grow while it is held; safe to call from
        another thread than the one that appends.
        """
        stop = len(self) if stop is None else min(stop, len(self))
        part = bytes(self._rows[start * ROW.itemsize : stop * ROW.itemsize])
        return np.frombuffer(part, dtype=ROW)

    def tuples(self, start: int = 0) -> list[tuple[Any, ...]]:
        """Return the rows from `start` as tuples; for a few rows much faster than `rows`."""
        return list(_ROW.iter_unpack(self._rows[start * ROW.itemsize :]))

    def columns(self, start: int = 0, stop: int | None = None) -> dict[str, Array]:
        """Return the rows as contiguous arrays by column name."""
        rows = self.rows(start, stop)
        return {name: np.ascontiguousarray(rows[name]) for name in ROW.names or ()}

    def extend(self, rows: npt.NDArray[np.void], texts: Iterable[str]) -> None:
        """Append packed rows of another log; `texts` are the texts new in them."""
        for text in texts:
            self.number(text)
        self.append(rows.tobytes())

    def excerpt(self, rows: npt.NDArray[np.void]) -> EventLog:
        """Return a log of these rows, possibly of another log, with this log's texts (not copied)."""
        found = EventLog()
        found._numbers, found._texts = self._numbers, self._texts
        found.append(rows.tobytes())
        return found

    def truncate(self, rows: int, texts: int) -> None:
        """Keep only the first rows and texts: a run returns to an earlier state.

        A reader of the growing log finds it shorter than what it has read.
        """
        del self._rows[rows * ROW.itemsize :]
        for text in self._texts[texts:]:
            del self._numbers[text]
        del self._texts[texts:]

    def of_kind(self, kind: Kind) -> dict[str, Array]:
        """Return the columns of all rows of one kind, and their positions as `row`."""
        rows = self.rows()
        where = np.flatnonzero(rows["kind"] == kind)
        rows = rows[where]
        return {name: np.ascontiguousarray(rows[name]) for name in ROW.names or ()} | {"row": where}

    def evaluations(self) -> list[dict[str, Any]]:
        """Return the evaluations as dicts: `time_s`, `epoch`, `version` and the evaluated values."""
        found = self.of_kind(Kind.EVALUATED)
        return [
            {"time_s": float(t), "epoch": int(e), "version": int(v)} | json.loads(self._texts[n])
            for t, e, v, n in zip(found["time_s"], found["id"], found["version"], found["text"], strict=True)
        ]

    def digest(self) -> str:
        """Return the SHA-256 of the content: equal logs, equal digests."""
        content = hashlib.sha256(self._rows)
        content.update(plain_json(self._texts).encode())
        return content.hexdigest()

    @classmethod
    def from_columns(cls, columns: Mapping[str, npt.ArrayLike], texts: Iterable[str]) -> EventLog:
        """Build a log from its columns and its texts in order, as a stored log has them."""
        log = cls()
        length = len(np.asarray(columns["time_s"]))
        rows = np.zeros(length, dtype=ROW)
        for name in ROW.names or ():
            rows[name] = columns[name]
        numbered = list(texts)
        log._texts = numbered
        log._numbers = {text: number for number, text in enumerate(numbered)}
        log.append(rows.tobytes())
        return log
