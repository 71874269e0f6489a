"""Where a live run's checkpoints are written, and how a run resumes from one.

Servers and workers send their parts of one version while training goes on; the client writes the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from psbench.backends.checkpointing import (
    KEPT_WHEN_VOID,
    SELECTION,
    Resumption,
    actions_to_plain,
    idle_workers,
    named,
    released,
    resumed,
    under,
)
from psbench.backends.dask.coordinator.run_state import RunState, Script, Wait
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Json
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import PushKey
from psbench.backends.dask.protocol.roles import CLIENT, names_or_count, worker_name
from psbench.backends.dask.server.parameter_server import as_lists
from psbench.backends.dask.server.store import key_of
from psbench.backends.schedule import CheckpointSchedule
from psbench.checkpoints.file import Checkpoint
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.engine import Engine
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView
from psbench.training.batches import BatchPosition
from psbench.training.server import AGGREGATION, OPTIMIZER

#: seconds that a checkpoint waits for the workers' parts of it when the run ends
_PARTS_S = 2.0
_STORE = -1  # among the workers whose part of a checkpoint is missing


@dataclass
class Start:
    """Where a live run resumes: a checkpoint, and what its log has so far."""

    checkpoint: Checkpoint
    rows: int
    texts: list[str]


@dataclass
class _Unfinished:
    """A checkpoint of which parts are still missing."""

    then: Callable[[dict[str, Any], StateDict], None]
    state: dict[str, Any]
    tensors: StateDict
    missing: set[int]  # workers, and _STORE


class CheckpointWriter:
    """Has checkpoints written, at switches and every so many epochs.

    All are asked before the answer's releases are sent, and send what they had then, while training goes
    on. Steps and messages under way are in no checkpoint: a worker that computes sends its state as of its
    last release, or, beside a push that was handled, as of that push.
    """

    def __init__(self, run: RunState) -> None:
        self._run, self._engine = run, run.engine
        self._schedule = CheckpointSchedule(run.view, run.workload.experiment.checkpoint_every)
        self._unfinished: dict[int, _Unfinished] = {}

    def __len__(self) -> int:
        return len(self._unfinished)

    def stop(self) -> None:
        """Have the run end with a checkpoint; see `CheckpointSchedule.stop`."""
        self._schedule.stop()

    @property
    def stopping(self) -> bool:
        """Whether the run ends with the next checkpoint."""
        return self._schedule.stopping

    def complete(self, position: Callable[[int], BatchPosition]) -> Script[None]:
        """Have what is under way sent to the client, at the latest without the parts of some workers.

        Where workers have models of their own no part is left out.

        Parameters
        ----------
        position : callable
            Returns where a worker's last push was in its data: without its part, it goes on there.
        """
        alone = self._run.composition.placement.peer_to_peer
        latest = math.inf if alone else self._run.clock_s + _PARTS_S
        yield Wait(lambda: not self or self._run.clock_s > latest, self._whom)
        self._give_up(position)
        yield Wait(lambda: not self, self._whom)

    def _whom(self) -> str:
        missing = {who for checkpoint in self._unfinished.values() for who in checkpoint.missing}
        named = ["the servers" if who == _STORE else worker_name(who) for who in sorted(missing)]
        return f"{names_or_count(named, self._run.view.num_active, 'workers')} (a checkpoint)"

    def _give_up(self, position: Callable[[int], BatchPosition]) -> None:
        """Wait no longer for workers' parts."""
        for tag, checkpoint in list(self._unfinished.items()):
            for worker in sorted(checkpoint.missing - {_STORE}):
                self._add(tag, worker, {}, part_at(position(worker)).state)

    def resume(self) -> None:
        """Plan the next checkpoint of a run that was resumed."""
        self._schedule.advance()

    def due(self, actions: Sequence[Action]) -> str:
        """Return the name of the checkpoint that is due with an answer; empty if none is."""
        return self._schedule.label(self._engine.measuring, actions)

    def write(self, label: str, rest: Sequence[Action], run_state: dict[str, Any]) -> None:
        """Ask the store and the workers for their parts.

        Parameters
        ----------
        rest : sequence of Action
            What is still to be performed of the answer.
        run_state : dict
            What the checkpoint holds of the coordinator beside engine and store.
        """
        self._schedule.advance()
        present = self._run.peers.workers()
        waits = {w: idle for w, idle in idle_workers(self._run.view, released(rest)).items() if w in present}
        self.capture(rest, run_state, waits, lambda *found: self._store_as(label, *found))

    def _store_as(self, label: str, state: dict[str, Any], tensors: StateDict) -> None:
        self._run.out.send(CLIENT, msg.StoreCheckpoint(label, Json(state), tensors))

    def capture(
        self,
        rest: Sequence[Action],
        run_state: dict[str, Any],
        waits: Mapping[int, bool],
        then: Callable[[dict[str, Any], StateDict], None],
        others: Callable[[int], WorkerPart] | None = None,
    ) -> None:
        """Call `then` with all that the run goes on from: plain data and tensors.

        Parameters
        ----------
        rest, run_state
            See `write`.
        waits : mapping of worker to bool
            The workers to ask, and whether each waits.
        others : callable or None
            Returns the parts of the other workers, as far as they are known.
        """
        tag, view = next(self._run.numbers), self._run.view
        state = run_state | self._own_state(rest)
        known = {w: others(w) for w in view.workers if w not in waits} if others else {}
        state["workers"] = {str(w): part.state for w, part in known.items()}
        tensors = {n: t for w, part in known.items() for n, t in named(f"worker/{w}/", part.tensors).items()}
        self._unfinished[tag] = _Unfinished(then, state, tensors, {_STORE, *waits})
        for worker, idle in waits.items():
            self._run.out.send(worker_name(worker), msg.SendWorkerState(tag, idle))
        ids = {key_of(push): push.id for push in view.pending.values()}

        def take_store(found: StateDict, codec_counters: dict[str, int]) -> None:
            state["codecs"] = codec_counters
            self._add(tag, _STORE, _named_for_file(found, ids), None)

        self._run.store.checkpoint(list(ids), take_store)

    def _own_state(self, rest: Sequence[Action]) -> dict[str, Any]:
        engine = self._engine
        return {
            "engine": None if engine.measuring else engine.state_dict(),
            "rest": actions_to_plain(rest),
            "workers": {},
            # what only the simulated backend knows
            "ring_ends_s": 0.0,
            "handed_over_s": 0.0,
            "evaluated": [-1, -1],
        }

    def take_worker(self, worker: int, part: msg.WorkerState) -> None:
        """Take a worker's part."""
        self._add(part.tag, worker, named(f"worker/{worker}/", part.tensors), part.state.data)

    def leave(self, worker: int) -> None:
        """Wait no longer for a worker that is gone."""
        for tag in list(self._unfinished):
            self._add(tag, worker, {}, None)

    def _add(self, tag: int, who: int, tensors: StateDict, worker_state: dict[str, Any] | None) -> None:
        checkpoint = self._unfinished.get(tag)
        if checkpoint is None or who not in checkpoint.missing:
            return
        checkpoint.missing.discard(who)
        checkpoint.tensors |= tensors
        if worker_state is not None:
            checkpoint.state["workers"][str(who)] = worker_state
        if not checkpoint.missing:
            del self._unfinished[tag]
            checkpoint.then(checkpoint.state, checkpoint.tensors)


class WorkerPart(NamedTuple):
    """A worker's part of a checkpoint."""

    state: dict[str, Any]
    tensors: StateDict

    def as_of_release(self) -> WorkerPart:
        """Return what is left of the part of a worker that waited, once it computes: that work is void."""
        kept = {name: value for name, value in self.state.items() if name in KEPT_WHEN_VOID}
        return WorkerPart(kept, self._kept_when_void())

    def _kept_when_void(self) -> StateDict:
        kept = ("residual", SELECTION)
        return {name: tensor for name, tensor in self.tensors.items() if name.startswith(kept)}


def part_at(position: BatchPosition) -> WorkerPart:
    """Return the part of a worker of which only its place in the data is known."""
    return WorkerPart({"position": list(position), "used": position.steps}, {})


def _named_for_file(state: StateDict, ids: dict[PushKey, int]) -> StateDict:
    """Name a store's tensors as checkpoints do."""
    found: StateDict = {}
    for name, tensor in state.items():
        kind, _, which = name.partition("/")
        if kind in ("payload", "buffers") and which:
            worker, ticket = map(int, which.split("/"))
            found[f"push/{ids[worker, ticket]}/{kind}"] = tensor
        else:
            found[{"held": f"version/{which}", "residual": "codecs/residual"}.get(kind, name)] = tensor
    return found


# -------------------------------------------------------------------- resuming


def store_state(checkpoint: Checkpoint) -> StateDict:
    """Return what a store begins with, named as it names it."""
    tensors = checkpoint.tensors
    plain = {"parameters", "buffers", "aggregate"}
    state = {n: t for n, t in tensors.items() if n in plain or n.startswith((OPTIMIZER, AGGREGATION))}
    state |= named("held/", under("version/", tensors))
    if "codecs/residual" in tensors:
        state["residual"] = tensors["codecs/residual"]
    for push in checkpoint.state["engine"]["view"]["pending"]:
        for kind, tensor in under(f"push/{push['id']}/", tensors).items():
            state[f"{kind}/{push['worker']}/{push['ticket']}"] = tensor
    for worker in checkpoint.state["workers"]:
        if f"worker/{worker}/held" in tensors:
            state[f"worker/{worker}"] = tensors[f"worker/{worker}/held"]
    return state


def resume_workers(
    out: Outbox, workers: Collection[int], checkpoint: Checkpoint, view: ClusterView, collective: bool
) -> None:
    """Send each worker its part of a checkpoint; under a `collective` operation with what it is to add."""
    ranges = None if view.ranges is None else as_lists(view.ranges)
    pushes = {push.worker: push.id for push in view.pending.values()} if collective else {}
    for worker in workers:
        own = under(f"worker/{worker}/", checkpoint.tensors)
        if worker in pushes:  # what it adds to the next ring
            own |= named("push/", under(f"push/{pushes[worker]}/", checkpoint.tensors))
        part = checkpoint.state["workers"].get(str(worker))
        state = None if part is None else Json(part)
        out.send(worker_name(worker), msg.ResumeWorker(view.in_force, ranges, state, own))


def without_part(workers: Collection[int], checkpoint: Checkpoint, composition: Strategy) -> set[int]:
    """Return the workers whose model, which only they have, was lost with their part of a checkpoint."""
    parts = checkpoint.state["workers"]
    is_lost = composition.placement.peer_to_peer
    return {worker for worker in workers if is_lost and str(worker) not in parts}


def admit_worker(out: Outbox, worker: int, position: BatchPosition, view: ClusterView) -> None:
    """Have a worker that took another's place go on where that one was in its data."""
    ranges = None if view.ranges is None else as_lists(view.ranges)
    out.send(worker_name(worker), msg.ResumeWorker(view.in_force, ranges, Json(part_at(position).state), {}))


def first_actions(
    engine: Engine, resumption: Resumption, workers: Collection[int], epochs: float | None
) -> list[Action]:
    """Return what a resumed run performs first: the rest of the answer, for the workers that are here."""
    rest = [action for action in resumption.rest if not hasattr(action, "worker") or action.worker in workers]
    actions = resumed(engine, rest, epochs, resumption.again & {*workers})
    return [action for action in actions if not hasattr(action, "worker") or action.worker in workers]


def events_to_plain(entries: Sequence[tuple[float, ev.Event]]) -> list[list[Any]]:
    """Return timers, requests and evaluations as checkpoints hold them; joins are the profile's."""
    kept = [each for each in entries if isinstance(each[1], (ev.Timer, ev.SwitchRequested, ev.Evaluated))]
    return [[at, 2, 0, type(event).__name__, asdict(event)] for at, event in kept]


def events_from_plain(
    plain: Sequence[Sequence[Any]], time_s: float
) -> tuple[list[tuple[float, ev.Event]], list[ev.Event]]:
    """Return the timers and due requests of a checkpoint at `time_s`, and the evaluations that had come."""
    timers: list[tuple[float, ev.Event]] = []
    evaluations: list[ev.Event] = []
    for at, _, _, name, fields in plain:
        if name == "Timer":
            timers.append((at, ev.Timer(**fields)))
        elif name == "SwitchRequested" and at <= time_s:  # the cluster plans later ones again
            timers.append((at, ev.SwitchRequested(**fields)))
        elif name == "Evaluated":
            evaluations.append(ev.Evaluated(**fields))
    return timers, evaluations
