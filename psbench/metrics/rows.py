"""Small helpers to read rows of a log as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from psbench.arrays import Array, Booleans, Integers
from psbench.core.log import Kind

if TYPE_CHECKING:
    import pandas as pd

Rows: TypeAlias = npt.NDArray[np.void]


def pick(rows: Rows, *kinds: Kind) -> Rows:
    return rows[positions(rows, *kinds)]


def positions(rows: Rows, *kinds: Kind) -> Integers:
    if len(kinds) == 1:
        is_wanted = rows["kind"] == int(kinds[0])
    else:  # a lookup table is several times as fast as np.isin
        wanted = np.zeros(256, dtype=bool)
        wanted[[int(kind) for kind in kinds]] = True
        is_wanted = wanted[rows["kind"]]
    found: Integers = is_wanted.nonzero()[0]
    return found


def trained(rows: Rows) -> Rows:
    """Return the rows whose `samples` count as progress: committed pushes, and steps kept after a vote."""
    return pick(rows, Kind.APPLY, Kind.RELEASE)


def kept_steps(rows: Rows) -> int:
    """Return the number of steps kept after a vote; every step is voted on."""
    return int(np.count_nonzero(pick(rows, Kind.RELEASE)["samples"]))


class Absences:
    """Reads a growing log with dropped workers as leaving, and readmitted workers as joining."""

    def __init__(self) -> None:
        self._gone: set[int] = set()

    def read(self, rows: Rows) -> Rows:
        """Return new rows with dropped workers leaving and readmitted workers joining."""
        dropped, readmitted = positions(rows, Kind.DROP), positions(rows, Kind.READMIT)
        if not (len(dropped) or len(readmitted) or self._gone):
            return rows  # only a dropped worker leaves twice
        rows = rows.copy()
        rows["kind"][dropped] = Kind.LEAVE
        rows["kind"][readmitted] = Kind.JOIN
        for place in positions(rows, Kind.JOIN, Kind.LEAVE).tolist():
            worker = int(rows["worker"][place])
            if rows["kind"][place] == Kind.JOIN:
                self._gone.discard(worker)
            elif worker in self._gone:
                rows["kind"][place] = Kind.NOTE
            else:
                self._gone.add(worker)
        return rows


def with_membership(rows: Rows) -> Rows:
    """Return the rows of a whole log, with dropped workers leaving and readmitted workers joining."""
    return Absences().read(rows)


def categorical(codes: Array, names: Sequence[str]) -> pd.Categorical[str]:
    import pandas as pd

    return pd.Categorical.from_codes(codes.astype(np.int64), categories=pd.Index(list(names), dtype="object"))


def optional(values: Array, missing: Booleans) -> pd.arrays.IntegerArray:
    """Return integers with missing values (NA)."""
    import pandas as pd

    return pd.arrays.IntegerArray(values.astype(np.int64), missing)


def workers_of(rows: Rows) -> list[int]:
    """Return the ids of all workers that ever joined, in order."""
    return [int(worker) for worker in np.unique(pick(rows, Kind.JOIN)["worker"])]


def end_of(rows: Rows) -> float:
    """Return the time of the last row, in seconds: the end of the run; 0 for an empty log."""
    return float(rows["time_s"][-1]) if len(rows) else 0.0


def finite(value: float | None) -> float | None:
    """Return the number, or None if it is missing or not finite (JSON has no NaN)."""
    return None if value is None or not np.isfinite(value) else float(value)


#: rows that are answered: releases behind the last of them may not have been sent
ANSWERED = (Kind.PUSH, Kind.APPLY, Kind.VOTE)


def sent(rows: Rows, unanswered: bool) -> Rows:
    """Return the rows without releases that were never sent."""
    if not unanswered:
        return rows
    ends = max(positions(rows, *ANSWERED), default=-1)
    late = (rows["kind"] == Kind.RELEASE) & (np.arange(len(rows)) > ends)
    kept: Rows = rows[~late]
    return kept
