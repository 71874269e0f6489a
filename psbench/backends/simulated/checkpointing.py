"""The states of workers, payloads and versions in a checkpoint of a simulation.

Steps and messages under way are in no checkpoint: their workers begin again, with the batches, the step
times and the codec state that they had at their last release. What is still to be performed of the last
answer is in it, so that a barrier continues as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from psbench.backends.checkpointing import SELECTION, idle_workers, named, under
from psbench.backends.simulated.resources import Resources
from psbench.backends.simulated.workers import Workers
from psbench.core.events import Push
from psbench.training.batches import BatchPosition
from psbench.training.mixing import ModelVectors


def worker_states(
    workers: Workers, resources: Resources, spared: list[int], under_way: Mapping[int, Push]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return each worker's tensors and plain data; `spared` workers are about to be released."""
    tensors: dict[str, Tensor] = {}
    states = {}
    for number, waits in idle_workers(resources.view, spared).items():
        # a step that this answer cancels has used up its batch, also in the run that goes on
        push = None if number in spared else under_way.get(number)
        own, states[str(number)] = workers.checkpoint(number, waits, push)
        own |= {} if resources.corruptions is None else resources.corruptions.tensors(number)
        tensors |= named(f"worker/{number}/", own)
    return tensors, states


def restore_workers(
    workers: Workers, resources: Resources, state: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Restore the state from `worker_states`, with each worker's position in its data and step times."""
    used = [0] * resources.workload.profile.num_workers
    for name, plain in state["workers"].items():
        number = int(name)
        used[number] = plain["used"]
        if plain["position"] is not None and resources.trainer is not None:
            resources.trainer.go_to(number, BatchPosition(*plain["position"]))
        own = under(f"worker/{name}/", tensors)
        if resources.trainer is not None:
            resources.trainer.remember(number, under(SELECTION, own))
        workers.restore(number, own, plain)
        if resources.corruptions is not None:
            resources.corruptions.load(own)
    resources.step_times.load_state_dict({"used": used})
    if "codecs" in state:
        workers.exchange.restore_codecs(under("codecs/", tensors), state["codecs"])


def payload_tensors(payloads: Mapping[int, ModelVectors]) -> dict[str, Tensor]:
    """Return the payloads of pushes that await a commit, by push."""
    found: dict[str, Tensor] = {}
    for number, (payload, buffers) in payloads.items():
        found |= {f"push/{number}/payload": payload, f"push/{number}/buffers": buffers}
    return found


def payloads_in(tensors: Mapping[str, Tensor], pending: Mapping[int, Push]) -> dict[int, ModelVectors]:
    """Return the payloads of the pushes in the engine's view."""
    found = under("push/", tensors)
    return {
        number: (found[f"{number}/payload"], found[f"{number}/buffers"])
        for number in pending
        if f"{number}/payload" in found
    }
