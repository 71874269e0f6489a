"""The stored states of a live run: checkpoints, which the client writes, and the replica's state.

Servers and workers send their parts of one version while training goes on. All are asked before the answer's
releases are sent, and send what they had then. Steps and messages under way are in no checkpoint: a worker
that computes sends its state as of its last release, or, beside a push that was handled, as of that push.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from psbench.backends.checkpointing import (
    KEPT_WHEN_VOID,
    SELECTION,
    actions_to_plain,
    idle_workers,
    named,
    released,
    under,
)
from psbench.backends.dask.coordinator import pushes
from psbench.backends.dask.coordinator.peers import LogStream
from psbench.backends.dask.coordinator.run_state import (
    RunState,
    Script,
    UnfinishedCheckpoint,
    Wait,
    WorkerPart,
)
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Json
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.messages import PushKey
from psbench.backends.dask.protocol.roles import CLIENT, REPLICA, names_or_count, worker_name
from psbench.backends.dask.server.store import key_of
from psbench.core import events as ev
from psbench.core.actions import Action, Release
from psbench.core.peer_to_peer import PeerToPeer
from psbench.training.batches import BatchPosition

#: seconds that a checkpoint waits for the workers' parts of it when the run ends
_PARTS_S = 2.0
_STORE = -1  # among the workers whose part of a checkpoint is missing


# -------------------------------------------------------------------- checkpoints


def due(run: RunState, actions: Sequence[Action]) -> str:
    """Return the name of the checkpoint that is due with an answer; empty if none is due."""
    return run.checkpoint_schedule.label(run.engine.measuring, actions)


def write(run: RunState, label: str, rest: Sequence[Action] = ()) -> None:
    """Start a checkpoint that follows the log so far; a run asked to stop ends with it.

    Parameters
    ----------
    rest : sequence of Action
        The actions of the answer that are still to be performed.
    """
    run.log_stream.send()
    coordinator = _coordinator_state(run)
    run.checkpoint_schedule.advance()
    present = run.peers.workers()
    waits = {w: idle for w, idle in idle_workers(run.view, released(rest)).items() if w in present}
    _capture(run, rest, coordinator, waits, partial(_store, run, label))
    if run.checkpoint_schedule.stopping:
        run.ending.stop()


def _store(run: RunState, label: str, state: dict[str, Any], tensors: StateDict) -> None:
    run.out.send(CLIENT, msg.StoreCheckpoint(label, Json(state), tensors))


def complete(run: RunState) -> Script[None]:
    """Send completed checkpoints to the client, after a timeout without the parts of some workers.

    A worker without its part continues in its data after its last push. Where workers have models of their
    own no part is left out.
    """
    alone = isinstance(run.composition.placement, PeerToPeer)
    latest = math.inf if alone else run.clock_s + _PARTS_S
    yield Wait(lambda: not run.unfinished or run.clock_s > latest, partial(_missing, run))
    for tag, checkpoint in list(run.unfinished.items()):
        for worker in sorted(checkpoint.missing - {_STORE}):
            _add(run, tag, worker, {}, part_at(pushes.position_after(run, worker)).state)
    yield Wait(lambda: not run.unfinished, partial(_missing, run))


def _missing(run: RunState) -> str:
    missing = {who for checkpoint in run.unfinished.values() for who in checkpoint.missing}
    names = ["the servers" if who == _STORE else worker_name(who) for who in sorted(missing)]
    return f"{names_or_count(names, run.view.num_active, 'workers')} (a checkpoint)"


def _capture(
    run: RunState,
    rest: Sequence[Action],
    coordinator: dict[str, Any],
    waits: Mapping[int, bool],
    then: Callable[[dict[str, Any], StateDict], None],
    others: Callable[[int], WorkerPart] | None = None,
) -> None:
    """Call `then` with the complete state of the run, as plain data and tensors, once all parts have arrived.

    Parameters
    ----------
    rest : sequence of Action
        The actions of the answer that are still to be performed.
    coordinator : dict
        The coordinator's part; see `_coordinator_state`.
    waits : mapping of worker to bool
        The workers to ask, and whether each waits.
    others : callable or None
        Returns the parts of the other workers, as far as they are known.
    """
    tag, view = next(run.numbers), run.view
    state = coordinator | _engine_state(run, rest)
    known = {w: others(w) for w in view.workers if w not in waits} if others else {}
    state["workers"] = {str(w): part.state for w, part in known.items()}
    tensors = {n: t for w, part in known.items() for n, t in named(f"worker/{w}/", part.tensors).items()}
    run.unfinished[tag] = UnfinishedCheckpoint(then, state, tensors, {_STORE, *waits})
    for worker, idle in waits.items():
        run.out.send(worker_name(worker), msg.SendWorkerState(tag, idle))
    ids = {key_of(push): push.id for push in view.pending.values()}

    def take_store(found: StateDict, codec_counters: dict[str, int]) -> None:
        state["codecs"] = codec_counters
        _add(run, tag, _STORE, _named_for_file(found, ids), None)

    run.store.checkpoint(list(ids), take_store)


def take_worker(run: RunState, worker: int, part: msg.WorkerState) -> None:
    """Add a worker's part."""
    _add(run, part.tag, worker, named(f"worker/{worker}/", part.tensors), part.state.data)


def leave(run: RunState, worker: int) -> None:
    """Stop waiting for the part of a lost worker."""
    for tag in list(run.unfinished):
        _add(run, tag, worker, {}, None)


def _add(run: RunState, tag: int, who: int, tensors: StateDict, worker_state: dict[str, Any] | None) -> None:
    """Add a part to a checkpoint, and finish the checkpoint with the last part."""
    checkpoint = run.unfinished.get(tag)
    if checkpoint is None or who not in checkpoint.missing:
        return
    checkpoint.missing.discard(who)
    checkpoint.tensors |= tensors
    if worker_state is not None:
        checkpoint.state["workers"][str(who)] = worker_state
    if not checkpoint.missing:
        del run.unfinished[tag]
        checkpoint.then(checkpoint.state, checkpoint.tensors)


# -------------------------------------------------------------------- parts of a checkpoint


def _coordinator_state(run: RunState) -> dict[str, Any]:
    """Return the coordinator's own part of a checkpoint."""
    now = run.now
    return {
        "time_s": now,
        "logged": list(run.log_stream.logged),
        "events": _events_to_plain([*((now, event) for event in run.events), *run.timers.entries()]),
        "network": {"up_free_s": now, "down_free_s": now, "carried_bytes": 0.0},
        "stop_rules": run.rules.state_dict(),
        "next_push": run.pushes.next_number,
        "awaited": [each.number for each in run.evaluations.pending.values()],
        "movement": run.evaluations.movement,
    }


def _events_to_plain(entries: Sequence[tuple[float, ev.Event]]) -> list[list[Any]]:
    """Return timers, requests and evaluations in checkpoint format; the profile determines joins."""
    kept = [each for each in entries if isinstance(each[1], (ev.Timer, ev.SwitchRequested, ev.Evaluated))]
    return [[at, 2, 0, type(event).__name__, asdict(event)] for at, event in kept]


def _engine_state(run: RunState, rest: Sequence[Action]) -> dict[str, Any]:
    return {
        "engine": None if run.engine.measuring else run.engine.state_dict(),
        "rest": actions_to_plain(rest),
        "workers": {},
        # what only the simulated backend knows
        "ring_ends_s": 0.0,
        "handed_over_s": 0.0,
        "evaluated": [-1, -1],
    }


def part_at(position: BatchPosition) -> WorkerPart:
    """Return a worker's part with only its position in the data."""
    return WorkerPart({"position": list(position), "used": position.steps}, {})


def _as_of_release(part: WorkerPart) -> WorkerPart:
    """Return the part of a waiting worker as of its release, without the work that is cancelled."""
    kept = {name: value for name, value in part.state.items() if name in KEPT_WHEN_VOID}
    tensors = {name: t for name, t in part.tensors.items() if name.startswith(("residual", SELECTION))}
    return WorkerPart(kept, tensors)


def _named_for_file(state: StateDict, ids: dict[PushKey, int]) -> StateDict:
    """Rename a store's tensors to the names in checkpoints."""
    found: StateDict = {}
    for name, tensor in state.items():
        kind, _, which = name.partition("/")
        if kind in ("payload", "buffers") and which:
            worker, ticket = map(int, which.split("/"))
            found[f"push/{ids[worker, ticket]}/{kind}"] = tensor
        else:
            found[{"held": f"version/{which}", "residual": "codecs/residual"}.get(kind, name)] = tensor
    return found


# -------------------------------------------------------------------- the replica


def begin_replica(run: RunState) -> None:
    """Start to use a replica, which is empty."""
    run.replica.is_there, run.replica.stream = True, None
    run.replica.parts.clear()  # while there was none, no worker was asked when it was released


def lose_replica(run: RunState) -> None:
    """Continue without a replica."""
    run.replica.is_there = False
    _confirm(run)


def must_keep(run: RunState, actions: Sequence[Action]) -> bool:
    """Return whether the replica must store a state before an answer is sent.

    That is if the answer releases a worker, and the replica lags by as many updates as it may.
    """
    replica = run.replica
    if not (replica.is_there and any(type(action) is Release for action in actions)):
        return False
    every = run.workload.experiment.recovery.replica_every
    # without a lag, answers that make no update count too
    return every == 1 or replica.stream is None or run.view.version - replica.version >= every


def keeps_evaluations(run: RunState) -> bool:
    """Return whether the replica stores each evaluation on arrival, between two steps of workers."""
    is_current = run.workload.experiment.recovery.replica_every == 1
    return run.replica.is_there and is_current and not run.replica.asks


def keep(run: RunState, rest: Sequence[Action] = ()) -> Script[None]:
    """Wait until the replica has stored the current state; `rest` are the answer's remaining actions.

    It keeps a checkpoint, with the rows of the log that lead to it. Where workers have no more than a place
    in their data they are not asked for their parts. Elsewhere those that wait are asked; one that computes
    had its part asked for when it was released. `unreplicable` has refused the compositions that do not fit
    into that. While pushes wait for a ring the replica has the state that they started from: their payloads
    are with the workers.
    """
    replica, coordinator = run.replica, _coordinator_state(run)
    if not replica.is_there:  # it was lost while the model was made
        return
    if any(key_of(push) not in run.store.waiting for push in run.view.pending.values()):
        return
    if replica.stream is None:
        replica.stream = LogStream(run.out, run.log, REPLICA)
        replica.stream.begin_where(run.log_stream)
        replica.since = replica.stream.sent
    replica.awaited = tag = next(run.numbers)
    replica.version = run.view.version
    run.log_stream.held = True
    idle = idle_workers(run.view, released(rest)) if replica.asks else {}
    present = run.peers.workers()
    waits = {worker: True for worker, waits in idle.items() if waits and worker in present}
    _capture(run, rest, coordinator, waits, partial(_send, run, tag, waits), partial(_known_part, run))
    yield Wait(lambda: replica.awaited is None, lambda: f"{REPLICA} (to keep the state)")


def _known_part(run: RunState, worker: int) -> WorkerPart:
    return run.replica.parts.get(worker) or part_at(pushes.handled_position(run, worker))


def _send(run: RunState, tag: int, asked: Collection[int], state: dict[str, Any], tensors: StateDict) -> None:
    """Send the replica a state and the log up to it."""
    replica = run.replica
    if replica.stream is None or tag != replica.awaited:
        return  # the replica that was to have it was lost meanwhile
    for worker in asked:
        replica.parts.pop(worker, None)
        if (own := state["workers"].get(str(worker))) is not None:  # else it was lost meanwhile
            part = WorkerPart(own, under(f"worker/{worker}/", tensors))
            replica.parts[worker] = _as_of_release(part)
    replica.stream.send()
    run.out.send(REPLICA, msg.KeepState(tag, *replica.since, Json(state), tensors))


def take_receipt(run: RunState, tag: int) -> None:
    """Continue once the replica has confirmed the awaited state."""
    if tag == run.replica.awaited:
        _confirm(run)


def _confirm(run: RunState) -> None:
    run.replica.awaited = None
    run.log_stream.held = False
