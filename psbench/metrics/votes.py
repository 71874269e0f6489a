"""Local steps, and steps after which all workers synchronised."""

from __future__ import annotations

from typing import Any

import numpy as np

from psbench.core.log import EventLog, Kind
from psbench.metrics.rows import kept_steps, pick


def local_steps_ratio(log: EventLog) -> dict[str, Any] | None:
    """Return the outcomes of the votes; None without votes.

    Returns
    -------
    dict
        `local` and `synchronous` (steps of all workers), `lssr` = local / (local + synchronous), 0 to 1, and
        `saving` = 1 / (1 - lssr), by how much fewer pushes that is; None if there was no push at all.

    Notes
    -----
    A vote that was not answered, because its worker left or the run ended, counts as neither.

    Source
    ------
    Tyagi and Swany (2023), SelSync: the local-to-synchronous step ratio.
    """
    rows = log.rows()
    if Kind.VOTE not in rows["kind"]:
        return None
    local = kept_steps(rows)
    synchronous = int(np.count_nonzero(pick(rows, Kind.RELEASE)["id"] == 1))
    steps = local + synchronous
    return {
        "local": local,
        "synchronous": synchronous,
        "lssr": local / steps if steps else 0.0,
        "saving": steps / synchronous if synchronous else None,
    }
