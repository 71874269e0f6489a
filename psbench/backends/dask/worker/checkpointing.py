"""What a live worker tells for a checkpoint, and how one begins from that; see `resume` of the backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psbench.backends.checkpointing import named, under
from psbench.backends.dask.server.store import State
from psbench.core.worker_loop import WorkerLoop
from psbench.training.batches import Position

if TYPE_CHECKING:
    from psbench.backends.dask.worker.worker import Worker


def recorded(worker: Worker, waits: bool) -> tuple[State, dict[str, Any]]:
    """Return what a worker needs to go on: as it is if it waits, else as it was when it was answered.

    Models are told only by those who step by themselves; all others are sent the model again.
    """
    now = worker.trainer.position(worker.worker)
    position = now if waits or worker.begins is None else worker.begins
    plain: dict[str, Any] = {"position": position, "used": position.steps}
    state = _unsaid(worker, waits, plain)
    if waits and worker.loop is not None:
        plain |= {"loop": worker.loop.state_dict(), "lr": worker.lr, "next_chunk_s": None}
        if worker.own_steps:
            state |= named("model/", worker.model.state_dict())
    return state, plain


def _unsaid(worker: Worker, waits: bool, plain: dict[str, Any]) -> State:
    connections = worker.connections
    if connections is None:
        return {} if worker.owed is None else {"unsaid": worker.owed}
    unsaid, plain["num_sent"] = (
        (connections.unsaid, connections.num_sent) if waits else connections.when_answered
    )
    found = {"unsaid": unsaid, "held": connections.held if waits else None}
    return {name: each for name, each in found.items() if each is not None}


def begin_from(worker: Worker, plain: dict[str, Any], state: State) -> None:
    """Let a worker go on from what was recorded."""
    if plain["position"] is not None:
        worker.trainer.go_to(worker.worker, Position(*plain["position"]))
    _owe(worker, plain, state)
    if "loop" in plain:
        worker.loop = WorkerLoop(worker.composition, worker.worker, 1)  # which sets its batch, too
        worker.loop.load_state_dict(plain["loop"])
        worker.lr = plain["lr"]
    model = under("model/", state)
    if model:
        worker.model.load_state_dict(model)


def _owe(worker: Worker, plain: dict[str, Any], state: State) -> None:
    unsaid, connections = state.get("unsaid"), worker.connections
    if connections is None:
        worker.owed = unsaid
        return
    connections.num_sent = plain.get("num_sent", 0)
    if unsaid is not None:
        connections.owe(unsaid)
    if "held" in state:
        connections.hold(state["held"])
    connections.answered()
