"""Local steps that start from the answer to a push, which differs from the server's model."""

from __future__ import annotations

from typing import Literal

from psbench.core import parameter
from psbench.core.answered_models import AnsweredSteps
from psbench.strategies.communication.dynamic_local_sgd import DynamicLocalSGD
from psbench.strategies.communication.local_sgd import LocalSGD

SOURCE = "Kim et al. 2025 (HALoS)"


class AnsweredSGD(AnsweredSteps, LocalSGD):
    """Push after every `local_steps` steps, and continue from the model in the reply.

    Notes
    -----
    Reduces to: `local_sgd` where the answer is the server's model.
    """

    name = "answered_sgd"
    source = "Al Asif et al. 2026 (HeLoCo)"


class RegionalSGD(AnsweredSteps, DynamicLocalSGD):
    """Continue from the reply to a push: the model of the worker's region.

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

    local_steps: int = parameter(8, "steps of the fastest worker", unit="steps", source=SOURCE, ge=1)
    rounding: Literal["down", "up"] = parameter(
        "up", "rounding of a fractional number of steps", source=SOURCE
    )
