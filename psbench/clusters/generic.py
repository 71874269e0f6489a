"""Clusters other than published test beds: equal machines, or any."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationInfo, field_validator

from psbench.clusters.cluster import Cluster, Machine
from psbench.clusters.each_worker import OfEachWorker, per_worker, spread
from psbench.core import parameter
from psbench.errors import ParameterError


class Homogeneous(Cluster):
    """Equal machines."""

    name = "homogeneous"
    source = "equal machines"

    workers: int = parameter(4, "number of workers", unit="workers", ge=1, le=65_535)
    memory_gb: float = parameter(8.0, "memory of each worker", unit="GB", gt=0)

    def machines(self) -> list[Machine]:
        """Return equal machines of speed 1."""
        return [Machine(memory_gb=self.memory_gb)] * self.workers


class Custom(Cluster):
    """Machines of any speed; the default for a mapping without a name.

    Examples
    --------
    >>> Custom(workers=2, speed=[1, 0.5]).profile().mean_step_s(worker=1, samples=31)
    0.064
    """

    name = "custom"
    source = "any machines"

    workers: int = parameter(4, "number of workers", unit="workers", ge=1, le=65_535)
    speed: OfEachWorker = parameter(1.0, "relative speed, one for all or one each; 1 is the reference")
    memory_gb: OfEachWorker = parameter(8.0, "memory of the workers, one for all or one each", unit="GB")

    @field_validator("speed", "memory_gb", mode="before")
    @classmethod
    def _numbers(cls, value: Any, info: ValidationInfo) -> OfEachWorker:
        return per_worker(value, f"cluster {cls.name!r}: {info.field_name}")

    def machines(self) -> list[Machine]:
        """Return machines of the given speeds."""
        columns = {
            "speed": spread(self.speed, self.workers),
            "memory_gb": spread(self.memory_gb, self.workers),
        }
        for key, values in columns.items():
            if len(values) != self.workers:
                raise ParameterError(
                    f"cluster 'custom': {key} has {len(values)} values for {self.workers} workers"
                )
        pairs = zip(columns["speed"], columns["memory_gb"], strict=True)
        return [Machine(speed=speed, memory_gb=memory) for speed, memory in pairs]
