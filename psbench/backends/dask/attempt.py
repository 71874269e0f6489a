"""One start of a live run, until it ends or loses a server: the client's side."""

from __future__ import annotations

import logging
import queue
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future as Pending
from typing import Any, NamedTuple

from distributed import Client, Future

from psbench.backends.control import Control
from psbench.backends.dask import tasks
from psbench.backends.dask.coordinator.live_run import PeerFailed
from psbench.backends.dask.dashboard import DashboardPage
from psbench.backends.dask.keys import give_key, keep_key
from psbench.backends.dask.objects import sent
from psbench.backends.dask.place_search import Demand, PlaceSearch
from psbench.backends.dask.placement import Room
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.payloads import largest_message
from psbench.backends.dask.protocol.roles import (
    CLIENT,
    COORDINATOR,
    REPLICA,
    Address,
    RunKey,
    servers_of,
    worker_number,
)
from psbench.backends.dask.protocol.transport import ClientSocket
from psbench.backends.dask.protocol.wire import patience_of
from psbench.backends.dask.record import Record
from psbench.backends.dask.replica_recovery import take_back
from psbench.backends.dask.retirement import Leavers, ServerRetired
from psbench.backends.dask.rpc import ask_scheduler, begin
from psbench.backends.dask.shipping import Shipping
from psbench.backends.outcome import Outcome
from psbench.errors import BackendError, Cancelled, PsbenchError, ServerLost
from psbench.system.start_progress import STAGES, start_progress
from psbench.training.build import Workload

logger = logging.getLogger(__name__)

#: seconds between looks for a request from outside; it reaches the coordinator that fast
_LOOK_S = 0.03
#: seconds in which a coordinator that waits says so, after the time to say it
_SPOKEN_S = 1.0
#: what a task's key may not contain of a title
_UNNAMED = re.compile(r"[^A-Za-z0-9_.]+")


class _HandOver(NamedTuple):
    """The key and the data of a role in transit to its Dask worker."""

    address: str
    task: str
    data: Pending[Future | None]


class Attempt:
    """One start of a run.

    Parameters
    ----------
    workload : Workload
    record : Record
        Takes log and checkpoints, and says where to resume.
    control : Control
    client : Client
        Dask's.
    placed : dict of role to address
    roles : sequence of str
        All of the run; those that are not placed are, when there is room for them.
    """

    def __init__(
        self,
        workload: Workload,
        record: Record,
        control: Control,
        client: Client,
        placed: dict[str, str],
        roles: Sequence[str],
    ) -> None:
        self.workload, self.record, self.control, self.client = workload, record, control, client
        self._limits = workload.experiment.connection
        self._shipping = Shipping(client, workload, placed)
        self._key = RunKey(secrets.token_bytes(32))
        self._largest = largest_message(workload.model_bytes, workload.profile.num_workers)
        title = _UNNAMED.sub("_", workload.experiment.title)
        self._topic = f"psbench-{title}-{secrets.token_hex(8)}"
        self._experiment: Any = workload.experiment  # or a future of it

        # ------------------------------------------------------------ tasks
        #: the task of each role that was started: the last one of a role that was started again
        self._futures: dict[str, Future] = {}
        #: tasks that import for the roles of a process while the coordinator starts
        self._warming: list[Future] = []
        #: addresses at which tasks listen, by role: the coordinator's, the servers' and the replica's
        self._addresses: dict[str, Address] = {}
        #: reports of tasks, put there by Dask's own thread
        self._announced: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._starting = start_progress()

        # ------------------------------------------------------------ the run
        #: None until the coordinator listens
        self._coordinator: ClientSocket | None = None
        self._page = DashboardPage(client, workload.experiment, workload.facts(), self._topic)
        #: None until the coordinator has sent the outcome; no place is sought from then on
        self._outcome: Outcome | None = None
        self._stop_sent = False

        # ------------------------------------------------------------ places of roles
        #: the Dask worker of each role that was started: the last one of a role that was started again
        self.placed = placed
        #: roles without a Dask worker, and since when; also those in `_hand_overs`
        self._missing = {role: time.monotonic() for role in roles if role not in placed}
        #: roles whose key and data travel to another Dask worker
        self._hand_overs: dict[str, _HandOver] = {}
        #: roles that other Dask workers have taken, and when, until they have met the coordinator
        self._taken = dict[str, float]()
        #: roles that have met the coordinator: their death shows there
        self._met = set[str]()
        #: roles that were lost before they met the coordinator, which was sent `RoleGone`
        self._said_gone = set[str]()
        #: free threads, and all Dask workers, as of the last look; empty if the scheduler did not answer
        self._room = Room({}, {}, {})
        self._there: dict[str, int] = {}
        self._search, self._demand = PlaceSearch(client, self._limits), Demand(client, self._limits)
        self._leavers = Leavers(client)

    def start(self) -> None:
        """Start all tasks; on an error, stop those already started."""
        self.client.subscribe_topic(self._topic, lambda event: self._announced.put(event[1]))
        try:
            self._experiment = sent(self.client, self._shipping.experiment, self.placed.values())
            self._start_servers()
            self._await_addresses()
            address = self._addresses[COORDINATOR]
            self._coordinator = ClientSocket(address, self._key, CLIENT, patience_of(self._limits))
            self._coordinator.send(msg.Ready())
            for role in self.placed:
                if role not in self._futures:
                    self._start(role, *self._task(role))
            self._await_scheduler()
        except BaseException:
            self._end()
            raise

    def run(self) -> Outcome:
        """Run to the end; leave no task behind, even after an error.

        Raises
        ------
        ServerLost
            If a parameter server is gone.
        """
        assert self._coordinator is not None
        try:
            return self._follow(self._coordinator)
        except ServerLost as lost:
            if REPLICA in self._addresses and not isinstance(lost, ServerRetired):
                take_back(self._addresses[REPLICA], self._key, self.record, self._limits)
            raise
        finally:
            self._end()

    # ---------------------------------------------------------------- tasks

    def _start(self, role: str, task: Callable[..., None], *arguments: Any) -> None:
        """Start a role before the run begins."""
        name, address, go_on = self._name(role), self.placed[role], self.control.check
        self._leavers.watch(role, address)
        give_key(self.client, self._key, name, address, self._limits, go_on)
        self._submit(role, name, self._shipping.to(role, go_on), task, *arguments)

    def _name(self, role: str) -> str:
        """Return a new task name for a role; a restarted role gets another name."""
        return f"{self._topic}-{secrets.token_hex(2)}-{role.replace(' ', '-')}"

    def _submit(
        self, role: str, name: str, data: Future | None, task: Callable[..., None], *arguments: Any
    ) -> None:
        self._futures[role] = self.client.submit(
            task,
            self._experiment,
            data,
            *arguments,
            key=name,
            workers=[self.placed[role]],
            allow_other_workers=False,
            resources=(self._limits.resources or None) if worker_number(role) is not None else None,
            pure=False,
            retries=0,
        )

    def _start_servers(self) -> None:
        """Start the coordinator; the other processes import their modules meanwhile."""
        others = [role for role in self.placed if role != COORDINATOR]
        self._start(
            COORDINATOR, tasks.coordinate, self._largest, self._topic, [*others, CLIENT], self.record.start
        )
        rest = {self.placed[role] for role in others} - {self.placed[COORDINATOR]}
        for i, address in enumerate(sorted(rest)):
            names = [role for role in others if self.placed[role] == address]
            placed = {"workers": [address], "pure": False, "key": f"{self._topic}-warm-{i}"}
            self._warming.append(self.client.submit(tasks.warm_up, self._topic, names, **placed))

    def _servers(self) -> list[str]:
        """Return the roles of parameter servers in processes other than the coordinator's."""
        return [role for role in self.placed if role.startswith("server ")]

    def _await_addresses(self) -> None:
        """Wait for the coordinator's address, start the other servers, and wait for their addresses."""
        self._await(COORDINATOR)
        for number, role in enumerate(self._servers(), 1):
            self._start(role, tasks.serve, self._largest, self._topic, number, self._addresses[COORDINATOR])
        for role in self._servers():
            self._await(role)

    def _await_scheduler(self) -> None:
        """Wait until the scheduler has these tasks, so that the next run's placement counts them.

        One whose Dask worker is lost at this moment is never assigned.
        """
        deadline = time.monotonic() + self._limits.settle_within_s
        missing = list(self._futures.values())
        while missing and time.monotonic() < deadline:
            under_way = self._ask_scheduler("processing", go_on=self.control.check)
            known = {str(key) for keys in under_way.values() for key in keys}
            missing = [future for future in missing if str(future.key) not in known and not future.done()]

    def _await(self, role: str) -> None:
        began = time.monotonic()
        next_line_s = self._limits.say_after_s
        while role not in self._addresses:
            try:
                self._handle_report(self._announced.get(timeout=0.1))
            except queue.Empty:
                waited = time.monotonic() - began
                self._check_starting(role, waited)
                if waited > next_line_s:
                    next_line_s += self._limits.say_after_s
                    logger.warning("waiting for %s to listen, for %.0f s", self._what(role), waited)

    def _handle_report(self, announcement: dict[str, Any]) -> None:
        """Handle a task's report: its address, or its progress."""
        if "address" in announcement:
            self._addresses[announcement["name"]] = Address(*announcement["address"])
        else:
            self._starting.reach(announcement["name"], announcement["stage"])
            if announcement["stage"] == STAGES[-1]:
                self._met.add(announcement["name"])
                self._taken.pop(announcement["name"], None)

    def _check_starting(self, role: str, waited_s: float) -> None:
        self.control.check()
        if self._futures[role].done():
            self._raise_failure(role)
        if self.placed[role] not in self._ask_scheduler("nthreads", go_on=self.control.check):
            raise ServerLost(
                f"{self._what(role)} is gone: its process was killed before it could listen", role
            )
        if waited_s > self._limits.listen_within_s:
            raise BackendError(
                f"{self._what(role)} did not listen within {self._limits.listen_within_s:g} s "
                f"(connection.listen_within_s): is Dask worker {self.placed[role]} busy?"
            )

    def _task(self, role: str) -> tuple[Any, ...]:
        """Return the function and the arguments of a training worker, the evaluator or the replica."""
        worker = worker_number(role)
        if worker is None:
            task = tasks.replicate if role == REPLICA else tasks.evaluate
            return task, self._topic, self._addresses[COORDINATOR]
        servers = [self._addresses[name] for name in (COORDINATOR, *self._servers())]
        return tasks.train, self._largest, self._topic, worker, servers

    # ---------------------------------------------------------------- following the run

    def _follow(self, coordinator: ClientSocket) -> Outcome:
        """Handle the coordinator's messages until the run is over."""
        heard = said = time.monotonic()
        while True:
            message = coordinator.receive(_LOOK_S)
            now = time.monotonic()
            if message is not None:
                heard = said = now
            elif now > said + self._limits.say_after_s + _SPOKEN_S:  # else it says for whom it waits
                said = now
                logger.warning("no message from %s for %.0f s", self._what(COORDINATOR), now - heard)
            while not self._announced.empty():
                self._handle_report(self._announced.get())
            if isinstance(message, msg.StopRun) or (message is None and coordinator.lost):
                break
            if message is not None:
                self._read(message, coordinator)
            self._pass_on_requests(coordinator)
            for role in self._leavers.of(self.placed):
                if not self.control.stopping:  # else the run ends before they must leave
                    coordinator.send(msg.RoleLeaves(role))
            if self._missing or self._taken or self._unmet:
                self._look_around(coordinator)
        if self._outcome is None:
            self._raise_failure(COORDINATOR)
        assert self._outcome is not None
        return self._outcome

    def _read(self, message: Message, coordinator: ClientSocket) -> None:
        if isinstance(message, msg.LogRows):
            self.record.extend(message)
            self._page.show(self.record.log)
        elif isinstance(message, msg.StoreCheckpoint):
            self.record.store(message)
        elif isinstance(message, msg.RoleLost):
            self._missing[message.name] = time.monotonic()
        elif isinstance(message, msg.Incident):
            self.record.note(message.text)
            self.control.said = message.text
        elif isinstance(message, msg.Waiting):
            logger.warning("%s", message.text)
        elif isinstance(message, msg.RunMoves):
            why = f"the Dask worker of {self._what(message.name)} is being retired"
            raise ServerRetired(why, self._leavers.addresses)
        elif isinstance(message, msg.RunOutcome):
            self._conclude(message)
            coordinator.send(msg.OutcomeReceived())

    def _conclude(self, left: msg.RunOutcome) -> None:
        facts = left.facts.data | {"checkpoints": self.record.paths, "incidents": self.record.incidents}
        parameters, buffers = left.tensors["parameters"], left.tensors["buffers"]
        self._outcome = Outcome(left.status, left.reason, parameters, buffers, facts)
        self._page.end(f"{left.status}: {left.reason}")

    def _pass_on_requests(self, coordinator: ClientSocket) -> None:
        if not self.control.pending:
            return
        for press in self.control.take_presses():
            coordinator.send(msg.PressWorker(press.worker, press.what, press.factor))
        for request in self.control.take():
            coordinator.send(msg.RequestSwitch(request.to))
        if self.control.stopping and not self._stop_sent:
            self._stop_sent = True
            coordinator.send(msg.RequestStop(checkpoint=self.record.has_folder))

    @property
    def _unmet(self) -> list[str]:
        """The started roles that have not connected to the coordinator yet."""
        return [role for role in self._futures if role not in self._met and role not in self._said_gone]

    def _look_around(self, coordinator: ClientSocket) -> None:
        """Find roles that were lost before they connected, and new places for lost roles.

        Nothing here waits for a Dask worker or the scheduler: the run goes on, and so do requests to it.
        """
        if self._outcome is not None:
            return
        now = time.monotonic()
        for role in [role for role, each in self._hand_overs.items() if each.data.done()]:
            self._end_hand_over(role, now)
        room = self._search.look(self._leavers.addresses, now)
        if room is not None:
            self._take_room(coordinator, room, now)
        if self._missing:
            self._find_places(coordinator, now)
        else:
            self._search.end_asking()

    def _take_room(self, coordinator: ClientSocket, room: Room, now: float) -> None:
        """Store the cluster's room; drop hand-overs to Dask workers that are gone, and report lost roles."""
        self._room, self._there = room, room.threads
        for role, (address, _, pending) in [*self._hand_overs.items()]:
            if not self._there or address in self._there:
                room.use(address)
            else:  # it is gone, or being retired
                pending.cancel()
                del self._hand_overs[role]
        if self._there:  # else the scheduler does not answer
            for role in self._unmet:
                if self.placed[role] not in self._there and role not in self._taken:
                    self._said_gone.add(role)
                    coordinator.send(msg.RoleGone(role))
        for role in self._taken.keys() - self._missing.keys():  # lost or frozen before it could report
            is_late = now > self._taken[role] + self._limits.start_within_s
            if is_late or (self._there and self.placed[role] not in self._there):
                self._search.doubt(self.placed[role])
                self._missing[role] = now
        if not self._missing:
            self._demand.end()
        elif self._there:
            self._search.ask(room.free)
            self._demand.ask(len(self._missing))

    def _find_places(self, coordinator: ClientSocket, now: float) -> None:
        """Assign lost roles to free Dask workers that respond; report roles without a place."""
        of_servers = {self.placed[name] for name in (COORDINATOR, *self._servers())}
        silent = self._room.free.keys() - self._search.answered
        for role in sorted(self._missing.keys() - self._hand_overs.keys()):  # the evaluator first
            if address := self._room.take(role, silent | (of_servers if role == REPLICA else set())):
                self._hand_over(role, address)
            elif now > self._missing[role] + self.workload.experiment.recovery.wait_for_workers:
                self._missing[role] = now
                coordinator.send(msg.RoleLost(role))

    def _hand_over(self, role: str, address: str) -> None:
        """Start the transfer of a role's key and data to another Dask worker."""
        name, self.placed[role] = self._name(role), address
        self._leavers.watch(role, address)
        send = self._shipping.begin(role)

        async def hand_over() -> Future | None:
            await self.client.run(keep_key, name, self._key, workers=[address])
            return await send()

        pending = begin(self.client, hand_over, self._limits.answer_within_s)
        self._hand_overs[role] = _HandOver(address, name, pending)

    def _end_hand_over(self, role: str, now: float) -> None:
        """Start a role on the Dask worker that has its key; if that worker is lost, search again."""
        address, name, pending = self._hand_overs.pop(role)
        if error := pending.exception():
            logger.info("%s could not be started on %s: %r", role, address, error)
            self._search.doubt(address)
            return
        self._submit(role, name, pending.result(), *self._task(role))
        self._taken[role] = now
        del self._missing[role]
        self._search.look_again(now)

    # ---------------------------------------------------------------- failing and ending

    def _raise_failure(self, role: str) -> None:
        """Raise a task's error as a psbench error with the task's traceback, or report the task as lost."""
        error = self._error_of(role)
        if isinstance(error, PeerFailed):
            raise self._of_peer(error) from None
        if isinstance(error, Cancelled) and not self.control.stopping:  # it takes this process for gone
            raise ServerLost(
                f"{self._what(role)} and this process lost their connection: no message for "
                f"{self._limits.silence_s:g} s (connection.silence_s), or a broken connection; is a machine "
                "too busy?"
            )
        if isinstance(error, PsbenchError):
            raise error
        if error is None or type(error).__name__ == "KilledWorker":
            how = "was killed" if self._is_gone(role) else "does not respond: is it frozen?"
            raise ServerLost(f"{self._what(role)} is gone: its process {how}", role)
        raise BackendError(f"{role} failed: {error!r}") from error

    def _is_gone(self, role: str) -> bool:
        """Return whether Dask's scheduler has lost the Dask worker of a role."""
        try:
            return self.placed[role] not in self._ask_scheduler("nthreads", is_needed=False)
        except BackendError:
            return True

    def _of_peer(self, failed: PeerFailed) -> PsbenchError:
        """Return the error of a failed task: psbench's own, or a BackendError with the traceback."""
        error = self._error_of(failed.name)
        return error if isinstance(error, PsbenchError) else BackendError(str(failed))

    def _error_of(self, role: str) -> BaseException | None:
        """Return the error of a task that has ended, or is about to; None without one."""
        future = self._futures[role]
        self._unfinished([role])
        if future.status != "error":
            return None
        error: BaseException = future.exception(timeout=self._limits.settle_within_s)
        return error

    def _unfinished(self, roles: Iterable[str]) -> list[str]:
        """Wait for tasks; return those that do not end, such as the tasks of lost Dask workers."""
        left, began, next_look = list(roles), time.monotonic(), 0.0
        while left and (now := time.monotonic()) < began + self._limits.settle_within_s:
            if now >= next_look and self.client.status == "running":
                next_look = now + 0.2
                there = self._ask_scheduler("nthreads", is_needed=False)
                left = [role for role in left if self.placed[role] in there or self._futures[role].done()]
            left = [role for role in left if not self._futures[role].done()]
            time.sleep(0.01 if left else 0.0)
        return left

    def _what(self, role: str) -> str:
        if role != COORDINATOR:
            return role
        has_server = any(map(servers_of, self.workload.experiment.strategy.compositions))
        return "parameter server 0" if has_server else "the coordinator"

    def _ask_scheduler(self, question: str, *arguments: Any, **options: Any) -> Any:
        return ask_scheduler(self.client, question, *arguments, limits=self._limits, **options)

    def _end(self) -> None:
        """Stop all tasks, wait for them, and remove the run from the scheduler."""
        if self._coordinator is not None:
            self._coordinator.send(msg.RequestStop(checkpoint=False))
            self._coordinator.close()
        self._search.end()
        for hand_over in self._hand_overs.values():
            hand_over.data.cancel()
        self._shipping.end()
        self._demand.end()
        if self.client.status != "running":
            if self._outcome is not None:  # else what is raised says so
                self.record.note(
                    "the Dask scheduler is gone; the run was not affected, and its tasks have ended"
                )
            return
        try:
            if busy := self._unfinished(self._futures):
                logger.info("still busy with a last step, or lost: %s", ", ".join(busy))
            self.client.unsubscribe_topic(self._topic)
            self._leavers.end()
            tasks = [*self._futures.values(), *self._warming]
            self._ask_scheduler("cancel", tasks, force=True, is_needed=False)
        except Exception as error:  # the scheduler itself is gone and cannot be asked
            self.record.note(f"the Dask scheduler was lost at the end: {error}")
