"""The list of a cluster's detached runs."""

from __future__ import annotations

from typing import Any

from psbench.backends.dask import Listed, listed_runs, usable
from psbench.clusters.connection import ConnectionSettings

__all__ = ["Listed", "listed"]


def listed(client: Any) -> list[Listed]:
    """Return the detached runs of a cluster, in the order in which they were submitted.

    Parameters
    ----------
    client : dask.distributed.Client

    Returns
    -------
    list of Listed
        Each with `name`, `state` ("running", "ended" or "lost"), `words` and `folder`. The cluster lists a
        run until it is forgotten.
    """
    return listed_runs(usable(client), ConnectionSettings())
