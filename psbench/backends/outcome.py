"""The results of a run besides its log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass
class Outcome:
    """The results of a run besides its log.

    `status` is "finished", "stopped" (by the user) or "diverged"; `reason` says which rule or push.
    """

    status: str
    reason: str
    parameters: Tensor | None = None
    buffers: Tensor | None = None
    facts: dict[str, Any] = field(default_factory=dict)
