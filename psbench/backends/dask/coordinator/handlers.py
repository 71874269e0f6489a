"""What the coordinator does with each kind of message that it receives."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from psbench.backends.dask.coordinator.checkpointing import CheckpointWriter
from psbench.backends.dask.coordinator.ending import Ending
from psbench.backends.dask.coordinator.measurements import Measurements
from psbench.backends.dask.coordinator.peers import Peers
from psbench.backends.dask.coordinator.pushes import PushIntake
from psbench.backends.dask.coordinator.replica_averaging import ReplicaAveraging
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message, MessageRefused
from psbench.backends.dask.protocol.roles import worker_number
from psbench.backends.dask.protocol.transport import Received, ServerSocket
from psbench.backends.dask.server.store import ParameterStore
from psbench.core import events as ev
from psbench.errors import BackendError

_Handler: TypeAlias = Callable[[str, Any], None]
_WorkerHandler: TypeAlias = Callable[[int, Any], None]


class PeerFailed(BackendError):
    """A task raised; the message is its traceback."""

    def __init__(self, name: str, traceback: str) -> None:
        self.name, self.traceback = name, traceback
        super().__init__(f"{name} failed:\n{traceback}")

    def __reduce__(self) -> tuple[type[PeerFailed], tuple[str, str]]:
        return PeerFailed, (self.name, self.traceback)


class Handlers:
    """Gives each message to what it concerns; votes, reports and requests become events.

    Parameters
    ----------
    socket : ServerSocket
    events : deque
        Where events wait for the engine.
    ending : Ending
    peers : Peers
    pushes : PushIntake
    averaging : ReplicaAveraging
    checkpoints : CheckpointWriter
    measurements : Measurements
    evaluated : callable
        Takes an evaluation.
    store : callable
        Returns the parameter store of the current composition.
    lose : callable
        Does without a peer, by its name.
    ready : callable
        Takes note that a peer can begin.
    no_place : callable
        Does without a role for which there is no Dask worker.
    stop : callable
        Ends the run; called with whether to write a checkpoint first.
    leave : callable
        Takes note that a role's Dask worker is being retired.
    kept : callable
        Takes note that the replica has a state.
    """

    def __init__(
        self,
        socket: ServerSocket,
        events: deque[ev.Event],
        ending: Ending,
        peers: Peers,
        pushes: PushIntake,
        averaging: ReplicaAveraging,
        checkpoints: CheckpointWriter,
        measurements: Measurements,
        *,
        evaluated: Callable[[msg.Evaluated], None],
        store: Callable[[], ParameterStore],
        lose: Callable[[str], None],
        ready: Callable[[str, msg.Ready], None],
        no_place: Callable[[str], None],
        stop: Callable[[bool], None],
        leave: Callable[[str], None],
        kept: Callable[[int], None],
    ) -> None:
        self._socket, self._peers, self._lose = socket, peers, lose
        self.client_has_outcome = False
        self._of_workers: dict[type[Message], _WorkerHandler] = {
            msg.PushMessage: pushes.take,
            msg.VoteMessage: lambda worker, vote: events.append(ev.Vote(worker, **vars(vote))),
            msg.ReportMessage: lambda worker, report: events.append(ev.Report(worker, **vars(report))),
            msg.WorkerModel: lambda worker, sent: averaging.answer(worker, sent.tag, sent.tensors),
            msg.WorkerState: checkpoints.take_worker,
        }
        self._of_anybody: dict[type[Message], _Handler] = {
            msg.Hello: lambda name, _: peers.connect(name),
            msg.Ready: ready,
            msg.RoleLost: lambda _, lost: no_place(lost.name),
            msg.RoleLeaves: lambda _, leaving: leave(leaving.name),
            msg.AskClock: self._send_clock,
            msg.Failed: self._fail,
            msg.PeerRefused: self._lose_refused,
            msg.UsageReport: peers.set_usage,
            msg.StateReply: lambda name, reply: store().reply(name, reply),
            msg.NumberReply: lambda name, reply: store().reply(name, reply),
            msg.RingVerdict: lambda name, reply: store().reply(name, reply),
            msg.LossMeasured: lambda _, loss: measurements.take(loss.name, loss.number),
            msg.Evaluated: lambda _, evaluation: evaluated(evaluation),
            msg.RequestStop: lambda _, request: stop(request.checkpoint),
            msg.RequestSwitch: lambda _, request: events.append(ev.SwitchRequested(request.to)),
            msg.OutcomeReceived: self._note_receipt,
            msg.StateKept: lambda _, receipt: kept(receipt.tag),
        }

    def receive(self, timeout_s: float) -> None:
        """Handle the next message, if one comes in time.

        Raises
        ------
        PeerFailed
            If it says that its sender has failed.
        """
        try:
            received = self._socket.receive(timeout_s)
            if received is not None:
                self._handle(received)
        except MessageRefused as error:  # whoever sends such things is done without
            self._lose(error.sender)

    def _handle(self, received: Received) -> None:
        sender, message = received
        kind = type(message)
        of_worker = self._of_workers.get(kind)
        if of_worker is None:
            handler = self._of_anybody.get(kind)
            if handler is None:
                raise MessageRefused(f"{kind.__name__} is not for the coordinator", sender)
            handler(sender, message)
            return
        worker = worker_number(sender)
        if worker is None or sender not in self._peers.known:
            raise MessageRefused(f"{kind.__name__} is for workers of the run to send", sender)
        of_worker(worker, message)

    def _send_clock(self, name: str, _: msg.AskClock) -> None:
        self._socket.send(name, msg.Clock(time.monotonic()))

    def _note_receipt(self, name: str, _: msg.OutcomeReceived) -> None:
        self.client_has_outcome = True

    def _fail(self, name: str, failed: msg.Failed) -> None:
        raise PeerFailed(name, failed.traceback)

    def _lose_refused(self, name: str, refused: msg.PeerRefused) -> None:
        if worker_number(refused.name) is not None and refused.name not in self._peers.gone:
            self._lose(refused.name)
