"""A check that the client can connect to Dask workers: a run's messages do not pass through the scheduler."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from distributed import Client, Worker
from distributed.comm import get_address_host

from psbench.backends.dask.rpc import ask
from psbench.clusters.connection import ConnectionSettings
from psbench.errors import BackendError


def unreachable(client: Client, addresses: Collection[str], limits: ConnectionSettings) -> dict[str, str]:
    """Return the Dask workers to which this process cannot connect, with the reason in words.

    Each listens for a moment where the run would: on its host, and on a port that `connection.ports` allows.
    """
    token = secrets.token_hex(16)
    within_s = limits.connect_within_s
    found = ask(client, _listener(), token, limits.port_range, within_s, of=addresses, limits=limits)
    there = {address: place for address, place in found.items() if place is not None}  # else no port is free
    with ThreadPoolExecutor(len(there) or 1) as pool:
        why = pool.map(lambda place: _why_not(*place, token=token, within_s=within_s), there.values())
        return {address: reason for address, reason in zip(there, why, strict=True) if reason}


def check_reach(client: Client, addresses: Collection[str], limits: ConnectionSettings) -> dict[str, str]:
    """Return the result of `unreachable`; raise if no Dask worker can be reached.

    Raises
    ------
    BackendError
    """
    found = unreachable(client, addresses, limits)
    if found and len(found) == len(addresses):
        address, reason = next(iter(found.items()))
        raise BackendError(
            f"this machine reaches the Dask scheduler, but not Dask worker {address}, where a run would have "
            f"its coordinator: {reason}; start the run on a machine of that network, let connection.ports "
            "through the firewall, or submit a detached run (psbench run --detach), which needs the "
            "scheduler only"
        )
    return found


def _listener() -> Callable[..., tuple[str, int] | None]:
    """Return a function that accepts one connection on a Dask worker, and returns its address."""

    # in here it is sent whole: a Dask worker that has not imported torch yet takes seconds to do so
    def greet(listening: socket.socket, token: bytes) -> None:
        with listening, suppress(OSError):
            end, _ = listening.accept()
            with end:
                end.sendall(token)

    def listen(
        token: str, ports: tuple[int, int] | None, within_s: float, dask_worker: Worker
    ) -> tuple[str, int] | None:
        host = get_address_host(dask_worker.address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for port in range(1) if ports is None else range(ports[0], ports[1] + 1):
            with suppress(OSError):
                end = socket.create_server((host, port), family=family)
                end.settimeout(within_s)
                threading.Thread(target=greet, args=(end, token.encode()), daemon=True).start()
                return get_address_host(dask_worker.contact_address), end.getsockname()[1]
        return None

    return listen


def _why_not(host: str, port: int, *, token: str, within_s: float) -> str:
    """Return the reason why an address is unreachable; empty if it is reachable."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        with socket.create_connection((host, port), within_s) as end, end.makefile("rb") as answer:
            return "" if answer.read() == token.encode() else f"another program answers at {place}"
    except TimeoutError:
        return f"{place} does not answer within {within_s:g} s (connection.connect_within_s)"
    except OSError as error:
        return f"{place}: {(error.strerror or str(error)).lower()}"
