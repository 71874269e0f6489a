"""Where the rows of a log stand on the axes that `charts.curves` draws against."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psbench.arrays import Array
from psbench.core.log import Kind
from psbench.metrics.rows import Rows


class AxisValues(NamedTuple):
    """For each row what was so with it: samples trained on, newest version, bytes sent up and down."""

    samples: Array
    version: Array
    bytes: Array


class Axes:
    """Counts along a log that grows."""

    def __init__(self) -> None:
        self._samples = self._version = self._bytes = 0
        self._no_server = False

    def read(self, rows: Rows) -> AxisValues:
        """Return those of new rows."""
        kind = rows["kind"]
        is_progress = (kind == Kind.APPLY) | (kind == Kind.RELEASE)
        samples = self._samples + np.cumsum(np.where(is_progress, rows["samples"], 0), dtype=np.int64)
        applied = kind == Kind.APPLY
        made = np.where(applied, rows["version"], self._version)
        self._no_server = self._no_server or bool((kind == Kind.MIX).any())
        if self._no_server:  # rows have the workers' own versions
            made = self._version + np.cumsum(applied)
        found = AxisValues(
            samples,
            np.maximum.accumulate(np.maximum(made, self._version)),
            self._bytes + np.cumsum(rows["bytes"], dtype=np.int64),
        )
        if len(rows):
            self._samples, self._version, self._bytes = (int(column[-1]) for column in found)
        return found
