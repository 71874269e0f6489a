"""Local SGD with more steps on faster workers, so that all push at about the same time."""

from __future__ import annotations

from typing import Literal

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Orders, Push, Status, parameter
from psbench.core.rounding import ceil, floor
from psbench.strategies.communication.local_sgd import Local

SOURCE = "Liu et al. 2024 (Async Local-SGD)"


class DynamicLocalSGD(Local):
    """Assign worker i max(1, floor(v_i / v_max * H)) local steps, where v_i is its measured speed.

    All workers so need about the same time between two pushes (dynamic local updates, DyLU).

    Parameters
    ----------
    local_steps : int, steps, >= 1
        H, the steps of the fastest worker; of every worker until its speed is known.
    rounding : "down" or "up"
        The paper has the floor; the simulator of HALoS has the ceiling, also for its asynchronous and
        synchronous baselines (utnslab/halos 4b5bf73, src/halos/simulation/common.py, lines 506-513).

    Notes
    -----
    Reduces to: `local_sgd` when all workers are equally fast.
    Our reading: the speed is that of the last push, computing only; the reference is the fastest worker.
    Known from accounts of others.
    """

    name = "dynamic_local_sgd"
    source = "Liu et al. 2024 (Async Local-SGD), sec. 5"
    reads = ("compute_s",)

    local_steps: int = parameter(20, "steps of the fastest worker", unit="steps", source=SOURCE, ge=1)

    rounding: Literal["down", "up"] = parameter(
        "down", "rounding of a fractional number of steps", source=SOURCE
    )

    _step_s: dict[str, float] = PrivateAttr(default_factory=dict)  # seconds of a step, by worker

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Record the duration of a step."""
        assert push.stats is not None  # the backend sends what `reads` declares
        self._step_s[str(push.worker)] = push.stats["compute_s"] / push.steps
        return []

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Forget the speed of a worker, which may return on another machine."""
        self._step_s.pop(str(worker), None)
        return []

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the number of steps until the next push, from the worker's relative speed."""
        own = self._step_s.get(str(worker), 0.0)
        if view.workers[worker].status is Status.NEW or own <= 0:
            return {"local_steps": self.local_steps}
        exact = self.local_steps * min(self._step_s.values()) / own
        return {"local_steps": max(1, floor(exact) if self.rounding == "down" else ceil(exact))}
