"""Local steps on what a region's server answers with, which is a model."""

from __future__ import annotations

from typing import Literal

from psbench.core import State, Vector, WorkerStep, parameter
from psbench.strategies.communication.dynamic_local_sgd import DynamicLocalSGD

SOURCE = "Kim et al. 2025 (HALoS)"


class RegionalSGD(DynamicLocalSGD):
    """Go on from the answer to a push, which is the model of the worker's region.

    A worker is ordered h_i = max(1, ceil(v_i / v_max * H)) steps, by its measured speed, as in
    `dynamic_local_sgd`, which rounds down.

    Notes
    -----
    Reduces to: `dynamic_local_sgd` where all regions have one model.
    The authors' script takes 8 steps of the fastest worker. Their simulator is given the speeds and rounds up
    (utnslab/halos 4b5bf73, src/halos/simulation/common.py, lines 506-513); here they are measured.
    """

    name = "regional_sgd"
    source = SOURCE
    takes_models = True

    local_steps: int = parameter(8, "steps of the fastest worker", unit="steps", source=SOURCE, ge=1)
    rounding: Literal["down", "up"] = parameter(
        "up", "how a number of steps that is not whole is rounded", source=SOURCE
    )

    def receive(self, w: Vector, answer: Vector, state: State, own: WorkerStep) -> None:
        """Take the region's model."""
        self.begin(w, answer, state, own)
