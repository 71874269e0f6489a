"""Runs that belong to a Dask cluster: submitted by one process, followed and controlled by any other.

Other packages import this module alone. Its names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psbench.system.lazy import lazy_names

if TYPE_CHECKING:
    from psbench.detached.cluster import cluster_client
    from psbench.detached.detached_run import DetachedRun, attach
    from psbench.detached.listing import Listed, listed
    from psbench.detached.submission import submit

__all__ = ["DetachedRun", "Listed", "attach", "cluster_client", "listed", "submit"]
__getattr__ = lazy_names(
    __name__,
    {
        **{"DetachedRun": "detached_run", "attach": "detached_run", "submit": "submission"},
        "cluster_client": "cluster",
        **dict.fromkeys(("Listed", "listed"), "listing"),
    },
)
