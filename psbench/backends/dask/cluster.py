"""Connect to a Dask cluster, or start one on this machine, and assign the roles of a run to its workers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import dask
import psutil  # type: ignore[import-untyped]
from distributed import Client, LocalCluster, Nanny, Security
from distributed.core import connect

from psbench.errors import BackendError, ParameterError
from psbench.system import fork_server

logger = logging.getLogger(__name__)

#: seconds that a scheduler may take to answer
CONNECT_S = 5.0
#: seconds that the processes of a local cluster may take to end before they are killed
_CLOSE_S = 10.0
_SPAWN = "distributed.nanny.pre-spawn-environ"
_METHOD = "distributed.worker.multiprocessing-method"
#: Python's own processes, which stay until this one ends: they start and tidy up after others
_HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")


@contextmanager
def connected(scheduler: str | None, num_roles: int) -> Iterator[Client]:
    """Give a client of the scheduler at that address, or of a local cluster with one process per role.

    Raises
    ------
    ParameterError
        If the scheduler does not answer.
    """
    if scheduler is not None:
        with _client(scheduler) as client:
            yield client
        return
    with local_cluster(num_roles) as cluster, _client(cluster.scheduler_address) as client:
        # Ctrl-C reaches every process of the terminal's group: it must stop the run, not kill its workers
        client.run(_ignore_interrupts)
        yield client


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _client(address: str) -> Iterator[Client]:
    try:
        # in another thread, as an event loop may be running in this one (in a notebook)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, _handshake(address)).result()
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise ParameterError(
            f"scheduler: no Dask scheduler answers at {address!r} within {CONNECT_S:g} s; "
            "start one with `dask scheduler`, or leave `scheduler` out for a cluster on this machine"
        ) from error
    try:
        yield client
    finally:
        client.close(timeout=CONNECT_S)


async def _handshake(address: str) -> None:
    """Connect to the scheduler and close; Dask's client would wait forever for one that does not answer."""
    arguments = Security().get_connection_args("client")
    async with asyncio.timeout(CONNECT_S):
        comm = await connect(address, timeout=CONNECT_S, **arguments)
        await comm.close()


class _KillingNanny(Nanny):  # type: ignore[misc]  # Dask is untyped
    """Ends its process with a signal: no task runs by then, and torch takes seconds to exit."""

    async def kill(self, timeout: float = _CLOSE_S, reason: str = "run-ended") -> None:
        if self.process is not None and self.process.process is not None:
            await self.process.process.kill()
        await super().kill(timeout=timeout, reason=reason)


def start_cluster(processes: int) -> LocalCluster:
    """Start a Dask cluster on this machine, reachable from it only, with one thread a process.

    Parameters
    ----------
    processes : int
        One for each role of a run: training workers, servers (at least one) and the evaluator.

    Returns
    -------
    LocalCluster
        To be closed with `close()`; it ends with this process at the latest. Its `scheduler_address` is what
        `Experiment(scheduler=...)` takes, for any number of runs one after another.
    """
    with _settings():
        if dask.config.get(_METHOD) == "forkserver":
            fork_server.ensure_running()  # Dask's own list of imports comes too late to replace ours
        return LocalCluster(
            n_workers=processes,
            threads_per_worker=1,
            processes=True,
            worker_class=_KillingNanny,
            host="127.0.0.1",
            memory_limit=0,
            dashboard_address=None,
            # without an address the scheduler's page would try port 8787, and warn if it is taken
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.CRITICAL,  # the run itself reports what goes wrong
        )


@contextmanager
def local_cluster(processes: int) -> Iterator[LocalCluster]:
    """Give a cluster of this machine; at the end all its processes are gone, killed if need be."""
    before = set(_children())
    cluster = start_cluster(processes)
    try:
        yield cluster
    finally:
        own = [child for child in _children() if child not in before]
        try:
            cluster.close(timeout=_CLOSE_S)
        except TimeoutError:
            logger.warning("the cluster did not close within %g s", _CLOSE_S)
        finally:
            _, left = psutil.wait_procs(own, timeout=1.0)
            for process in left:
                logger.warning("process %d of the cluster did not end; killing it", process.pid)
                process.kill()
            psutil.wait_procs(left, timeout=_CLOSE_S)


def _children() -> list[psutil.Process]:
    """Return the processes that descend from this one, but Python's own helpers."""
    me, found = psutil.Process(), []
    for child in me.children(recursive=True):
        with suppress(psutil.Error):  # it may be gone by now
            # a fork has the command line of the fork server, but another parent
            is_helper = child.ppid() == me.pid and any(name in " ".join(child.cmdline()) for name in _HELPERS)
            if not is_helper:
                found.append(child)
    return found


@contextmanager
def _settings() -> Iterator[None]:
    """Set what the processes of a local cluster inherit, and restore this process's environment.

    Dask's nanny sets MALLOC_TRIM_THRESHOLD_, with which torch takes 1.6 times as long, and writes it into the
    environment of this process, from which every later process would inherit it.
    """
    spawn = {k: v for k, v in dask.config.get(_SPAWN).items() if k != "MALLOC_TRIM_THRESHOLD_"}
    settings = {
        _SPAWN: spawn,
        _METHOD: "forkserver" if fork_server.is_available() else "spawn",
        "distributed.worker.profile.enabled": False,  # its sampling interrupts the tasks 100 times a second
        "distributed.scheduler.allowed-failures": 0,  # a task that was lost is not started elsewhere
    }
    environment = dict(os.environ)
    try:
        with dask.config.set(settings):
            os.environ |= {name: str(value) for name, value in spawn.items()} | environment
            yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


def place(roles: Sequence[str], threads: Mapping[str, int], scheduler: str | None) -> dict[str, str]:
    """Assign a Dask worker to each role.

    Every role gets a worker to itself; if there are too few, a worker gets up to as many as it has threads.

    Parameters
    ----------
    roles : sequence of str
        The first ones get a Dask worker to themselves.
    threads : mapping of address to number of threads

    Raises
    ------
    BackendError
        If there are more roles than threads.

    Examples
    --------
    >>> place(["coordinator", "worker 0", "worker 1"], {"a": 1, "b": 2}, None)
    {'coordinator': 'a', 'worker 0': 'b', 'worker 1': 'b'}
    """
    if len(roles) > sum(threads.values()):
        raise BackendError(
            f"the Dask cluster at {scheduler} has {len(threads)} workers with {sum(threads.values())} "
            f"threads, and the run needs {len(roles)} ({', '.join(roles)}): "
            "add Dask workers, or use a smaller cluster"
        )
    if len(roles) > len(threads):
        logger.warning(
            "the Dask cluster has %d workers for %d roles: some share a process and slow each other down",
            *(len(threads), len(roles)),
        )
    order = sorted(threads, key=lambda address: threads[address])  # most threads last
    load = dict.fromkeys(order, 0)
    placed: dict[str, str] = {}
    for role in roles:
        free = [address for address in reversed(order) if load[address] < threads[address]]
        address = order[len(placed)] if len(placed) < len(order) else min(free, key=lambda a: load[a])
        load[address] += 1
        placed[role] = address
    return placed
