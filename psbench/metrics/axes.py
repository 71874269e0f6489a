"""Positions of a log's rows on the axes of `charts.curves`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psbench.arrays import Array
from psbench.core.log import Kind
from psbench.metrics.rows import Rows, positions

#: rows with which the model that is evaluated changes: replies stand behind them
_CHANGES = (Kind.APPLY, Kind.MIX, Kind.VOTE)


class AxisValues(NamedTuple):
    """Values at each row: samples trained on, newest version, bytes sent up and down.

    `evaluated_bytes` are, for each evaluation, those sent until its model was made: the replies that carry
    that model come later, and not at all if the run ends with it.
    """

    samples: Array
    version: Array
    bytes: Array
    evaluated_bytes: Array


class Axes:
    """Axis values along a growing log."""

    def __init__(self) -> None:
        self._samples = self._version = self._bytes = 0
        self._no_server = False
        # of each change of the model: version, and bytes sent until then
        self._changes: tuple[Array, Array] = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    def read(self, rows: Rows) -> AxisValues:
        """Return the axis values of new rows."""
        kind = rows["kind"]
        is_progress = (kind == Kind.APPLY) | (kind == Kind.RELEASE)
        samples = self._samples + np.cumsum(np.where(is_progress, rows["samples"], 0), dtype=np.int64)
        applied = kind == Kind.APPLY
        made = np.where(applied, rows["version"], self._version)
        self._no_server = self._no_server or bool((kind == Kind.MIX).any())
        if self._no_server:  # rows have the workers' own versions
            made = self._version + np.cumsum(applied)
        version = np.maximum.accumulate(np.maximum(made, self._version))
        sent = self._bytes + np.cumsum(rows["bytes"], dtype=np.int64)
        found = AxisValues(samples, version, sent, self._evaluated_bytes(rows, version, sent))
        if len(rows):
            self._samples, self._version, self._bytes = (int(column[-1]) for column in found[:3])
        return found

    def _evaluated_bytes(self, rows: Rows, version: Array, sent: Array) -> Array:
        """Return the bytes sent until each evaluated model was made; live evaluations arrive later."""
        changes, evaluations = positions(rows, *_CHANGES), positions(rows, Kind.EVALUATED)
        earlier = len(self._changes[0])
        versions, bytes_sent = self._changes = (
            np.append(self._changes[0], version[changes]),
            np.append(self._changes[1], sent[changes]),
        )
        until_version = np.searchsorted(versions, rows["version"][evaluations], side="right")
        until_row = earlier + np.searchsorted(changes, evaluations)
        last: Array = np.append(0, bytes_sent)[np.minimum(until_version, until_row)]
        return last
