"""A Dask cluster of processes on this machine."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import dask
import psutil  # type: ignore[import-untyped]
from distributed import LocalCluster, Nanny, Security

from psbench.system import fork_server

logger = logging.getLogger(__name__)

#: seconds that the processes of a local cluster may take to end before they are killed
_CLOSE_S = 10.0
_SPAWN = "distributed.nanny.pre-spawn-environ"
_METHOD = "distributed.worker.multiprocessing-method"
#: Python's own processes, which stay until this one ends: they start and tidy up after others
_HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")


def ignore_interrupts() -> None:
    """Have this process ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _KillingNanny(Nanny):  # type: ignore[misc]  # Dask is untyped
    """Ends its process with a signal: no task runs by then, and torch takes seconds to exit."""

    async def kill(self, timeout: float = _CLOSE_S, reason: str = "run-ended") -> None:
        if self.process is not None and self.process.process is not None:
            await self.process.process.kill()
        await super().kill(timeout=timeout, reason=reason)


def start_cluster(processes: int, security: Security | None = None) -> LocalCluster:
    """Start a Dask cluster on this machine, reachable from it only, with one thread a process.

    Parameters
    ----------
    processes : int
        One for each role of a run: training workers, servers (at least one) and the evaluator.
    security : Security or None
        Dask's, as `Security.temporary()`, so that no other user of this machine can reach the scheduler; a
        run then needs a client of it: `run(..., client=Client(cluster))`.

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
            protocol=None if security is None else "tls://",
            security=security,
            memory_limit=0,
            dashboard_address=None,
            # without an address the scheduler's page would try port 8787, and warn if it is taken
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.CRITICAL,  # the run itself reports what goes wrong
        )


@contextmanager
def local_cluster(processes: int, security: Security | None = None) -> Iterator[LocalCluster]:
    """Give a cluster of this machine; at the end all its processes are gone, killed if need be."""
    before = set(_children())
    cluster = start_cluster(processes, security)
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
