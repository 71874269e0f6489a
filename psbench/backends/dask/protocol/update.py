"""How a version is made, as part of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from psbench.backends.dask.protocol.decoder import STRICT
from psbench.core.actions import Apply


@dataclass
class Update:
    """How a version is made, its pushes aside; see `Server.apply`."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    lr_scale: float
    epoch: float
    momentum_scale: float
    numbers: dict[str, float]
    fragment: int = -1

    @classmethod
    def of(cls, apply: Apply) -> Update:
        """Return how the engine wants a version to be made."""
        return cls(apply.lr_scale, apply.epoch, apply.momentum_scale, apply.numbers, apply.fragment)
