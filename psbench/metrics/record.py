"""The part of a run that metrics and charts read, wherever it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from psbench.core.log import EventLog


class RunRecord(Protocol):
    """A run's log, and its metadata."""

    @property
    def log(self) -> EventLog:
        """The event log, which may still grow."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """Plain data: `dataset_size`, `num_workers`, `strategy`, `compositions`, `seed`, `backend`, ..."""
