"""Measured energy of the machines of a live run, for clusters with watts or prices."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from distributed import Client

from psbench.backends.dask.attempt import Attempt
from psbench.backends.dask.rpc import Unresponsive, ask
from psbench.backends.outcome import Outcome
from psbench.clusters.connection import ConnectionSettings
from psbench.errors import ServerLost
from psbench.system.rapl import RaplMeter

#: of this process, by the run's name
_METERS: dict[str, RaplMeter] = {}


def begin_meter(run: str) -> None:
    """Start the meter of a run on a Dask worker."""
    _METERS[run] = RaplMeter()


def end_meter(run: str) -> tuple[str, float | None]:
    """Return the name of a Dask worker's machine, and the joules of its processors; None without counters."""
    meter = _METERS.pop(run, None)
    return platform.node(), None if meter is None else meter.end()


class EnergyMeters:
    """RAPL meters on the Dask workers of a run.

    Parameters
    ----------
    client : Client
        Dask's.
    limits : ConnectionSettings
    """

    def __init__(self, client: Client, limits: ConnectionSettings) -> None:
        self._client, self._limits = client, limits
        self._run = secrets.token_hex(8)
        self._of = set[str]()

    def run(self, attempt: Attempt) -> Outcome:
        """Run an attempt to its end; return its outcome with the joules, or the reason why there are none."""
        self.begin(attempt.placed.values())
        outcome = attempt.run()
        joules, incidents = self.joules()
        facts = outcome.facts | ({"measured_joules": joules} if joules else {})
        return replace(outcome, facts=facts | {"incidents": [*facts.get("incidents", ()), *incidents]})

    def begin(self, addresses: Collection[str]) -> None:
        """Start meters on Dask workers that have none yet."""
        new = {*addresses} - self._of
        self._of |= self._ask(begin_meter, new).keys()

    def joules(self) -> tuple[dict[str, float], list[str]]:
        """End the meters; return the joules of each machine, and which machines have not been measured.

        Several Dask workers of a machine have measured the same processors: the one that began first counts.
        """
        found: dict[str, float] = {}
        without = set[str]()
        for host, measured in self._ask(end_meter, self._of).values():
            if measured is None:
                without.add(host)
            else:
                found[host] = max(measured, found.get(host, 0.0))
        hosts, why = ", ".join(sorted(without)), "no RAPL counter that psbench may read"
        return found, [f"energy was not measured on {hosts}: {why}"] if without else []

    def _ask(self, function: Any, of: Collection[str]) -> dict[str, Any]:
        """Return the answers of the Dask workers that give one: a run does not fail by its meters."""
        try:
            return ask(self._client, function, self._run, of=of, limits=self._limits) if of else {}
        except (ServerLost, Unresponsive):
            return {}
