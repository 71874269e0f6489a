"""Backends perform a strategy's actions: in virtual time, on a Dask cluster, or from a record."""
