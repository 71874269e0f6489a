"""Power and prices of a cluster's machines, from which the energy and the cost of a run are computed."""

from __future__ import annotations

import math
from typing import Any

from pydantic import ValidationInfo, field_validator

from psbench.clusters.each_worker import OfEachWorker, per_worker, spread
from psbench.core import Specification, parameter
from psbench.errors import ParameterError

#: fields with a number for each worker
_PER_WORKER = ("idle_watts", "busy_watts", "price_per_hour", "spot_price_per_hour")


class Costs(Specification):
    """Power and prices of machines; they change no time and no decision.

    A machine has `busy_watts` while it computes, and `idle_watts` while it waits or communicates. It is paid
    for from when it joins until it leaves, whatever it does. All are numbers for all workers, or lists with
    one for each. Prices are in any currency.

    Parameters
    ----------
    joules_per_byte : float, joules
        Of a payload byte that passes between two machines; the worker that sends or receives it is charged.
    spot_price_per_hour : float, list or None
        Of a worker on machines that may be taken away; the run's `spot_cost` is its cost at this price. The
        cluster's `failures` tell what a preemption does to a run.

    Examples
    --------
    >>> Costs(busy_watts=[100, 200], idle_watts=50).facts(2)["busy_watts"]
    [100.0, 200.0]
    """

    idle_watts: OfEachWorker = parameter(0.0, "power of a worker that does not compute", unit="W")
    busy_watts: OfEachWorker = parameter(0.0, "power of a worker that computes", unit="W")
    server_idle_watts: float = parameter(0.0, "power of a server that waits", unit="W", ge=0)
    server_busy_watts: float = parameter(0.0, "power of a server that processes a message", unit="W", ge=0)
    joules_per_byte: float = parameter(0.0, "energy of the network for each byte", unit="J/B", ge=0)
    price_per_hour: OfEachWorker = parameter(0.0, "price of a worker for an hour")
    server_price_per_hour: float = parameter(0.0, "price of a server for an hour", ge=0)
    spot_price_per_hour: OfEachWorker | None = parameter(
        None, "price of a worker as a spot instance for an hour"
    )

    @field_validator(*_PER_WORKER, mode="before")
    @classmethod
    def _per_worker(cls, value: Any, info: ValidationInfo) -> OfEachWorker | None:
        if value is None and info.field_name == "spot_price_per_hour":
            return None
        what = f"costs: {info.field_name}"
        found = per_worker(value, what)
        for each in spread(found, 1):
            if not 0 <= each < math.inf:
                raise ParameterError(f"{what}: must be a finite number of at least 0, got {each:g}")
        return found

    def check(self, num_workers: int) -> None:
        """Raise if a list does not fit the cluster, or a machine needs less power while it computes.

        Raises
        ------
        ParameterError
        """
        for name in _PER_WORKER:
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != num_workers:
                raise ParameterError(f"costs: {name} has {len(value)} values for {num_workers} workers")
        pairs = zip(spread(self.idle_watts, num_workers), spread(self.busy_watts, num_workers), strict=True)
        for worker, (idle, busy) in enumerate(pairs):
            if busy < idle:
                raise ParameterError(
                    f"costs: worker {worker} has busy_watts {busy:g}, less than its idle_watts {idle:g}"
                )
        if self.server_busy_watts < self.server_idle_watts:
            raise ParameterError(
                f"costs: server_busy_watts {self.server_busy_watts:g} is less than server_idle_watts "
                f"{self.server_idle_watts:g}"
            )

    def facts(self, num_workers: int) -> dict[str, Any]:
        """Return the numbers as plain data, with one for each worker."""
        plain = self.model_dump()
        given = [name for name in _PER_WORKER if plain[name] is not None]
        return plain | {name: list(spread(getattr(self, name), num_workers)) for name in given}
