"""A live run on Dask."""

from psbench.backends.dask.client import run_dask
from psbench.backends.dask.map_reduce.driver import run_map_reduce

__all__ = ["run_dask", "run_map_reduce"]
