"""A client of the Dask cluster for a run."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from distributed import Client, Security
from distributed.core import connect

from psbench.backends.dask.local_cluster import local_cluster
from psbench.clusters.connection import ConnectionSettings
from psbench.clusters.scheduler import address_of, check_protocol, no_answer
from psbench.errors import ParameterError, in_short
from psbench.experiment import Experiment


@contextmanager
def connected(
    experiment: Experiment,
    num_roles: int,
    given: Client | None = None,
    go_on: Callable[[], None] = lambda: None,
) -> Iterator[Client]:
    """Yield a client of an experiment's scheduler, or of a local cluster with one process per role.

    Parameters
    ----------
    given : Client or None
        The caller's own, which is used as it is, and stays open.
    go_on : callable
        Called often while a local cluster starts; raises to give up.

    Raises
    ------
    ParameterError
        If the scheduler does not answer, or that client cannot be used; if the local cluster is to have
        resources.
    """
    if given is not None:
        yield usable(given)
        return
    address = address_of(experiment.scheduler, experiment.connection)
    if address is not None:
        with client_of(address, experiment.connection) as client:
            yield client
    else:
        if experiment.connection.resources:
            raise ParameterError(
                "connection.resources: a local cluster has no resources; set `scheduler` to one whose "
                "workers have them (dask worker --resources)"
            )
        security, limits = _own_security(), experiment.connection
        with (
            local_cluster(num_roles, security, go_on, limits.listen_within_s) as cluster,
            # its scheduler is a thread of this process: it answers, if late where many processes start
            client_at(cluster.scheduler_address, security, limits.listen_within_s) as client,
        ):
            yield client


@contextmanager
def client_of(address: str, connection: ConnectionSettings) -> Iterator[Client]:
    """Yield a client of the scheduler at that address.

    Raises
    ------
    ParameterError
        If it does not answer, or its protocol is not installed.
    """
    check_protocol(address)
    with client_at(address, _security(connection), connection.connect_within_s) as client:
        yield client


@cache
def _own_security() -> Security:
    """Return the credentials of this process's own clusters, which are stored in no file.

    Another user of this machine could otherwise have a scheduler run code as us. To draw a key takes as long
    as the rest of a start.
    """
    return Security.temporary()


def usable(client: Client) -> Client:
    """Return a caller's client, if a run can use it.

    Raises
    ------
    ParameterError
    """
    if not isinstance(client, Client):
        raise ParameterError(f"client: expected a Client of Dask, as Client(address), got {in_short(client)}")
    if client.asynchronous:
        raise ParameterError("client: is asynchronous; make one with asynchronous=False")
    if client.status != "running":
        raise ParameterError(f"client: its connection to the scheduler is {client.status}")
    return client


def _security(connection: ConnectionSettings) -> Security:
    """Return the given TLS files; Dask's configuration supplies the others."""
    if connection.tls_ca_file is None:
        return Security()
    for name in ("tls_ca_file", "tls_cert", "tls_key"):
        if not Path(getattr(connection, name)).is_file():
            raise ParameterError(f"connection.{name}: file {getattr(connection, name)} does not exist")
    return Security(
        require_encryption=True,
        tls_ca_file=connection.tls_ca_file,
        tls_client_cert=connection.tls_cert,
        tls_client_key=connection.tls_key,
    )


@contextmanager
def client_at(address: str, security: Security, within_s: float) -> Iterator[Client]:
    """Yield a client with these credentials; see `client_of`."""
    try:
        # in another thread, as an event loop may be running in this one (in a notebook)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, _handshake(address, security, within_s)).result()
        client = Client(address, timeout=within_s, set_as_default=False, security=security)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise ParameterError(_why_not(address, error, within_s)) from error
    with _quiet():
        try:
            yield client
        finally:
            client.close(timeout=within_s)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Dask's messages about a lost scheduler, which the caller reports once."""
    logger = logging.getLogger("distributed.client")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _why_not(address: str, error: BaseException, within_s: float) -> str:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        return (
            f"scheduler: the TLS handshake with {address!r} failed: {cause}; check tls_ca_file, tls_cert and "
            "tls_key of `connection`"
        )
    if address.startswith("tls://") and isinstance(error, (TypeError, RuntimeError, ValueError)):
        return (
            f"scheduler: {address!r} requires TLS, but no certificates are configured ({error}); give "
            "tls_ca_file, "
            "tls_cert and tls_key of `connection`, or set distributed.comm.tls in Dask's configuration"
        )
    return no_answer(address, within_s)


async def _handshake(address: str, security: Security, within_s: float) -> None:
    """Connect to the scheduler and close; Dask's client would wait forever for an unresponsive one."""
    arguments = security.get_connection_args("client")
    async with asyncio.timeout(within_s):
        comm = await connect(address, timeout=within_s, **arguments)
        await comm.close()
