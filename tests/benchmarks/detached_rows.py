"""Readers of a detached run: how many rows a second they can read, and how late a new row comes.

The director has a log of two million rows and trains nothing; on a Dask cluster of one worker process.
"""

from __future__ import annotations

import time

import numpy as np
from distributed import Client, LocalCluster

from psbench.backends.dask.detached.director import Director, Kept
from psbench.backends.dask.detached.link import Link
from psbench.clusters.connection import ConnectionSettings
from psbench.core.log import ROW, Kind
from psbench.detached.detached_run import DetachedRun
from tests.benchmarks.measure import Row, Rows

ROWS, LATE = 2_000_000, 200
#: seconds between two new rows, which are no multiple of the director's looks for readers
_EVERY_S = 0.037


def _hold(director: Director) -> Kept:
    """Hold many rows, and add one now and then with the time of day until stopped."""
    director.begin()
    director.log.extend(np.zeros(ROWS, ROW), [])
    while not director.control.stopping:
        director.log.add(Kind.HOLD, time.time())
        time.sleep(_EVERY_S)
    return Kept({}, {"status": "stopped", "reason": "measured"}, None, None, b"", [])


def run() -> Rows:
    """Read all rows that are there, then each as it comes."""
    limits = ConnectionSettings()
    with (
        LocalCluster(1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        reader = DetachedRun(client, Link.submit(client, "measured", _hold, limits))
        while not len(reader.log):
            reader.read()
        read, began = len(reader.log), time.perf_counter()
        while len(reader.log) < ROWS:
            reader.read()
        rate = (len(reader.log) - read) / (time.perf_counter() - began)
        late_s = list[float]()
        reader.read()  # those that have come meanwhile
        while len(late_s) < LATE:
            read = len(reader.log)
            reader.read()
            late_s += (time.time() - reader.log.rows(read)["time_s"]).tolist()
        reader.stop()
        while reader.read():
            pass
        reader.forget()
    median, most = (1e3 * float(np.quantile(late_s, share)) for share in (0.5, 0.99))
    return [
        Row("rows that a reader of a detached run gets a second", "", "", rate, 5e5, 2.9e6, "rows/s"),
        Row(
            "a new row of a detached run reaches its reader after",
            f"99 %: {most:.0f} ms",
            "the director looks each 50 ms",
            *(median, 75.0, 4.0, "ms"),
            lower_is_better=True,
        ),
    ]
