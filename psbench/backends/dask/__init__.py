"""The live backend: runs on a Dask cluster. Other packages import only this module.

Its names are loaded when they are first used, so that importing it needs neither torch nor Dask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psbench.backend import Backend
from psbench.backends.dask.settings import check
from psbench.core.collective import Jobs
from psbench.system.lazy import lazy_names

if TYPE_CHECKING:
    from psbench.backends.dask.connecting import client_of, usable
    from psbench.backends.dask.detached.director import Director, Kept, packed_log
    from psbench.backends.dask.detached.link import Link
    from psbench.backends.dask.detached.registry import Listed, listed_runs
    from psbench.backends.dask.doctor import Diagnosis, diagnose
    from psbench.backends.dask.local_cluster import start_cluster
    from psbench.backends.dask.objects import check_objects
    from psbench.backends.dask.rpc import SchedulerLost
    from psbench.backends.outcome import Outcome
    from psbench.training.build import Workload

__all__ = [
    "BACKEND",
    "Diagnosis",
    "Director",
    "Kept",
    "Link",
    "Listed",
    "SchedulerLost",
    "check_objects",
    "client_of",
    "diagnose",
    "listed_runs",
    "packed_log",
    "start_cluster",
    "usable",
]
__getattr__ = lazy_names(
    __name__,
    {
        "Diagnosis": "doctor",
        **dict.fromkeys(("Director", "Kept", "packed_log"), "detached.director"),
        "Link": "detached.link",
        **dict.fromkeys(("Listed", "listed_runs"), "detached.registry"),
        "SchedulerLost": "rpc",
        "check_objects": "objects",
        **dict.fromkeys(("client_of", "usable"), "connecting"),
        "diagnose": "doctor",
        "start_cluster": "local_cluster",
    },
)


def _run(workload: Workload, *given: Any, **more: Any) -> Outcome:
    from psbench.backends.dask.client import run_dask
    from psbench.backends.dask.map_reduce.driver import run_map_reduce

    compositions = workload.experiment.strategy.compositions
    jobs = any(isinstance(each.placement, Jobs) for each in compositions)
    return (run_map_reduce if jobs else run_dask)(workload, *given, **more)


BACKEND = Backend(run=_run, check=check, takes_client=True)
