"""Where a strategy's actions are performed: in virtual time, on a Dask cluster, or from a record."""
