"""The replica's part in a live run: nothing is answered that it does not have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from psbench.backends.checkpointing import idle_workers, released, under
from psbench.backends.dask.coordinator.checkpointing import CheckpointWriter, WorkerPart, part_at
from psbench.backends.dask.coordinator.log_stream import LogStream
from psbench.backends.dask.coordinator.run_state import RunState, Script, Wait
from psbench.backends.dask.protocol.decoder import Json
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.messages import KeepState
from psbench.backends.dask.protocol.roles import REPLICA
from psbench.backends.dask.server.store import key_of
from psbench.core.actions import Action, Release
from psbench.core.replicas import keeps_on_workers
from psbench.training.batches import BatchPosition


class Replication:
    """Has the replica keep the state of the run before an answer's releases are sent.

    What it keeps is a checkpoint, with the rows of the log that lead to it. Where workers have no more than a
    place in their data they are not asked for their parts. Elsewhere those that wait are; one that computes
    had its part asked for when it was released. `unreplicable` has refused what does not fit into that.

    Parameters
    ----------
    run : RunState
    checkpoints : CheckpointWriter
        Puts states together.
    position : callable
        Returns where a worker was in its data after the last of its pushes that the engine has taken.

    Attributes
    ----------
    is_there : bool
        Whether there is a replica.
    """

    def __init__(
        self, run: RunState, checkpoints: CheckpointWriter, position: Callable[[int], BatchPosition]
    ) -> None:
        self._run, self._checkpoints, self._position = run, checkpoints, position
        self._to_client = run.log_stream  # sends the client nothing that the replica does not have
        # whether workers are asked for more than places in the data; a residual outlives its composition
        self._asks = any(map(keeps_on_workers, run.workload.experiment.strategy.compositions))
        self._parts: dict[int, WorkerPart] = {}  # of workers that were asked: as of their release then
        self.is_there = False
        self._stream: LogStream | None = None  # None while it has nothing
        self._since = 0, 0  # rows and texts of the log before those that it has
        self._awaited: int | None = None

    def begin(self) -> None:
        """Take note that there is a replica, which has nothing yet."""
        self.is_there, self._stream = True, None
        self._parts.clear()  # while there was none, no worker was asked when it was released

    def lose(self) -> None:
        """Go on without a replica."""
        self.is_there = False
        self._take_off()

    def due(self, actions: Sequence[Action]) -> bool:
        """Return whether an answer sends a worker anything: the replica must have its state first."""
        return self.is_there and any(type(action) is Release for action in actions)

    @property
    def keeps_evaluations(self) -> bool:
        """Whether the replica is to have one as soon as it comes, in the middle of the workers' steps."""
        return self.is_there and not self._asks

    def keep(self, rest: Sequence[Action], run_state: dict[str, Any]) -> Script[None]:
        """Wait until the replica has this moment; `rest` is what is still to be performed of the answer.

        While pushes wait for a ring it has what they started from: their payloads are with the workers.
        """
        run = self._run
        if not self.is_there:  # it was lost while the model was made
            return
        if any(key_of(push) not in run.store.waiting for push in run.view.pending.values()):
            return
        if self._stream is None:
            self._stream = LogStream(run.out, run.log, REPLICA)
            self._stream.begin_where(self._to_client)
            self._since = self._stream.sent
        self._awaited = tag = next(run.numbers)
        self._to_client.held = True
        idle = idle_workers(run.view, released(rest)) if self._asks else {}
        present = run.peers.workers()
        waits = {worker: True for worker, waits in idle.items() if waits and worker in present}
        self._checkpoints.capture(rest, run_state, waits, partial(self._send, tag, waits), self._known)
        yield Wait(lambda: self._awaited is None, lambda: f"{REPLICA} (to keep the state)")

    def _known(self, worker: int) -> WorkerPart:
        return self._parts.get(worker) or part_at(self._position(worker))

    def _send(self, tag: int, asked: Collection[int], state: dict[str, Any], tensors: StateDict) -> None:
        if self._stream is None or tag != self._awaited:
            return  # the replica that was to have it was lost meanwhile
        for worker in asked:
            self._parts.pop(worker, None)
            if (own := state["workers"].get(str(worker))) is not None:  # else it was lost meanwhile
                part = WorkerPart(own, under(f"worker/{worker}/", tensors))
                self._parts[worker] = part.as_of_release()
        self._stream.send()
        self._run.out.send(REPLICA, KeepState(tag, *self._since, Json(state), tensors))

    def take_receipt(self, tag: int) -> None:
        """Take note that the replica has a state."""
        if tag == self._awaited:
            self._take_off()

    def _take_off(self) -> None:
        self._awaited = None
        self._to_client.held = False
