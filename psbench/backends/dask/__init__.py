"""A run on real Dask workers: one task a role, vectors over a wire of their own, Dask for life and death."""

from psbench.backends.dask.client import run_dask

__all__ = ["run_dask"]
