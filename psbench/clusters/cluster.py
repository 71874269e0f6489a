"""Base of all clusters: common fields, and the settings that a user may change on any cluster."""

# no `from __future__ import annotations`: pydantic would compile these texts again for each subclass

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, cast

from pydantic import (
    NonNegativeInt,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from psbench.clusters.costs import Costs
from psbench.clusters.each_worker import OfEachWorker, per_worker, spread
from psbench.clusters.faults import Corruption, Failure, LateJoin, Slowdown, Throttle
from psbench.clusters.profile import Profile
from psbench.clusters.service import Service
from psbench.clusters.step_time import ShiftedExponential, StepTime
from psbench.core import Part, make_part, parameter
from psbench.core.part import REGISTRY
from psbench.core.specification import limits_of
from psbench.errors import ParameterError

#: fields with a number for each machine
_PER_MACHINE = (
    *("bandwidth_mbit_s", "bandwidth_down_mbit_s", "latency_s", "server_bandwidth_mbit_s"),
    *("peer_latency_s", "peer_pause_s", "peer_message_s"),
)
#: those of them that a cluster need not have
_OPTIONAL = ("bandwidth_down_mbit_s", "peer_latency_s", "peer_pause_s", "peer_message_s")
#: fields of a profile that a machine has
_OF_MACHINE = ("speed", "memory_gb", "vcpu", "flavour")
#: fields that clusters have had for a while only, written where they are used
_LATER = (
    *("throttles", "corruptions", "service", "link_time", "first_window_bytes", "paces_live_runs"),
    *("link_sharing", "cores", "achieved_rates", "costs"),
    *("workers_per_host", "host_bandwidth_mbit_s", "host_latency_s", "peer_latency_s"),
    *("peer_pause_s", "peer_message_s"),
    *("racks", "rack_bandwidth_mbit_s", "rack_latency_s"),
)


@dataclass(frozen=True)
class Machine:
    """The machine of one worker: relative speed, name, virtual CPUs, gigabytes."""

    speed: float = 1.0
    flavour: str = ""
    vcpu: float | None = None
    memory_gb: float = 8.0


class Cluster(Part):
    """A cluster by name; every field here may be overridden on every published test bed.

    Parameters
    ----------
    seconds_per_sample, seconds_per_step : float, seconds at speed 1
        The defaults are of the order of ResNet-20 on eight cores: a batch of 25 takes 26 ms, against 9 ms
        to send its 1.1 MB at the default bandwidth, so that computing dominates, but not by far.
    read_seconds_per_sample : float, seconds at speed 1
        To fetch and decode a sample of a batch, before computing on it. 0 unless you say otherwise: the
        published times per sample contain it.
    bandwidth_mbit_s : float or list, megabits per second
        Each worker's link: from the worker, and to it, too, unless `bandwidth_down_mbit_s` says otherwise.
    bandwidth_down_mbit_s : float, list or None, megabits per second
        Each worker's link to the worker, as of homes, where what comes is faster than what goes.
    latency_s : float or list, seconds
        One way.
    peer_latency_s : float, list or None, seconds
        Each worker's part of the latency to another one, which is the sum of both parts, as of links that
        messages pass one after the other. Without it that is the longer of both `latency_s`.
    peer_pause_s : float, list or None, seconds
        Each worker's part of what a model to another one pauses for, as TCP does for acknowledgements on a
        link that it does not know. A model that waits for its sender's link pauses meanwhile.
    peer_message_s : float, list or None, seconds
        Time for which each worker's process sends, or takes in, a message of another worker. It does so with
        one message after another, and computes nothing meanwhile.
    server_bandwidth_mbit_s : float or list, megabits per second
        A server's link, shared by all workers, one for all servers or one each. With as little as one
        worker's link a single server would be the bottleneck of nearly every asynchronous run.
    service : Service or mapping
        Time that servers take for each message, and the coordinator for each decision.
    link_time : StepTime, its name, a mapping, or None
        How much the latency varies of pushes and of models. Measured seconds (`trace`) have a list for each
        worker's link to the servers, and then one for each link back. Where workers exchange models among
        themselves it is of their reports to the coordinator, and of its orders, which else take no time.
    first_window_bytes : int, bytes
        See `psbench.clusters.network.extra_round_trips`. 0: messages of any size are sent at once.
    link_sharing : "in_turn", "equal" or "equal_up"
        Whether a server's link serves one message after another, or all at once in equal shares, as packets
        of several TCP connections pass. In turn the first of a barrier's answers is there long before the
        last; in equal shares all are as late as the last. "equal_up": pushes share the link, and answers pass
        in turn, as one process gives its network card small messages one after another.
    cores : float
        Cores that all workers share, as processes of one machine do: while more of them compute than there
        are cores, each gets an equal share, and steps take as much longer. 0: none share any.
    achieved_rates : list of [bytes, Mbit/s]
        What a message of at least so many bytes gets of a link at most, with growing sizes: small messages
        often achieve less than large ones. Of several servers, and in a ring, it is the slice that counts.
    workers_per_host : int
        Workers of consecutive numbers share a host. Only a hierarchical All-Reduce uses the links within one.
    host_bandwidth_mbit_s, host_latency_s : float, megabits per second, and seconds one way
        Between two workers of a host.
    racks : list of int
        The rack of each worker; the servers are in rack 0. Every other rack has a line of
        `rack_bandwidth_mbit_s` each way, which all messages into it and out of it share as `link_sharing`
        says of the servers' link.
    rack_latency_s : float, seconds
        Of such a line, between workers; that to the servers is part of the workers' `latency_s`.
    paces_live_runs : bool
        Whether a live worker waits after each step until that has taken what it takes in virtual time, with
        the same draws: machines are emulated with the variation of their times, and a busy computer matters
        less. Steps that take longer than that anyway are not shortened.
    """

    domain = "cluster"

    step_time: SerializeAsAny[StepTime] = parameter(
        ShiftedExponential(),
        "variation of a worker's step times",
        source="our choice: random by default",
    )
    seconds_per_sample: float = parameter(1e-3, "time for one sample at speed 1", unit="s", gt=0)
    seconds_per_step: float = parameter(1e-3, "fixed time of a step, at speed 1", unit="s", ge=0)
    read_seconds_per_sample: float = parameter(
        0.0,
        "time to read one sample of a batch at speed 1; map_reduce scans its partition instead",
        unit="s",
        source="thesis 2.3, t_read",
        ge=0,
    )
    bandwidth_mbit_s: OfEachWorker = parameter(
        1000.0, "a worker's uplink, and its downlink by default", unit="Mbit/s"
    )
    bandwidth_down_mbit_s: OfEachWorker | None = parameter(
        None, "a worker's downlink; none: same as the uplink", unit="Mbit/s"
    )
    latency_s: OfEachWorker = parameter(
        5e-4, "one-way latency between a worker and any other machine", unit="s"
    )
    server_bandwidth_mbit_s: OfEachWorker = parameter(
        10_000.0, "a server's link per direction, shared by the workers", unit="Mbit/s"
    )
    server_latency_s: float = parameter(1e-4, "one-way latency between two servers", unit="s", ge=0)
    slowdowns: tuple[Slowdown, ...] = parameter((), "transient stragglers: worker, from_s, to_s, factor")
    failures: tuple[Failure, ...] = parameter((), "lost workers: worker, at_s, rejoin_s (optional)")
    joins: tuple[LateJoin, ...] = parameter((), "workers that arrive late: worker, at_s")
    corruptions: tuple[Corruption, ...] = parameter(
        (), "workers with corrupted pushes: worker, how, factor, after"
    )
    throttles: tuple[Throttle, ...] = parameter((), "temporarily slow links: worker, from_s, to_s, factor")
    service: Service = parameter(Service(), "time that servers and the coordinator take; off by default")
    link_time: SerializeAsAny[StepTime] | None = parameter(
        None, "variation of the latency of pushes and models; none: constant"
    )
    first_window_bytes: int = parameter(
        0,
        "first window of an idle connection, doubled with every round trip (TCP: 14480); 0: unlimited",
        unit="bytes",
        source="Chu et al. 2013; Allman et al. 2009, sec. 4.1",
        ge=0,
    )
    paces_live_runs: bool = parameter(
        False, "whether live steps are slowed down to their time in the simulation"
    )
    link_sharing: Literal["in_turn", "equal", "equal_up"] = parameter(
        "in_turn",
        "whether messages use a server's link one after another, or concurrently in equal shares; "
        "equal_up: pushes concurrently, and answers one after another",
    )

    cores: float = parameter(
        0.0, "cores of the one machine that all workers compute on; 0: each has its own", ge=0
    )

    achieved_rates: tuple[tuple[float, float], ...] = parameter(
        (), "highest rate of a message by size: pairs of minimum bytes and Mbit/s"
    )

    workers_per_host: int = parameter(1, "workers that share a host", unit="workers", ge=1)
    host_bandwidth_mbit_s: float = parameter(
        10_000.0, "link between two workers of a host", unit="Mbit/s", gt=0
    )
    host_latency_s: float = parameter(5e-5, "one-way latency between two workers of a host", unit="s", ge=0)
    peer_latency_s: OfEachWorker | None = parameter(
        None, "a worker's part of the latency to another; none: the longer latency_s of both", unit="s"
    )
    peer_pause_s: OfEachWorker | None = parameter(
        None, "a worker's part of the pauses of a model to another; none: no pauses", unit="s"
    )
    peer_message_s: OfEachWorker | None = parameter(
        None, "time of a worker's process for each message to or from another; none: no time", unit="s"
    )
    racks: tuple[NonNegativeInt, ...] = parameter((), "rack of each worker, 0: the servers'; empty: no racks")
    rack_bandwidth_mbit_s: float = parameter(
        10_000.0, "line of a rack per direction, shared by its workers", unit="Mbit/s", gt=0
    )
    rack_latency_s: float = parameter(
        0.0, "latency of a rack's line one way, between workers", unit="s", ge=0
    )
    costs: Costs | None = parameter(None, "watts and prices of the machines; none: not known")

    @field_validator("link_time", mode="before")
    @classmethod
    def _link_time(cls, value: Any) -> Part | None:
        return None if value is None else make_part("step_time", value)

    @field_validator("step_time", mode="before")
    @classmethod
    def _step_time(cls, value: Any) -> Part:
        return make_part("step_time", value)

    @field_validator(*_PER_MACHINE, mode="before")
    @classmethod
    def _per_machine(cls, value: Any, info: ValidationInfo) -> OfEachWorker | None:
        if value is None and info.field_name in _OPTIONAL:
            return None
        each = "server" if str(info.field_name).startswith("server") else "worker"
        return per_worker(value, f"cluster {cls.name!r}: {info.field_name}", each)

    @model_serializer(mode="wrap")
    def _with_name(self, handler: Any) -> dict[str, Any]:
        values = {"name": self.name, **handler(self)}
        for key in _LATER:  # specifications stay as they were before there were any
            if getattr(self, key) == Cluster.model_fields[key].default:
                values.pop(key, None)
        return values

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self.profile()
        if self.costs is not None:
            self.costs.check(self.num_workers)
        return self

    def machines(self) -> list[Machine]:
        """Return the machine of each worker, in id order."""
        raise NotImplementedError(f"{type(self).__name__} must define machines")

    @property
    def num_workers(self) -> int:
        """Number of workers, including those that join late."""
        return len(self.machines())

    def profile(self) -> Profile:
        """Return the cluster as numbers."""
        machines = self.machines()
        same = {f.name: getattr(self, f.name) for f in fields(Profile) if f.name in type(self).model_fields}
        of_machines: dict[str, Any] = {
            "name": self.name,
            **{key: tuple(getattr(each, key) for each in machines) for key in _OF_MACHINE},
            "bandwidth_mbit_s": spread(self.bandwidth_mbit_s, len(machines)),
            "latency_s": spread(self.latency_s, len(machines)),
            **{
                key: None if (own := getattr(self, key)) is None else spread(own, len(machines))
                for key in _OPTIONAL
            },
        }
        return Profile(**same | of_machines)

    def describe(self) -> list[dict[str, Any]]:
        """Return one row per worker for tables."""
        return self.profile().describe()


def usual(name: str, default: Any, source: str = "") -> Any:
    """Declare a field of `Cluster` again, with a test bed's own default."""
    field = Cluster.model_fields[name]
    unit = dict(cast(Mapping[str, Any], field.json_schema_extra))["unit"]
    return parameter(default, field.description or "", unit=unit, source=source, **limits_of(field))


def make_cluster(value: Any) -> Cluster:
    """Return a cluster from a cluster, a name, or a mapping; a mapping without a name is a custom one.

    Raises
    ------
    UnknownName, ParameterError

    Examples
    --------
    >>> make_cluster({"workers": 4, "speed": [1, 1, 1, 0.5]}).name
    'custom'
    """
    if isinstance(value, Mapping):
        value = {"name": "custom", **value}
        named = REGISTRY["cluster"].get(value["name"]) if isinstance(value["name"], str) else None
        if "workers" in value and named is not None and "workers" not in named.model_fields:
            count = len(cast(Cluster, named()).machines())
            raise ParameterError(
                f"cluster {named.name!r}: workers: it always has {count} workers; remove workers, or use "
                "cluster 'custom' with any number of equal workers"
            )
    return cast(Cluster, make_part("cluster", value))
