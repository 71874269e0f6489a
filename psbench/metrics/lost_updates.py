"""Updates of a model in shared memory that others have written over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from psbench.arrays import Array
from psbench.core.log import EventLog, Kind
from psbench.core.shared_memory import WRITING
from psbench.metrics.rows import pick
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd


def lost_updates(log: EventLog) -> pd.DataFrame:
    """Return how much of each update in shared memory was lost, in the order in which writes ended.

    Returns
    -------
    DataFrame
        `time_s` (end of the write), `worker`, `push`, `lost` (share of its entries that another worker wrote
        over, 0 to 1), `lost_so_far` and `written_so_far` (updates). Empty without writes that take time.
    """
    return table(lost_columns(log))


def lost_columns(log: EventLog) -> dict[str, Array]:
    """Return the columns of `lost_updates`."""
    texts, writing, written = log.texts, set[int](), []
    # most runs have no such hold, and millions of rows
    rows = pick(log.rows(), *([Kind.HOLD, Kind.APPLY] if WRITING in texts else []))
    for place, (kind, worker, text) in enumerate(rows[["kind", "worker", "text"]].tolist()):
        if kind == Kind.APPLY:
            if worker in writing:
                written.append(place)
            writing.discard(worker)
        elif texts[text] == WRITING:
            writing.add(worker)
        else:
            writing.discard(worker)
    rows = rows[written]
    lost = 1.0 - rows["loss"].astype(float)
    columns = {"time_s": rows["time_s"], "worker": rows["worker"], "push": rows["id"], "lost": lost}
    return columns | {"lost_so_far": np.cumsum(lost), "written_so_far": np.arange(1, 1 + len(rows))}
