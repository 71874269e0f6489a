"""A live worker's part of a checkpoint; `backends.checkpointing` says what else a checkpoint holds."""

from __future__ import annotations

from typing import Any

from psbench.backends.checkpointing import named
from psbench.backends.dask.protocol.framing import State
from psbench.backends.dask.worker.exchange import WorkerExchange
from psbench.core.strategy import Strategy
from psbench.core.worker_loop import WorkerLoop
from psbench.training.batches import BatchPosition
from psbench.training.local_model import LocalModel


def state_as_of_release(position: BatchPosition, exchange: WorkerExchange) -> tuple[State, dict[str, Any]]:
    """Return what a worker needs to go on that computes or has a push under way: both are void then.

    Parameters
    ----------
    position : BatchPosition
        Where it was in its data at its last release.
    """
    tensors, plain = exchange.checkpoint(False)
    return tensors, plain | {"position": position, "used": position.steps}


def state_of_waiting(
    position: BatchPosition,
    exchange: WorkerExchange,
    loop: WorkerLoop | None,
    lr: float,
    model: LocalModel | None,
) -> tuple[State, dict[str, Any]]:
    """Return what a worker needs to go on that waits for a release.

    Parameters
    ----------
    loop : WorkerLoop or None
        None before the first release.
    model : LocalModel or None
        Of a worker that steps by itself; all others are sent the model again.
    """
    tensors, plain = exchange.checkpoint(True)
    plain |= {"position": position, "used": position.steps}
    if loop is not None:
        plain |= {"loop": loop.state_dict(), "lr": lr, "next_chunk_s": None}
        if model is not None:
            tensors |= named("model/", model.state_dict())
    return tensors, plain


def restored_loop(plain: dict[str, Any], composition: Strategy, worker: int) -> WorkerLoop | None:
    """Return the worker loop of a checkpoint; None if the worker had not been released."""
    if "loop" not in plain:
        return None
    loop = WorkerLoop(composition, worker, 1)  # its state has the batch size, too
    loop.load_state_dict(plain["loop"])
    return loop
