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
    state = _codec_state(worker, waits, plain)
    if waits and worker.loop is not None:
        plain |= {"loop": worker.loop.state_dict(), "lr": worker.lr, "next_chunk_s": None}
        if worker.own_steps:
            state |= named("model/", worker.model.state_dict())
    return state, plain


def _codec_state(worker: Worker, waits: bool, plain: dict[str, Any]) -> State:
    if worker.connections is None:
        return {} if worker.owed is None else {"residual": worker.owed}
    tensors, sent = worker.connections.checkpoint(waits)
    plain |= sent
    return tensors


def begin_from(worker: Worker, plain: dict[str, Any], state: State) -> None:
    """Let a worker go on from what was recorded."""
    if plain["position"] is not None:
        worker.trainer.go_to(worker.worker, Position(*plain["position"]))
    if worker.connections is None:
        worker.owed = state.get("residual")
    else:
        worker.connections.restore(state, plain)
    if "loop" in plain:
        worker.loop = WorkerLoop(worker.composition, worker.worker, 1)  # which sets its batch, too
        worker.loop.load_state_dict(plain["loop"])
        worker.lr = plain["lr"]
    model = under("model/", state)
    if model:
        worker.model.load_state_dict(model)
