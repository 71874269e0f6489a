"""The peers of a live run: those that are expected, ready, and gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from psbench.backends.dask.protocol.messages import Ready, ServedReport, StampsReport, UsageReport
from psbench.backends.dask.protocol.roles import Address, worker_name, worker_number


class Peers:
    """The processes that take part in a run.

    Parameters
    ----------
    expected : sequence of str
        The names of all.
    """

    def __init__(self, expected: Sequence[str]) -> None:
        self._expected = list(expected)
        self.known = set(expected)  #: names of all that have taken part
        self._ready: dict[str, Ready] = {}
        self._connected: set[str] = set()
        self._dismissed: set[str] = set()
        self.gone: set[str] = set()  #: names of those that are dead, or were refused
        self.usage = dict[str, dict[str, Any]]()  #: what each worker has used, by its name
        self.stamps = dict[str, dict[str, Any]]()  #: when its messages came and went, if that is asked for
        self.served = dict[str, dict[str, Any]]()  #: what each server's time went into, if that is
        self._reports = {UsageReport: self.usage, StampsReport: self.stamps, ServedReport: self.served}

    def connect(self, name: str) -> None:
        """Take note of a peer's connection."""
        self._connected.add(name)
        if worker_number(name) is None:
            self.gone.discard(name)

    def admit(self, name: str, ready: Ready) -> None:
        """Take note that a peer can begin, be it that it was missing or lost."""
        self._ready[name] = ready
        self.gone.discard(name)
        if name not in self._expected:
            self._expected.append(name)
            self.known.add(name)

    def expect_again(self, name: str) -> None:
        """Take note that a peer is gone, and another is to be ready in its place."""
        self._ready.pop(name, None)

    def do_without(self, name: str) -> None:
        """Take note that no other takes the place of a peer that is gone."""
        if name in self._expected:
            self._expected.remove(name)

    def has_connected(self, name: str) -> bool:
        """Whether a peer has connected, and its death would show."""
        return name in self._connected

    def report(self, name: str, report: UsageReport | StampsReport | ServedReport) -> None:
        """Take note of what a worker or server reports at the end."""
        self._reports[type(report)][name] = asdict(report)

    @property
    def present(self) -> list[str]:
        """Names of those that are connected."""
        return sorted(self._connected - self.gone)

    @property
    def to_look_at(self) -> tuple[str, ...]:
        """Names of those whose death would be a loss: workers that were dismissed may be gone."""
        return tuple(name for name in self.present if name not in self._dismissed)

    @property
    def num_expected(self) -> int:
        """How many peers the run has, ready or not."""
        return len(self._expected)

    @property
    def missing(self) -> list[str]:
        """Names of those that are not ready yet."""
        return [name for name in self._expected if name not in self._ready]

    def workers(self) -> list[int]:
        """Return the training workers that are not gone."""
        numbers = (worker_number(name) for name in self._expected if name not in self.gone)
        return sorted(number for number in numbers if number is not None)

    @property
    def lost_workers(self) -> set[int]:
        """Workers whose processes are gone."""
        return {worker for name in self.gone if (worker := worker_number(name)) is not None}

    @property
    def rings(self) -> dict[int, Address | None]:
        """Where each worker listens for pieces of rings."""
        return {worker: self._ready[worker_name(worker)].ring for worker in self.workers()}

    @property
    def without_usage(self) -> list[str]:
        """Names of the workers that are not gone and have not said what they used."""
        names = map(worker_name, self.workers())
        return [name for name in names if name not in self.usage]

    def dismiss(self, name: str) -> None:
        """Note that a worker has been sent the end of the run: it reports its usage, and may then be gone."""
        self._dismissed.add(name)

    def lose(self, name: str) -> None:
        """Remove a peer."""
        self.gone.add(name)
        self._connected.discard(name)
