"""The client's side of a live run: starts the tasks, stores log and checkpoints, passes on requests."""

from __future__ import annotations

import logging
import queue
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from distributed import Client, Future, wait

from psbench.backends.control import Control, Observer
from psbench.backends.dask import tasks
from psbench.backends.dask.cluster import connected, place
from psbench.backends.dask.coordinator.checkpointing import Start
from psbench.backends.dask.coordinator.handlers import PeerFailed
from psbench.backends.dask.objects import check_objects, sent
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.roles import (
    CLIENT,
    COORDINATOR,
    EVALUATOR,
    Address,
    roles_of,
    servers_of,
    worker_name,
)
from psbench.backends.dask.protocol.transport import ClientSocket
from psbench.backends.dask.shipping import Shipping, bare
from psbench.backends.outcome import Outcome
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.folder import CheckpointFolder
from psbench.core.log import ROW, EventLog
from psbench.errors import BackendError, Cancelled, PsbenchError, ServerLost
from psbench.training.workload import Workload

logger = logging.getLogger(__name__)

#: seconds between looks for a request from outside; it reaches the coordinator that fast
_LOOK_S = 0.03
#: seconds that a server may take to load and listen
_LISTEN_S = 120.0
#: seconds that tasks may take to end when told to; a step under way must finish first
_END_S = 5.0


def run_dask(
    workload: Workload,
    log: EventLog,
    control: Control,
    observer: Observer | None = None,
    checkpoints: CheckpointFolder | None = None,
    start: Checkpoint | None = None,
) -> Outcome:
    """Run an experiment on real Dask workers, in real time.

    Without a scheduler's address a cluster of processes is started on this machine, bound to loopback, and
    ended with the run; a script that does so must guard its start with ``if __name__ == "__main__":``, as
    always when processes are spawned.

    The cluster's profile is emulated on top of the real machines: a slower worker waits as long as it would
    have computed, one that fails forgets what it computes, and one that joins late or rejoins begins then.
    The network is the real one.

    Parameters
    ----------
    workload : Workload
    log : EventLog
        Grows a few times a second while the run goes on.
    control : Control
    observer : callable or None
        Called with the log, in this thread, whenever it has grown.
    checkpoints : CheckpointFolder or None
        Where checkpoints go; none are written without it.
    start : Checkpoint or None
        Where to resume; the log up to there is in `log` already.

    Raises
    ------
    BackendError
        If the scheduler does not answer, has too few workers, or a task fails; its message then holds the
        task's own traceback.
    ServerLost, WorkerLost
        If a server, or every worker, is gone.
    """
    check_objects(bare(workload.experiment))
    roles = roles_of(workload.experiment)
    with connected(workload.experiment.scheduler, len(roles)) as client:
        placed = place(roles, client.nthreads(), workload.experiment.scheduler)
        return _Run(workload, log, control, observer, checkpoints, client, placed, start).run()


class _Run:
    """One run, from the first task to the last."""

    def __init__(
        self,
        workload: Workload,
        log: EventLog,
        control: Control,
        observer: Observer | None,
        checkpoints: CheckpointFolder | None,
        client: Client,
        placed: dict[str, str],
        start: Checkpoint | None,
    ) -> None:
        self.workload, self.log, self.control, self.observer = workload, log, control, observer
        self.client, self.placed = client, placed
        self._shipping = Shipping(client, workload, placed)
        self._start_from = None if start is None else Start(start, len(log), list(log.texts))
        self._key = secrets.token_bytes(32)
        self._topic = f"psbench-{secrets.token_hex(8)}"
        self._futures: dict[str, Future] = {}
        self._addresses: dict[str, Address] = {}
        self._folder, self._checkpoints = checkpoints, [] if checkpoints is None else checkpoints.paths
        self._outcome: Outcome | None = None
        self._stop_sent = False
        self._experiment: Any = workload.experiment  # or a future of it
        self._warming: list[Future] = []

    def run(self) -> Outcome:
        """Run to the end; whatever happens, no task is left behind."""
        announced: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.client.subscribe_topic(self._topic, lambda event: announced.put(event[1]))
        coordinator = None
        try:
            self._experiment = sent(self.client, self._shipping.experiment, self.placed.values())
            self._start_servers()
            self._await_addresses(announced)
            coordinator = ClientSocket(self._addresses[COORDINATOR], self._key, CLIENT)
            coordinator.send(msg.Ready())
            self._start_workers()
            return self._follow(coordinator)
        finally:
            self._end(coordinator)

    # ---------------------------------------------------------------- tasks

    def _start(self, role: str, task: Callable[..., None], *arguments: Any) -> None:
        self._futures[role] = self.client.submit(
            task,
            *(self._experiment, self._shipping.to(role), self._key, *arguments),
            key=f"{self._topic}-{role.replace(' ', '-')}",
            workers=[self.placed[role]],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )

    def _start_servers(self) -> None:
        """Start the coordinator; the other processes import meanwhile what they need."""
        others = [role for role in self.placed if role != COORDINATOR]
        self._start(COORDINATOR, tasks.coordinate, self._topic, [*others, CLIENT], self._start_from)
        rest = {self.placed[role] for role in others} - {self.placed[COORDINATOR]}
        self._warming = [
            self.client.submit(tasks.warm_up, workers=[address], pure=False, key=f"{self._topic}-warm-{i}")
            for i, address in enumerate(sorted(rest))
        ]

    def _servers(self) -> list[str]:
        """Return the parameter servers that have tasks of their own."""
        return [role for role in self.placed if role.startswith("server ")]

    def _await_addresses(self, announced: queue.SimpleQueue[dict[str, Any]]) -> None:
        """Wait for the coordinator's address, start the other servers, and wait for theirs."""
        self._await(COORDINATOR, announced)
        for number, role in enumerate(self._servers(), 1):
            self._start(role, tasks.serve, self._topic, number, self._addresses[COORDINATOR])
        for role in self._servers():
            self._await(role, announced)

    def _await(self, role: str, announced: queue.SimpleQueue[dict[str, Any]]) -> None:
        deadline = time.monotonic() + _LISTEN_S
        while role not in self._addresses:
            try:
                announcement = announced.get(timeout=0.1)
            except queue.Empty:
                self._check_starting(role, deadline)
            else:
                self._addresses[announcement["name"]] = Address(*announcement["address"])

    def _check_starting(self, role: str, deadline: float) -> None:
        if self.control.stopping:
            raise Cancelled("stopped by hand before training began")
        if self._futures[role].done():
            self._raise_failure(role)
        if time.monotonic() > deadline:
            raise BackendError(
                f"{role} did not start within {_LISTEN_S:.0f} s: is Dask worker {self.placed[role]} busy?"
            )

    def _start_workers(self) -> None:
        servers = [self._addresses[role] for role in (COORDINATOR, *self._servers())]
        for worker in range(self.workload.profile.num_workers):
            self._start(worker_name(worker), tasks.train, worker, servers)
        self._start(EVALUATOR, tasks.evaluate, self._addresses[COORDINATOR])

    # ---------------------------------------------------------------- following the run

    def _follow(self, coordinator: ClientSocket) -> Outcome:
        """Take what the coordinator sends until the run is over."""
        while True:
            message = coordinator.receive(_LOOK_S)
            if isinstance(message, msg.Stop) or (message is None and coordinator.lost):
                break
            if message is not None:
                self._read(message, coordinator)
            self._pass_on_requests(coordinator)
        if self._outcome is None:
            self._raise_failure(COORDINATOR)
        assert self._outcome is not None
        return self._outcome

    def _read(self, message: Message, coordinator: ClientSocket) -> None:
        if isinstance(message, msg.LogRows):
            self._extend_log(message)
        elif isinstance(message, msg.StoreCheckpoint):
            self._store(message)
        elif isinstance(message, msg.RunOutcome):
            self._conclude(message)
            coordinator.send(msg.OutcomeReceived())

    def _extend_log(self, new: msg.LogRows) -> None:
        self.log.extend(np.frombuffer(new.rows, dtype=ROW), new.texts)
        if self.observer is not None:
            self.observer(self.log)

    def _store(self, new: msg.StoreCheckpoint) -> None:
        """Write a checkpoint to its file."""
        if self._folder is None:
            return
        state = new.state | {"spec": self.workload.experiment.spec()}
        self._folder.write(new.label, Checkpoint(new.tensors, state))

    def _conclude(self, left: msg.RunOutcome) -> None:
        facts = {"checkpoints": self._checkpoints} | left.facts
        parameters, buffers = left.tensors["parameters"], left.tensors["buffers"]
        self._outcome = Outcome(left.status, left.reason, parameters, buffers, facts)

    def _pass_on_requests(self, coordinator: ClientSocket) -> None:
        if not self.control.pending:
            return
        for request in self.control.take():
            coordinator.send(msg.RequestSwitch(request.to))
        if self.control.stopping and not self._stop_sent:
            self._stop_sent = True
            coordinator.send(msg.RequestStop())

    # ---------------------------------------------------------------- failing and ending

    def _raise_failure(self, role: str) -> None:
        """Raise what ended a task, as our own error with the task's traceback, or say that it was lost."""
        error = self._error_of(role)
        if isinstance(error, PeerFailed):
            raise self._of_peer(error) from None
        if isinstance(error, ServerLost):
            raise ServerLost(f"{error}; {self._last_checkpoint()}") from None
        if isinstance(error, PsbenchError):
            raise error
        if error is None or type(error).__name__ == "KilledWorker":
            raise ServerLost(f"{self._what(role)} is gone: its process was killed; {self._last_checkpoint()}")
        raise BackendError(f"{role} failed: {error!r}") from error

    def _of_peer(self, failed: PeerFailed) -> PsbenchError:
        """Return a task's own error if it is one of ours, or ours with its traceback."""
        error = self._error_of(failed.name)
        return error if isinstance(error, PsbenchError) else BackendError(str(failed))

    def _error_of(self, role: str) -> BaseException | None:
        """Return what a task that has ended, or is about to, has raised; None if it has not."""
        future = self._futures[role]
        with suppress(TimeoutError):
            self._wait([future])
        error: BaseException | None = future.exception(timeout=_END_S) if future.status == "error" else None
        return error

    def _wait(self, futures: list[Future]) -> None:
        with self.client.as_current():
            wait(futures, timeout=_END_S)

    def _what(self, role: str) -> str:
        has_server = any(map(servers_of, self.workload.experiment.strategy.compositions))
        return "parameter server 0" if role == COORDINATOR and has_server else f"the {role}"

    def _last_checkpoint(self) -> str:
        if self._checkpoints:
            return f"the last checkpoint is {self._checkpoints[-1]}"
        return "no checkpoint was written (set checkpoint_every, and an output folder)"

    def _end(self, coordinator: ClientSocket | None) -> None:
        """Stop all tasks and wait for them; then nothing of the run is left on the scheduler."""
        if coordinator is not None:
            coordinator.send(msg.RequestStop())
            coordinator.close()
        futures = [*self._futures.values(), *self._warming]
        self._shipping.end()
        try:
            self._wait(futures)
        except TimeoutError:
            busy = [role for role, future in self._futures.items() if not future.done()]
            logger.info("still busy with a last step, or lost: %s", ", ".join(busy))
        except Exception as error:  # the scheduler itself is gone: there is nobody left to ask
            logger.warning("the tasks' end could not be awaited: %s", error)
        self.client.unsubscribe_topic(self._topic)
        self.client.cancel(futures, force=True)
