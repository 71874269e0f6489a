"""Runs as tables for other programs: curves, smoothed training loss, events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from psbench import metrics
from psbench.core.log import EventLog, Kind
from psbench.errors import UnknownName
from psbench.metrics.record import RunRecord
from psbench.metrics.rows import categorical


def frame_of(run: RunRecord, table: str = "curves") -> pd.DataFrame:
    """Return one of the tables of a run; see `Run.frame`.

    Raises
    ------
    UnknownName
    """
    if table not in TABLES:
        raise UnknownName("table of a run", table, TABLES)
    return TABLES[table](run)


def frame_of_groups(groups: Mapping[str, Sequence[RunRecord]], table: str = "curves") -> pd.DataFrame:
    """Return a table of several runs, stacked, each row with its run's label and seed.

    Raises
    ------
    UnknownName
    """
    parts = []
    for label, runs in groups.items():
        for run in runs:
            part = frame_of(run, table)
            part.insert(0, "label", label)
            part.insert(1, "seed", run.meta.get("seed"))
            parts.append(part)
    return pd.concat(parts, ignore_index=True)


def events_of(log: EventLog) -> pd.DataFrame:
    """Return a log's rows with the names of their kinds and their texts.

    Examples
    --------
    >>> log = EventLog()
    >>> log.add(Kind.HOLD, 0.5, worker=2, text="barrier")
    >>> events_of(log)[["time_s", "kind", "worker", "text"]].values.tolist()
    [[0.5, 'hold', 2, 'barrier']]
    """
    columns = log.columns()
    codes, names = np.unique(columns["kind"], return_inverse=True)
    kinds = categorical(names, [Kind(code).name.lower() for code in codes.tolist()])
    return pd.DataFrame(columns | {"kind": kinds, "text": categorical(columns["text"], log.texts)})


#: the tables of a run by name
TABLES: dict[str, Callable[[RunRecord], pd.DataFrame]] = {
    "curves": lambda run: metrics.evaluations(run.log),
    "training": lambda run: metrics.training_loss(run.log, run.meta["dataset_size"]),
    "events": lambda run: events_of(run.log),
    "contributions": lambda run: metrics.contributions(run.log),
    "energy": lambda run: metrics.energy(run.log, run.meta),
    "utilisation": lambda run: metrics.utilisation(run.log, run.meta),
    "trained": lambda run: metrics.trained_groups(run.log, run.meta),
    "neighbourhoods": lambda run: metrics.trained_groups(run.log, run.meta, by="neighbourhood"),
}
