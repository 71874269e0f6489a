"""A cluster as numbers: all that a backend needs to simulate or emulate it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from psbench.clusters.faults import Corruption, Failure, LateJoin, Slowdown, Throttle, check_incidents
from psbench.clusters.service import NO_SERVICE, Service
from psbench.clusters.step_time import StepTime
from psbench.errors import ParameterError

#: fields of a profile with one positive number per worker
_PER_WORKER = ("speed", "bandwidth_mbit_s", "memory_gb")
_POSITIVE = ("seconds_per_sample",)
_NOT_NEGATIVE = ("seconds_per_step", "server_latency_s", "read_seconds_per_sample")


#: a forward pass takes about a third of a training step, which is forward, backward and backward again
_FORWARD = 1 / 3


@dataclass(frozen=True)
class Profile:
    """A cluster as numbers.

    One step of `samples` samples on worker i takes (seconds_per_step + samples * (seconds_per_sample +
    read_seconds_per_sample)) / speed[i] * factor seconds, with the factor drawn from `step_time`, times that
    of a `Slowdown` in force when the step begins.

    Parameters
    ----------
    name : str
    speed : (num_workers,), > 0
        Relative; 1 is the reference machine.
    memory_gb, vcpu, flavour : (num_workers,)
        Gigabytes; virtual CPUs, None where not known; what the machines are called, which may be empty.
    bandwidth_mbit_s, latency_s : (num_workers,)
    bandwidth_down_mbit_s, peer_latency_s, peer_pause_s, peer_message_s : (num_workers,) or None
    server_bandwidth_mbit_s : float or (num_servers,)
    **others
        These and all others mean what the fields of these names mean in `Cluster`.

    Raises
    ------
    ParameterError
    """

    name: str
    speed: tuple[float, ...]
    step_time: StepTime
    seconds_per_sample: float
    seconds_per_step: float
    bandwidth_mbit_s: tuple[float, ...]
    latency_s: tuple[float, ...]
    server_bandwidth_mbit_s: float | tuple[float, ...]
    server_latency_s: float
    memory_gb: tuple[float, ...]
    vcpu: tuple[float | None, ...]
    flavour: tuple[str, ...]
    slowdowns: tuple[Slowdown, ...] = ()
    failures: tuple[Failure, ...] = ()
    joins: tuple[LateJoin, ...] = ()
    corruptions: tuple[Corruption, ...] = ()
    read_seconds_per_sample: float = 0.0
    bandwidth_down_mbit_s: tuple[float, ...] | None = None
    service: Service = NO_SERVICE
    link_time: StepTime | None = None
    first_window_bytes: int = 0
    paces_live_runs: bool = False
    link_sharing: str = "in_turn"
    cores: float = 0.0
    throttles: tuple[Throttle, ...] = ()
    achieved_rates: tuple[tuple[float, float], ...] = ()
    workers_per_host: int = 1
    host_bandwidth_mbit_s: float = 10_000.0
    host_latency_s: float = 5e-5
    peer_latency_s: tuple[float, ...] | None = None
    peer_pause_s: tuple[float, ...] | None = None
    peer_message_s: tuple[float, ...] | None = None
    racks: tuple[int, ...] = ()
    rack_bandwidth_mbit_s: float = 10_000.0
    rack_latency_s: float = 0.0

    def __post_init__(self) -> None:
        where = f"cluster {self.name!r}"
        if not self.speed:
            raise ParameterError(f"{where}: needs at least one worker")
        for key in (*_PER_WORKER, "latency_s", "vcpu", "flavour"):
            _same_length(where, key, getattr(self, key), len(self.speed))
        for key in _PER_WORKER:
            _each(where, key, getattr(self, key), positive=True)
        _each(where, "latency_s", self.latency_s, positive=False)
        _same_length(where, "bandwidth_down_mbit_s", self.down_mbit_s, len(self.speed))
        _each(where, "bandwidth_down_mbit_s", self.down_mbit_s, positive=True)
        for key in ("peer_latency_s", "peer_pause_s", "peer_message_s"):
            if (own := getattr(self, key)) is not None:
                _same_length(where, key, own, len(self.speed))
                _each(where, key, own, positive=False)
        if self.racks:
            _same_length(where, "racks", self.racks, len(self.speed))
        self.step_time.check_workers(len(self.speed))
        if self.link_time is not None:
            self.link_time.check_workers(2 * len(self.speed))  # to the servers, and then back
        for server, mbit_s in enumerate(self._server_links):
            of = f" of server {server}" if isinstance(self.server_bandwidth_mbit_s, tuple) else ""
            _number(f"{where}: server_bandwidth_mbit_s{of}", mbit_s, positive=True)
        for key in (*_POSITIVE, *_NOT_NEGATIVE):
            _number(f"{where}: {key}", getattr(self, key), positive=key in _POSITIVE)
        _check_rates(where, self.achieved_rates)
        happens = self.slowdowns, self.failures, self.joins, self.corruptions, self.throttles
        check_incidents(where, self.num_workers, *happens)

    @property
    def num_workers(self) -> int:
        """Number of workers, including those that join late."""
        return len(self.speed)

    @property
    def down_mbit_s(self) -> tuple[float, ...]:
        """Each worker's link to the worker."""
        return self.bandwidth_mbit_s if self.bandwidth_down_mbit_s is None else self.bandwidth_down_mbit_s

    def between_s(self, one: int, other: int) -> float:
        """Return the latency between two workers, seconds."""
        over_lines = self.rack_latency_s * len(self.lines(one, other))
        if self.peer_latency_s is None:
            return max(self.latency_s[one], self.latency_s[other]) + over_lines
        return self.peer_latency_s[one] + self.peer_latency_s[other] + over_lines

    def pause_s(self, one: int, other: int) -> float:
        """Return the pause of a model on its way between two workers, in seconds."""
        return 0.0 if self.peer_pause_s is None else self.peer_pause_s[one] + self.peer_pause_s[other]

    def message_s(self, worker: int) -> float:
        """Return the time for which a worker sends, or takes in, a message of another one, in seconds."""
        return 0.0 if self.peer_message_s is None else self.peer_message_s[worker]

    def ends_s(self, one: int, other: int) -> float:
        """Return the time that a message between two workers takes of them both, in seconds."""
        return self.message_s(one) + self.message_s(other)

    def lines(self, one: int, other: int) -> list[tuple[str, int]]:
        """Return the lines that a message from one worker to another passes: out of a rack, into one."""
        if not self.racks or self.racks[one] == self.racks[other]:
            return []
        ways = ("out of", self.racks[one]), ("into", self.racks[other])
        return [way for way in ways if way[1]]

    def rack_rates(self, hops: Sequence[tuple[int, int]]) -> list[float]:
        """Return the Mbit/s that lines of racks leave to each of some messages at once; infinite without."""
        over = Counter(line for hop in hops for line in self.lines(*hop))
        return [
            min((self.rack_bandwidth_mbit_s / over[line] for line in self.lines(*hop)), default=inf)
            for hop in hops
        ]

    @property
    def starters(self) -> tuple[int, ...]:
        """The workers that are active at the start."""
        late = {join.worker for join in self.joins}
        return tuple(worker for worker in range(self.num_workers) if worker not in late)

    @property
    def _server_links(self) -> tuple[float, ...]:
        found = self.server_bandwidth_mbit_s
        return found if isinstance(found, tuple) else (found,)

    def server_links(self, servers: int) -> tuple[float, ...]:
        """Return the bandwidth of each of `servers` servers, in megabits per second.

        Raises
        ------
        ParameterError
            If there is a list of another length.
        """
        links = self._server_links
        if not isinstance(self.server_bandwidth_mbit_s, tuple):
            return links * servers
        if len(links) != servers:
            what = f"cluster {self.name!r}: server_bandwidth_mbit_s"
            raise ParameterError(f"{what} has {len(links)} values for {servers} servers")
        return links

    def mean_step_s(self, worker: int, samples: int) -> float:
        """Return the expected seconds of a step, for distributions of mean 1 and outside of slowdowns."""
        per_sample = self.seconds_per_sample + self.read_seconds_per_sample
        return (self.seconds_per_step + samples * per_sample) / self.speed[worker]

    def forward_s(self, samples: int, worker: int | None = None) -> float:
        """Return the seconds of a forward pass over that many samples: a third of a training step.

        On a worker's machine, or on one of speed 1. Nothing varies by chance, and reading samples again takes
        no time: they are the same in every evaluation.
        """
        seconds = samples * self.seconds_per_sample * _FORWARD
        return seconds if worker is None else seconds / self.speed[worker]

    def describe(self) -> list[dict[str, Any]]:
        """Return one row per worker for tables."""
        columns = ("flavour", "vcpu", "memory_gb", "speed", "bandwidth_mbit_s", "latency_s")
        return [
            {"worker": worker} | {column: getattr(self, column)[worker] for column in columns}
            for worker in range(self.num_workers)
        ]


def _same_length(where: str, key: str, values: tuple[Any, ...], num_workers: int) -> None:
    if len(values) != num_workers:
        raise ParameterError(f"{where}: {key} has {len(values)} values for {num_workers} workers")


def _each(where: str, key: str, values: tuple[float, ...], *, positive: bool) -> None:
    for worker, value in enumerate(values):
        _number(f"{where}: {key} of worker {worker}", value, positive=positive)


def _check_rates(where: str, rates: tuple[tuple[float, float], ...]) -> None:
    begins = [begin for begin, _ in rates]
    if begins != sorted(set(begins)) or min(begins, default=0.0) < 0:
        raise ParameterError(f"{where}: achieved_rates must have increasing sizes, in bytes, got {begins}")
    for begin, mbit_s in rates:
        _number(f"{where}: achieved_rates from {begin:g} bytes", mbit_s, positive=True)


def _number(what: str, value: float, *, positive: bool) -> None:
    if not isfinite(value) or value < 0 or (positive and value == 0):
        raise ParameterError(f"{what} must be {'positive' if positive else 'zero or more'}, got {value!r}")
