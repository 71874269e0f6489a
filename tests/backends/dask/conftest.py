"""The one cluster of processes that all runs on Dask share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from psbench.backends.dask.cluster import local_cluster

#: enough for three workers, two servers and the evaluator
PROCESSES = 6


@pytest.fixture(scope="session")
def scheduler() -> Iterator[str]:
    """A cluster that is there already: what an engineer gives the address of."""
    with local_cluster(PROCESSES) as cluster:
        yield cluster.scheduler_address
