"""Imported by the fork server: what every Dask worker looks up when it starts, looked up once for all.

Both are cached by those who look them up, and take as long as the rest of a Dask worker's start.
"""

from contextlib import suppress

from distributed.versions import get_versions

from psbench.backends.dask import tasks

__all__ = ["tasks"]

get_versions()
with suppress(ImportError):  # it is no part of tornado's interface
    from tornado.netutil import _client_ssl_defaults

    _client_ssl_defaults()  # the system's certificates, which no connection of ours uses
