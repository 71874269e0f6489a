"""A Dask cluster of processes on this machine."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import dask
import psutil
from distributed import LocalCluster, Nanny, Security, Status, Worker

from psbench.errors import BackendError
from psbench.system import fork_server, private_apis
from psbench.system.signals import ignore_ending
from psbench.system.start_progress import start_progress

logger = logging.getLogger(__name__)

#: seconds that the processes of a local cluster may take to start, and to end before they are killed
_UP_S, _CLOSE_S = 120.0, 10.0
#: seconds between looks at which of them are up
_LOOK_S = 0.03
_SPAWN = "distributed.nanny.pre-spawn-environ"
_METHOD = "distributed.worker.multiprocessing-method"
#: Python's own processes, which stay until this one ends: they start and tidy up after others
_HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")

_LOCK = threading.Lock()
_starting: list[None] = []
_ended = set[str]()  # addresses of schedulers whose clusters start no process any more
_restore = ExitStack()


def dask_setup(worker: Worker) -> None:
    """Let a process of the cluster ignore Ctrl-C and SIGTERM: the main process handles them."""
    ignore_ending()


class _KillingNanny(Nanny):
    """Kills its process with a signal: no task runs by then, and torch takes seconds to exit."""

    async def instantiate(self) -> Status:
        """Start or restart the process with the settings of a local cluster."""
        if self.scheduler_addr in _ended:
            await self.close(reason="run-ended")
            return self.status
        with _settings():
            return await super().instantiate()

    async def kill(self, timeout: float = _CLOSE_S, reason: str = "run-ended") -> None:
        if self.process is not None and self.process.process is not None:
            await self.process.process.kill()
        await super().kill(timeout=timeout, reason=reason)


def start_cluster(processes: int, security: Security | None = None) -> LocalCluster:
    """Start a Dask cluster on this machine, reachable only from it, with one thread per process.

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
        return _cluster(processes, security)


def _cluster(processes: int, security: Security | None) -> LocalCluster:
    if dask.config.get(_METHOD) == "forkserver":
        fork_server.ensure_running()
        private_apis.keep_preloaded()
    # a message under way as a cluster closes is no fault, but Dask logs it with a traceback once its handlers
    # are no longer silenced
    logging.getLogger("distributed.batched").setLevel(logging.WARNING)
    return private_apis.patient_cluster(_UP_S)(
        n_workers=processes,
        threads_per_worker=1,
        processes=True,
        worker_class=_KillingNanny,
        preload=[__name__],  # where `dask_setup` is
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
def local_cluster(
    processes: int,
    security: Security | None = None,
    go_on: Callable[[], None] = lambda: None,
    within_s: float = _UP_S,
) -> Iterator[LocalCluster]:
    """Yield a cluster on this machine; at the end all its processes have exited or are killed.

    Parameters
    ----------
    processes, security
        See `start_cluster`.
    go_on : callable
        Called often while they start; raises to give up.
    within_s : float, seconds
        How long they may take to start.

    Raises
    ------
    BackendError
        If a process does not start.
    """
    before = set(_children())
    with _settings():
        cluster = _cluster(0, security)
    try:
        with _settings():
            cluster.scale(processes)
            _await_processes(cluster, processes, go_on, within_s)
        yield cluster
    finally:
        own = [child for child in _children() if child not in before]
        try:
            cluster.close(timeout=_CLOSE_S)
        except TimeoutError:
            logger.warning("the cluster did not close within %g s", _CLOSE_S)
            _ended.add(cluster.scheduler_address)  # or its nannies start those again that are killed below
        finally:
            _, left = psutil.wait_procs(own, timeout=1.0)
            for process in left:
                logger.warning("process %d of the cluster did not end; killing it", process.pid)
                process.kill()
            psutil.wait_procs(left, timeout=_CLOSE_S)


def _await_processes(
    cluster: LocalCluster, processes: int, go_on: Callable[[], None], within_s: float
) -> None:
    """Wait until all processes are up, and report their progress."""
    starting, deadline = start_progress(), time.monotonic() + within_s
    while len(there := list(cluster.scheduler.workers)) < processes:
        starting.see(there)
        go_on()
        failed = any(each.status == Status.failed for each in list(cluster.workers.values()))
        if failed or time.monotonic() > deadline:
            why = (
                "one failed to start"
                if failed
                else f"no further process started within {within_s:g} s (connection.listen_within_s)"
            )
            raise BackendError(
                f"{len(there)} of {processes} processes of the local cluster are up, but {why}"
            )
        time.sleep(_LOOK_S)
    starting.see(there)


def _children() -> list[psutil.Process]:
    """Return the processes that multiprocessing started here, except its own helpers.

    What else has been started meanwhile, such as a browser, is not the cluster's to end.
    """
    me, found = psutil.Process(), []
    for child in me.children(recursive=True):
        with suppress(psutil.Error):  # it may be gone by now
            # a fork has the command line of the fork server, but another parent
            command = " ".join(child.cmdline())
            is_helper = child.ppid() == me.pid and any(name in command for name in _HELPERS)
            if "multiprocessing." in command and not is_helper:
                found.append(child)
    return found


@contextmanager
def _settings() -> Iterator[None]:
    """Set the environment of a local cluster's processes; the last context to exit restores it.

    Processes are started side by side, and one that is lost is started again at any time.
    """
    with _LOCK:
        if not _starting:
            _restore.enter_context(_set())
        _starting.append(None)
    try:
        yield
    finally:
        with _LOCK:
            _starting.pop()
            if not _starting:
                _restore.close()


@contextmanager
def _set() -> Iterator[None]:
    """Set Dask's configuration, and restore this process's environment; do not rerun the user's script.

    Dask's nanny sets MALLOC_TRIM_THRESHOLD_, with which torch takes 1.6 times as long, and writes it into the
    environment of this process, from which every later process would inherit it.
    """
    spawn = {k: v for k, v in dask.config.get(_SPAWN).items() if k != "MALLOC_TRIM_THRESHOLD_"}
    settings: dict[str, Any] = {
        _SPAWN: spawn,
        _METHOD: "forkserver" if fork_server.is_available() else "spawn",
        # monitoring that is not read here: pages, which take as long to import as a worker to start, and
        # looks at event loop, machine and stack, 150 a second in each process, that interrupt the tasks
        "distributed.worker.http.routes": [],
        "distributed.scheduler.http.routes": [],
        "distributed.admin.tick.interval": "1s",
        "distributed.admin.system-monitor.interval": "10s",
        "distributed.admin.system-monitor.disk": False,
        "distributed.worker.profile.enabled": False,
        "distributed.scheduler.allowed-failures": 0,  # a task that was lost is not started elsewhere
    }
    environment = dict(os.environ)
    try:
        with dask.config.set(settings), private_apis.without_main():
            os.environ |= {name: str(value) for name, value in spawn.items()} | environment
            yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
