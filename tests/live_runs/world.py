"""A live run with all its processes, none of which is real: what happens next is a choice."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.instructions import (
    FIRST_SERVER,
    Answer,
    End,
    Forget,
    Input,
    Instruction,
    Look,
    Looked,
    Refused,
    Send,
    Tick,
)
from psbench.backends.dask.protocol.messages import PushMessage
from psbench.backends.dask.protocol.roles import (
    CLIENT,
    COORDINATOR,
    EVALUATOR,
    REPLICA,
    roles_of,
    worker_number,
)
from psbench.backends.dask.protocol.transport import Received
from psbench.backends.dask.record import Record
from psbench.core.collective import Shares
from psbench.core.log import EventLog
from psbench.core.peer_to_peer import PeerToPeer
from psbench.errors import BackendError, Cancelled, ServerLost, WorkerLost
from psbench.testing.invariants import BrokenContract
from psbench.training.build import Workload
from tests.live_runs.channels import Channels
from tests.live_runs.checks import Checks
from tests.live_runs.gossip_workers import FakeGossipWorker
from tests.live_runs.replica import state_given_back
from tests.live_runs.servers import FakeServer
from tests.live_runs.workers import FakeWorker, Rings

#: messages that a process may send twice without harm, which a schedule repeats
_REPEATED = (
    *(msg.VoteMessage, msg.ReportMessage, msg.WorkerModel, msg.WorkerState, msg.StateReply),
    *(msg.NumberReply, msg.RingVerdict, msg.EvaluationDone, msg.LossMeasured, msg.StateKept, msg.RoleLeaves),
    *(msg.RequestStop, msg.RequestSwitch, msg.PeerRefused, msg.ClosedStrangers),
)
#: rounds in which a run must end once the faults are over, a tenth of a second each
_ROUNDS = 1500


class World:
    """The processes of one run, and the messages between them.

    Parameters
    ----------
    workload : Workload
    rng : numpy Generator
        Draws what the processes do that no choice says.
    run_class : type
        `LiveRun`, or one with a fault.
    before : World or None
        One that has ended: this run goes on from the last checkpoint of its client.
    absent : str
        A worker for which there is no place at the beginning.

    Attributes
    ----------
    log, record : EventLog, Record
        The client's.
    end : End or None
        How the run ended.
    deaths : set of str
        Roles whose processes were killed.
    """

    def __init__(
        self,
        workload: Workload,
        rng: np.random.Generator,
        run_class: type[LiveRun] = LiveRun,
        before: World | None = None,
        absent: str = "",
    ) -> None:
        self._workload, self._rng = workload, rng
        self.now, self._channels, self._rings = 0.0, Channels(), Rings()
        self._is_gossip = any(
            isinstance(each.placement, PeerToPeer) for each in workload.experiment.strategy.compositions
        )
        self._starts = Counter[int]()  # of each worker's processes
        names = [name for name in roles_of(workload.experiment) if name not in (COORDINATOR, absent)]
        if before is None:
            self.log = EventLog()
            self.record = Record(workload.experiment, self.log, None, None, None)
        else:
            self.log, self.record = before.log, before.record
            self.record.go_back()
        self.live = run_class(workload, [*names, CLIENT], self.record.start)
        self.checks = Checks(workload, self.live, self.record, self.log)
        if before is not None:
            self.checks.lacked_evaluator = before.checks.evaluator_was_lost
            self.checks.resumed_at |= before.checks.resumed_at
        self._inputs: deque[Input] = deque()  # of the coordinator's own process, before all messages
        self.first_server = FakeServer(workload, 0, self._never)
        self.servers: dict[str, FakeServer] = {}
        self.workers: dict[str, FakeWorker] = {}
        self.alive: set[str] = set()
        self._addresses: dict[str, str] = {}  # of workers that other workers reach, and whose each is
        self._met: set[str] = set()  # whose greeting the coordinator has read: it can send to no others
        self.deaths: set[str] = set()
        self._unnoticed: set[str] = set()  # dead, and not found dead yet
        self._missing = {absent} - {""}  # roles that the client looks for a place for
        self._replaced: set[str] = set()
        self._refused_evaluator = False
        self.retired = self.asked_to_stop = self._lost_by_hand = False
        self._lost_before = before is not None and (before._lost_workers or before._were_away or absent != "")
        self._replica: list[Message] | None = None  # what it was sent, while there is one
        self.end: End | None = None
        self.outcome: msg.RunOutcome | None = None
        self.moves = False
        self.inputs = 0
        self._tell(Tick())
        self._start(CLIENT)
        self.arrive((CLIENT, COORDINATOR))  # it starts the others when it is connected
        for name in names:
            self._start(name)

    def _never(self, name: str, message: Message) -> None:
        raise AssertionError("the first server answers by what it returns")

    # ---------------------------------------------------------------- processes

    def _start(self, name: str) -> None:
        self.alive.add(name)
        self._unnoticed.discard(name)

        def send(to: str, message: Message) -> None:
            if name in self.alive:
                self._channels.send(name, self._addresses.get(to, to), message)

        send(COORDINATOR, msg.Hello(name))
        worker = worker_number(name)
        if worker is not None:
            for server in self.servers:
                send(server, msg.Hello(name))
            self._starts[worker] += 1
            address = f"fake://{worker}" + "'" * (self._starts[worker] - 1)
            self._addresses[address] = name
            kind = FakeGossipWorker if self._is_gossip else FakeWorker
            self.workers[name] = kind(self._workload, worker, self._rings, send, lambda: self.now, address)
            self.workers[name].live()
            return
        if name == REPLICA:
            self._replica = []
        if name.startswith("server"):
            self.servers[name] = FakeServer(self._workload, int(name.split()[1]), send)
        send(COORDINATOR, msg.Ready())

    def kill(self, name: str, arrives: bool = True) -> None:
        """End a process; of what it has sent, only a part may still arrive, or nothing."""
        self.deaths.add(name)
        self._unnoticed.add(name)
        for to, count in self._channels.sent_by(name):
            self._channels.cut(name, to, int(self._rng.integers(count + 1)) if arrives else 0)
        if name == REPLICA:
            self._replica = None
        self._leave(name)

    def lose_coordinator(self) -> None:
        """End the process of the coordinator, unless the run is over; only a part of what it sent arrives."""
        if self.end is not None or self.checks.has_outcome:
            return
        self.deaths.add(COORDINATOR)
        self.end = End(ServerLost("the coordinator is gone", COORDINATOR))
        self._check_end(self.end)

    def _leave(self, name: str) -> None:
        """Let a process end by itself; the replica stays for the client."""
        if name == REPLICA and self._replica is not None:
            self._arrive_in_part(name)
            self._channels.cut(name, COORDINATOR)
        self.alive.discard(name)
        self._met.discard(name)
        if (worker := self.workers.pop(name, None)) is not None:
            self._addresses.pop(worker.address)
            for server in self.servers.values():
                server.disconnect(name)
        for sender in self._channels.sent_to(name):
            self._channels.cut(sender, name)

    # ---------------------------------------------------------------- what the coordinator's process does

    def _tell(self, given: Input) -> None:
        """Give the run an input, and perform what it says."""
        self._inputs.append(given)
        while self._inputs and self.end is None:
            self.inputs += 1
            self.perform(self.live.handle(self._inputs.popleft(), self.now))
            self.checks.after_input()
            if self.end is None:
                self.checks.members()

    def perform(self, instructions: Iterable[Instruction]) -> None:
        """Do what the run says."""
        for instruction in instructions:
            self._perform(instruction)

    def _perform(self, instruction: Instruction) -> None:
        if self.end is not None:
            raise BrokenContract("the run goes on after its end")
        if isinstance(instruction, Send):
            if instruction.to == FIRST_SERVER:
                answer = self.first_server.carry_out(instruction.message)
                if answer is not None:
                    self._inputs.append(Received(FIRST_SERVER, answer))
            else:
                self._send(instruction.to, instruction.message)
        elif isinstance(instruction, Answer):
            assert self.first_server.slice is not None
            instruction.message.payload = self.first_server.slice.parameters
            self._send(instruction.to, instruction.message)
        elif isinstance(instruction, Forget):
            self._channels.cut(instruction.name, COORDINATOR)
            if instruction.name in self.alive and instruction.name != CLIENT:
                self._leave(instruction.name)  # it finds out that the coordinator is gone
        elif isinstance(instruction, Look):
            dead = tuple(name for name in instruction.names if name in self._unnoticed and self._notices())
            self._inputs.append(Looked(dead))
        elif isinstance(instruction, End):
            self.end = instruction
            self._check_end(instruction)

    def _notices(self) -> bool:
        return self.is_healing or bool(self._rng.random() < 0.5)

    is_healing = False

    def _send(self, name: str, message: Message) -> None:
        self.checks.sent(name, message, REPLICA in self._met)
        if name in self._met:
            self._channels.send(COORDINATOR, name, message)

    # ---------------------------------------------------------------- arrivals

    def waiting(self) -> list[tuple[str, str]]:
        """Return the pairs between which messages are under way."""
        return self._channels.waiting()

    def next_of(self, pair: tuple[str, str]) -> Message:
        """Return the message between two processes that arrives next."""
        return self._channels.first(pair)

    def arrive(self, pair: tuple[str, str]) -> None:
        """Let the oldest message between two processes arrive."""
        sender, receiver = pair
        message = self._channels.arrive(pair)
        if receiver == COORDINATOR:
            self._arrive_at_coordinator(sender, message)
        elif receiver == CLIENT:
            self._arrive_at_client(message)
        elif receiver in self.workers:
            self._arrive_at_worker(receiver, sender, message)
        elif receiver in self.servers:
            self.servers[receiver].read(sender, message, self.now)
            self.servers[receiver].work(self.now)
        elif receiver == EVALUATOR:
            self._evaluate(message)
        elif receiver == REPLICA and self._replica is not None:
            self._replica.append(message)
            if isinstance(message, msg.KeepState):
                self.checks.state(message.state, message.tensors, REPLICA)
                self._channels.send(REPLICA, COORDINATOR, msg.StateKept(message.tag))

    def _arrive_in_part(self, name: str) -> None:
        """Let the first few of the messages arrive that the coordinator has sent to a process."""
        sent = dict(self._channels.sent_by(COORDINATOR)).get(name, 0)
        for _ in range(int(self._rng.integers(sent + 1))):
            self.arrive((COORDINATOR, name))

    def repeatable(self) -> list[tuple[str, str]]:
        """Return the pairs whose newest message under way may be sent twice."""
        pairs = [pair for pair in self.waiting() if pair[1] == COORDINATOR]
        return [pair for pair in pairs if isinstance(self._channels.last(pair), _REPEATED)]

    def repeat(self, pair: tuple[str, str], times: int) -> None:
        """Send the newest message between two so many times more."""
        for _ in range(times):
            self._channels.send(*pair, self._channels.last(pair))

    def _arrive_at_coordinator(self, sender: str, message: Message) -> None:
        if isinstance(message, PushMessage):
            payload, message = message.payload, replace(message, payload=None)
            if payload is not None:
                worker = worker_number(sender)
                assert worker is not None
                self.first_server.receive((worker, message.ticket), payload)
        elif isinstance(message, msg.Hello) and sender in self.alive:
            self._met.add(sender)
        self.checks.arrived(sender, message, self.now)
        self._tell(Received(sender, message))

    def _arrive_at_client(self, message: Message) -> None:
        if isinstance(message, msg.LogRows):
            self.record.extend(message)
        elif isinstance(message, msg.StoreCheckpoint):
            self.checks.stored(message)
            self.record.store(message)
        elif isinstance(message, msg.RoleLost):
            self._missing.add(message.name)
        elif isinstance(message, msg.RunMoves):
            self.moves = True
        elif isinstance(message, msg.RunOutcome):
            self.outcome = message
            self._channels.send(CLIENT, COORDINATOR, msg.OutcomeReceived())

    def _arrive_at_worker(self, name: str, sender: str, message: Message) -> None:
        worker = self.workers[name]
        if isinstance(message, msg.StopRun):
            number = worker_number(name)
            assert number is not None
            self._channels.send(name, COORDINATOR, msg.UsageReport(number, 0, 0.0, 0.0, 0.0, 0.0, []))
            self._leave(name)
            self._unnoticed.add(name)
        elif isinstance(message, msg.Ping):
            return
        elif sender in self.servers:
            assert isinstance(message, msg.ReleaseMessage)
            worker.slices.setdefault(sender, deque()).append(message)
            worker.live()
        else:
            if sender == COORDINATOR:
                worker.mailbox.append(message)
            else:
                worker.take_from_peer(message)
            worker.live()

    def _evaluate(self, message: Message) -> None:
        loss = float(self._rng.random())
        if isinstance(message, msg.EvaluateModel):
            self.checks.evaluated(message.tensors, loss)
            values = {"val_loss": loss, "val_accuracy": 1 - loss, "train_loss": loss}
            self._channels.send(EVALUATOR, COORDINATOR, msg.EvaluationDone(message.key, values))
        elif isinstance(message, msg.MeasureLoss):
            self._channels.send(EVALUATOR, COORDINATOR, msg.LossMeasured(message.name, loss))

    # ---------------------------------------------------------------- the end

    def _check_end(self, end: End) -> None:
        error = end.error
        if error is None:
            informed = self.outcome or self.moves or self._channels.has(COORDINATOR, CLIENT)
            if CLIENT in self.alive and not informed:
                raise BrokenContract("the run has ended without a word to the client")
            while CLIENT in self.alive and self._channels.has(COORDINATOR, CLIENT):
                self.arrive((COORDINATOR, CLIENT))
            if self.outcome is not None:
                unheard = self._unnoticed | (self.alive - self._met)  # of whom the run does not know yet
                self.checks.ended(self.outcome, self.deaths - unheard - {CLIENT})
            elif self.moves and not self.record.can_go_back:
                raise BrokenContract("the run moves, and the client has nothing to go on from")
            return
        expected = (
            (isinstance(error, ServerLost) and (self.retired or self._lost_server or self._lost_share))
            or (isinstance(error, WorkerLost) and (self.retired or self._lost_workers or self._were_away))
            or (isinstance(error, Cancelled) and (CLIENT in self.deaths or self.asked_to_stop))
            or (type(error) is BackendError and self._refused_evaluator)
        )
        if not expected:
            raise error
        if isinstance(error, ServerLost) and CLIENT in self.alive:
            self._arrive_in_part(CLIENT)
            self._take_back()

    def _take_back(self) -> None:
        """Let the client take the state of the run from the replica, as `taking_back.take_back` does."""
        if self._replica is None:
            return
        for message in state_given_back(self._replica, len(self.log), len(self.log.texts)):
            if isinstance(message, msg.LogRows):
                self.record.extend(message)
            elif isinstance(message, msg.StoreCheckpoint):
                self.record.take_back(message)

    @property
    def can_lose_a_server(self) -> bool:
        """Whether the client would have something to go on from."""
        return self._replica is not None or self.record.start is not None

    @property
    def _lost_server(self) -> bool:
        return any(name == COORDINATOR or name.startswith("server") for name in self.deaths)

    @property
    def _lost_share(self) -> bool:
        """Whether a share of the model was lost with its worker."""
        gathers = any(
            isinstance(each.placement, Shares) for each in self._workload.experiment.strategy.compositions
        )
        return gathers and self._lost_workers

    @property
    def _lost_workers(self) -> bool:
        return any(worker_number(name) is not None for name in self.deaths)

    @property
    def _were_away(self) -> bool:
        """Whether workers with models of their own were away, or are to be: nobody may have one then.

        In this run by hand or as the cluster says; in the one before, or as this one goes on, in any way.
        """
        planned = bool(self._workload.profile.failures)
        return self._is_gossip and (planned or self._lost_by_hand or self._lost_before)

    @property
    def can_go_on(self) -> bool:
        """Whether the client would start the run again: it moves, or a server was lost."""
        end = self.end
        lost = end is not None and isinstance(end.error, ServerLost)
        return CLIENT in self.alive and (self.moves or lost) and self.record.can_go_back

    # ---------------------------------------------------------------- choices

    def end_step(self, name: str) -> None:
        """Let a worker's step end, or a ring that is full."""
        worker = self.workers[name]
        if worker.computing:
            worker.steps_ended += 1
        elif worker.in_full_ring:
            worker.rings_done += 1
        worker.live()

    def busy(self) -> list[str]:
        """Return the workers that compute, or are in a ring that all members have entered."""
        return [name for name, each in self.workers.items() if each.computing or each.in_full_ring]

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        for server in self.servers.values():
            server.work(self.now)
        for worker in list(self.workers.values()):
            worker.live()
        self._tell(Tick())

    def report_dead(self) -> None:
        """Let the client hear of the scheduler whose Dask workers are gone."""
        for name in sorted(self._unnoticed & self.deaths):
            if name in self._replaced:
                self._missing.add(name)
            else:
                self._channels.send(CLIENT, COORDINATOR, msg.RoleGone(name))

    def find_places(self, finds: bool = True) -> None:
        """Let the client start a process for each role that is missing, or say that there is no place."""
        for name in sorted(self._missing):
            if name in self.alive:
                continue
            if finds:
                self._missing.discard(name)
                self._channels.cut(name, COORDINATOR)
                self._replaced.add(name)
                self._start(name)
            else:
                self._refused_evaluator |= name == EVALUATOR
                self._channels.send(CLIENT, COORDINATOR, msg.RoleLost(name))

    def ask(self, message: Message) -> None:
        """Let the client send something."""
        self.retired |= isinstance(message, msg.RoleLeaves)
        self._lost_by_hand |= isinstance(message, msg.PressWorker) and message.what == "lost"
        self.asked_to_stop |= isinstance(message, msg.RequestStop)
        self._channels.send(CLIENT, COORDINATOR, message)

    def diverge(self, name: str) -> None:
        """Let what a worker pushes from now on not be finite."""
        self.workers[name].diverges = True

    def refuse(self, name: str) -> None:
        """Let a worker send the coordinator what cannot be decoded."""
        self.deaths.add(name)
        self._tell(Refused(name))

    def heal(self, looks: bool = False) -> None:
        """Let everything happen that is under way, without faults, until the run ends.

        `looks` says whether it is checked, whenever all messages have arrived, that run and processes agree.

        Raises
        ------
        BrokenContract
            If it does not.
        """
        self.is_healing = True
        for _ in range(_ROUNDS):
            if looks and self.end is None:
                self.settle()
            self.let_all_happen()
            if self.end is not None:
                return
        wait = self.live.run.wait
        raise BrokenContract(f"the run does not end: it waits for {wait.awaited() if wait else 'nothing'}")

    def settle(self) -> None:
        """Let all messages arrive, and check that run and processes agree.

        A server may still wait for the payload of a process that died, until it is lost.
        """
        while (pairs := self.waiting()) and self.end is None:
            self.arrive(pairs[0])
        if self.end is None:
            self._tell(Tick())
        waits = self.waiting() or any(server.waits for server in self.servers.values())
        if self.end is None and not waits:
            self.checks.settled(self.workers, self._unnoticed - self.live.run.peers.gone)

    def let_all_happen(self) -> None:
        """Let what is under way arrive and every step end, and a tenth of a second pass."""
        for pair in self.waiting():
            while self._channels.has(*pair) and self.end is None:
                self.arrive(pair)
        for name in self.busy():
            if self.end is None and name in self.workers:
                self.end_step(name)
        if self.end is None:
            self.report_dead()
            self.find_places()
            self.pass_time(0.1)
