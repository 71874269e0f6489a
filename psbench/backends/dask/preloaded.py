"""Imports for the fork server: modules that every Dask worker loads when it starts.

Both are cached by those who look them up, and take as long as the rest of a Dask worker's start.
"""

from distributed.versions import get_versions

from psbench.backends.dask import tasks
from psbench.system.private_apis import look_up_certificates

__all__ = ["tasks"]

get_versions()
look_up_certificates()
