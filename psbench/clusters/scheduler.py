"""The address of a run's Dask scheduler, and a check of its port; imports neither torch nor Dask."""

from __future__ import annotations

import re
import socket
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel

from psbench.clusters.connection import ConnectionSettings
from psbench.core.typed_data import read_json, typed
from psbench.errors import DataError, ParameterError, naming

_ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx|ucxx)://(\[[0-9a-fA-F:]+\]|[^\s/:\[\]]+):([0-9]{1,5})(/\S*)?")


class _SchedulerFile(BaseModel):
    address: str


def address_of(scheduler: str | None, connection: ConnectionSettings) -> str | None:
    """Return the address of the scheduler; None for a local cluster.

    Raises
    ------
    ParameterError
        If its file cannot be read.
    """
    name = connection.scheduler_file
    if scheduler or name is None:
        return scheduler
    try:
        with naming(name):
            address = typed(_SchedulerFile, read_json(Path(name)), name).address
            check_address(address)
    except (DataError, ParameterError) as error:
        raise ParameterError(f"connection.scheduler_file: {error}; was it written by a scheduler?") from None
    return address


def check_address(address: str) -> None:
    """Raise unless Dask can parse the address.

    Raises
    ------
    ParameterError
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[3]) >= 1 << 16:
        raise ParameterError(f"scheduler: {address!r} is not an address such as tcp://192.168.0.10:8786")


def check_protocol(address: str) -> None:
    """Raise if the protocol of an address is not installed.

    Raises
    ------
    ParameterError
    """
    protocol = urlsplit(address).scheme
    if protocol in ("ucx", "ucxx") and find_spec("distributed_ucxx") is None:
        raise ParameterError(
            f"scheduler: {address!r} needs the protocol {protocol}, which is not installed: install "
            "distributed-ucxx on every machine of the cluster, or give an address that begins with tcp:// "
            "or tls://"
        )


def check_port(address: str, within_s: float) -> None:
    """Raise if nothing listens at an address. Dask checks later that it is a scheduler.

    Raises
    ------
    ParameterError
        Also if the protocol is not installed.
    """
    check_protocol(address)
    parts = urlsplit(address)
    if parts.scheme not in ("tcp", "tls") or parts.port is None:
        return
    try:
        socket.create_connection((parts.hostname, parts.port), within_s).close()
    except (socket.gaierror, UnicodeError):  # UnicodeError: two dots in a row
        raise ParameterError(f"scheduler: {address!r}: there is no such host") from None
    except OSError:
        raise ParameterError(no_answer(address, within_s)) from None


def no_answer(address: str, within_s: float) -> str:
    """Return the error message for an address without a scheduler."""
    return (
        f"scheduler: no Dask scheduler answers at {address!r} within {within_s:g} s "
        "(connection.connect_within_s); "
        "start one with `dask scheduler`, or leave `scheduler` out for a cluster on this machine"
    )
