"""The start of a live run: wait for its processes, then start training or resume from a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from psbench.backends.checkpointing import Resumption, named, released, resumed, resumption, under
from psbench.backends.dask.coordinator import evaluation, membership
from psbench.backends.dask.coordinator.driver import LiveDriver
from psbench.backends.dask.coordinator.run_state import RunState, Script, Wait
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Json
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.roles import names_or_count, worker_name
from psbench.backends.dask.server.gossip import GossipStore
from psbench.backends.dask.server.parameter_server import as_lists
from psbench.backends.dask.server.store import NO_CODEC_COUNTERS
from psbench.checkpoints.file import Checkpoint
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.collective import Collective
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.strategy import Strategy
from psbench.errors import BackendError, Cancelled, ServerLost, WorkerLost
from psbench.training.server import AGGREGATION, OPTIMIZER

_NOT_BEGUN = "stopped by hand before training began"


@dataclass
class Start:
    """The checkpoint from which a live run resumes, and the log up to it."""

    checkpoint: Checkpoint
    rows: int
    texts: list[str]


def await_peers(run: RunState) -> Script[None]:
    """Wait until every expected process is ready.

    Raises
    ------
    PsbenchError
        If the run is stopped, a process does not report in time, or no worker is left.
    """
    limit_s = run.workload.experiment.connection.start_within_s

    def is_over() -> bool:
        return run.peers.are_ready or bool(run.ending) or run.now > limit_s

    yield Wait(is_over, lambda: _missing(run))
    if run.ending:
        if run.retired:
            raise ServerLost(f"the Dask worker of {run.retired} was retired before training began")
        raise Cancelled(_NOT_BEGUN)
    if not run.peers.are_ready:
        raise BackendError(
            f"{_missing(run)} did not report within {limit_s:g} s "
            "(connection.start_within_s): are the Dask workers busy?"
        )
    if not (run.peers.workers() or membership.awaits_worker(run)):
        raise WorkerLost("every worker was lost before training began")


def _missing(run: RunState) -> str:
    return names_or_count(run.peers.missing, run.peers.num_expected, "processes")


def begin(run: RunState, driver: LiveDriver) -> Script[None]:
    """Evaluate the first model, start training, and perform the engine's first answer."""
    driver.use(0, None)
    yield from evaluation.evaluate_start(run)
    _start_training(run, 0.0)
    starters, here = run.workload.profile.starters, run.peers.workers()
    yield from driver.perform(run.engine.begin(worker for worker in here if worker in starters))


def _start_training(run: RunState, time_s: float) -> None:
    """Start training; `begin_s` is the run's time."""
    run.start_s = time_s
    membership.start_training(run, run.clock_s - time_s)


# -------------------------------------------------------------------- from a checkpoint


def resume(run: RunState, driver: LiveDriver, start: Start) -> Script[None]:
    """Restore a checkpoint, and perform the rest of its answer, unless the run ends there."""
    state, view, workers = start.checkpoint.state, run.view, run.peers.workers()
    run.log_stream.resume(start.rows, start.texts)
    run.pushes.next_number = state["next_push"]
    run.engine.load_state_dict(state["engine"])
    goes_on = resumption(start.checkpoint, view, run.engine.composition)
    checkpoint = goes_on.checkpoint
    composition = run.workload.experiment.strategy.compositions[view.in_force]
    _resume_workers(run, workers, checkpoint, isinstance(composition.placement, Collective))
    for worker, own in state["workers"].items():
        if own["position"] is not None:
            run.pushes.done[int(worker)] = tuple(own["position"][:2])
    driver.use(view.in_force, _store_state(checkpoint), state.get("codecs") or NO_CODEC_COUNTERS)
    lost = _without_part(workers, checkpoint, composition)
    for worker in sorted(lost):  # its process is there, and is as one that has taken another's place
        run.store.leave(worker, view.last_ticket(worker))
        run.store.join(worker)
    if isinstance(run.store, GossipStore):
        for worker in workers:
            run.store.repeat_messages(worker)
    run.checkpoint_schedule.advance()
    run.rules.load_state_dict(state["stop_rules"], view.epoch)
    _start_training(run, state["time_s"])
    run.timers.due(state["time_s"])  # earlier joins and failures are in the engine's state
    timers, evaluations = _events_from_plain(state["events"], state["time_s"])
    for at, event in timers:
        run.timers.add(at, event)
    if awaited := state.get("awaited"):  # the model of an earlier version is gone: the next one is this
        evaluation.evaluate(run, max(awaited))
    run.events.extend(evaluations)
    reason = run.rules.after_update(view, state["movement"])
    if run.averages or not reason:
        changes = membership.changes_since_checkpoint(run, state["time_s"], lost)
        run.events.extend(changes)  # before those of the wait
        yield from driver.perform(_first_actions(run, goes_on, {*run.peers.workers()} - lost))
    else:
        run.ending.unanswered = bool(released(goes_on.rest))
    if reason:  # where models diverge, the last answer says first which steps the workers keep
        run.ending.finish(reason)


def _store_state(checkpoint: Checkpoint) -> StateDict:
    """Return the initial tensors of a store, under its own names."""
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


def _resume_workers(
    run: RunState, workers: Collection[int], checkpoint: Checkpoint, collective: bool
) -> None:
    """Send each worker its part of a checkpoint; under a `collective` placement, also its payload."""
    view = run.view
    ranges = None if view.ranges is None else as_lists(view.ranges)
    pushes = {push.worker: push.id for push in view.pending.values()} if collective else {}
    for worker in workers:
        own = under(f"worker/{worker}/", checkpoint.tensors)
        if worker in pushes:  # what it adds to the next ring
            own |= named("push/", under(f"push/{pushes[worker]}/", checkpoint.tensors))
        part = checkpoint.state["workers"].get(str(worker))
        state = None if part is None else Json(part)
        run.out.send(worker_name(worker), msg.ResumeWorker(view.in_force, ranges, state, own))


def _without_part(workers: Collection[int], checkpoint: Checkpoint, composition: Strategy) -> set[int]:
    """Return the workers whose own models are missing from a checkpoint."""
    parts = checkpoint.state["workers"]
    is_lost = isinstance(composition.placement, PeerToPeer)
    return {worker for worker in workers if is_lost and str(worker) not in parts}


def _first_actions(run: RunState, resumption: Resumption, workers: Collection[int]) -> list[Action]:
    """Return the first actions of a resumed run: the remaining actions for the present workers."""
    epochs = run.workload.experiment.stop.epochs
    rest = [action for action in resumption.rest if not hasattr(action, "worker") or action.worker in workers]
    actions = resumed(run.engine, rest, epochs, resumption.again & {*workers})
    return [action for action in actions if not hasattr(action, "worker") or action.worker in workers]


def _events_from_plain(
    plain: Sequence[Sequence[Any]], time_s: float
) -> tuple[list[tuple[float, ev.Event]], list[ev.Event]]:
    """Return a checkpoint's timers and requests due at `time_s`, and its unhandled evaluations."""
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
