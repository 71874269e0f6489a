"""The client of the cluster that an experiment names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psbench.backends.dask import client_of
from psbench.clusters.scheduler import address_of
from psbench.errors import ParameterError
from psbench.experiment import Experiment


@contextmanager
def cluster_client(experiment: Experiment) -> Iterator[Any]:
    """Yield a client of the experiment's scheduler, whose detached runs are listed, followed and controlled.

    Raises
    ------
    ParameterError
        If the experiment names no scheduler, or the scheduler does not answer.
    """
    address = address_of(experiment.scheduler, experiment.connection)
    if address is None:
        raise ParameterError(
            "scheduler: a detached run belongs to a running Dask cluster; give its address (in a shell "
            "--scheduler), such as tcp://10.0.0.1:8786"
        )
    with client_of(address, experiment.connection) as client:
        yield client
