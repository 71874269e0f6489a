"""Base classes of placements with one collective operation per commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from psbench.core.needs import FLOAT_CODECS, Need
from psbench.core.placement import Placement

_UNENCODED = "set both codecs to 'none', or use placement 'all_reduce'"


class NetworkTimes(Protocol):
    """Message times in seconds, from which the cost of a collective operation is computed."""

    def ring(self, num_bytes: float, workers: Sequence[int]) -> float:
        """Return the time of a ring All-Reduce among workers."""

    def two_levels(self, num_bytes: float, groups: Sequence[Sequence[int]], local: bool) -> float:
        """Return the time of an All-Reduce in rings of groups, each `local` to a host, and between groups."""

    def hosts(self, workers: Sequence[int]) -> list[int]:
        """Return the host of each worker."""

    def hop(self, num_bytes: float, workers: Sequence[int]) -> float:
        """Return the time of one message over the slowest link among workers."""

    def star(self, up: float, down: float, workers: Sequence[int]) -> float:
        """Return the time in which every worker sends `up` bytes to servers and receives `down` bytes."""


class Collective(Placement):
    """Pushes are added up on their way, and every pusher receives the sum."""

    needs = (
        Need(
            "aggregation",
            lambda a: (a.linear or a.exchanges) and "dot" not in a.measures,
            "{part} sums pushes in transit, but {other} needs each push",
            "use placement 'parameter_server'",
        ),
        Need(
            "communication",
            lambda m: {m.codec.name, m.codec_down.name} <= FLOAT_CODECS,
            "{part} sums float vectors in transit, but {other} encodes them differently",
            "use codecs 'none' or 'fp16'",
        ),
        Need(
            "communication",
            lambda m: not (m.codec.has_memory or m.codec_down.has_memory),
            "{part} rounds sums in transit, but {other} can correct only errors of single workers",
            "use codecs without error_feedback",
            lambda p: not isinstance(p, Jobs),
        ),
        Need(
            "communication",
            lambda m: not m.pushes_sums,
            "{part} needs replicas of one model, but workers under {other} change theirs",
            "use placement 'parameter_server'",
        ),
        Need(
            "consistency",
            lambda c: c.barrier and not c.cancels,
            "{part} needs all workers in each operation, but {other} commits pushes of some",
        ),
    )

    def reduce_s(self, network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
        """Return the seconds in which a collective operation adds up the workers' results."""
        return 0.0

    @property
    def has_groups(self) -> bool:
        """Return True if workers may add up in groups first."""
        return False

    def groups(
        self, network: NetworkTimes, num_bytes: int, workers: Sequence[int], hosts: Sequence[object]
    ) -> list[list[int]]:
        """Return the groups that add up first, before they do so among them; a single one without groups.

        `hosts` are those of the workers.
        """
        return [list(workers)]

    def to_all_s(self, network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
        """Return the seconds of a message from each worker to all others: half of a ring for their sum."""
        return 0.5 * self.reduce_s(network, len(workers) * num_bytes, workers)

    def to_all_bytes(self, num_bytes: int, num_workers: int) -> tuple[float, float]:
        """Return the bytes up and down of a message from each worker to all others."""
        return 0.5 * num_workers * num_bytes, 0.5 * num_workers * num_bytes


def are_local(groups: Sequence[Sequence[int]], workers: Sequence[int], hosts: Sequence[object]) -> bool:
    """Return whether each group is on one host, given the host of each worker.

    >>> are_local([[0, 1], [2]], [0, 1, 2], "aab"), are_local([[0, 2], [1]], [0, 1, 2], "aab")
    (True, False)
    """
    host_of = dict(zip(workers, hosts, strict=True))
    return all(len({host_of[worker] for worker in group}) == 1 for group in groups)


def in_words(
    placement: Collective,
    network: NetworkTimes,
    num_bytes: int,
    workers: Sequence[int],
    hosts: Sequence[object],
) -> str:
    """Return how workers add up vectors, and the times that their placement expects, for the user."""
    groups = placement.groups(network, num_bytes, workers, hosts)
    ring_ms = 1e3 * network.ring(num_bytes, workers)
    if len(groups) == 1:
        return f"All-Reduce in one ring of {len(workers)} workers: about {ring_ms:.3g} ms a sum"
    sizes = sorted({len(group) for group in groups})
    size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    levels_ms = 1e3 * network.two_levels(num_bytes, groups, are_local(groups, workers, hosts))
    return (
        f"All-Reduce in {len(groups)} groups of {size} workers, then between them: about {levels_ms:.3g} ms "
        f"a sum, in one ring {ring_ms:.3g} ms"
    )


class Replicas(Collective):
    """Each worker keeps the model, or a share of it, between two operations."""


class ServerSums(Replicas):
    """Servers that sum pushes, without a model or an optimizer."""

    @property
    def adding_servers(self) -> int:
        """Servers that add up."""
        raise NotImplementedError(f"{type(self).__name__} must define adding_servers")


def servers_that_add(placement: Placement) -> int:
    """Return the number of summing servers; 0 if servers hold the model, or there are none."""
    return placement.adding_servers if isinstance(placement, ServerSums) else 0


class Shares(Replicas):
    """Each worker holds a share of the model and its optimizer's state, and gathers the rest for a step."""

    needs = (
        Need(
            "communication",
            lambda m: not (m.steps_by_itself or m.overlaps),
            "under {part} a worker holds a share of the model between steps, but {other} needs all of it",
            "use placement 'all_reduce'",
        ),
        Need(
            "aggregation",
            lambda a: not (a.exchanges or a.per_tensor),
            "under {part} a worker holds a share of the model, but {other} needs all of it",
            "use placement 'all_reduce'",
        ),
        Need(
            "stragglers",
            lambda s: not s.drops,
            "under {part} each share of the model is on one worker only, and {other} may drop that worker",
            "use placement 'all_reduce'",
        ),
        Need(
            "communication",
            lambda m: not m.is_encoded,
            "{part} gathers shares of the model unencoded, but {other} encodes messages",
            _UNENCODED,
        ),
        Need(
            "aggregation",
            lambda a: not a.sends,
            "{other} sends vectors of its state with the model, but under {part} each worker holds a "
            "share of the model",
            "use placement 'all_reduce' or 'parameter_server'",
        ),
    )

    @property
    def gathers(self) -> int:
        """Number of times that a step gathers the parameters held by other workers."""
        raise NotImplementedError(f"{type(self).__name__} must define gathers")


class Jobs(Collective):
    """Each operation is a job of tasks without state."""

    needs = (
        Need(
            "communication",
            lambda m: not m.is_encoded,
            "tasks of {part} return 32-bit floats, but {other} encodes messages",
            _UNENCODED,
        ),
        Need(
            "communication",
            lambda m: not (m.steps_by_itself or m.overlaps or m.accumulates),
            "tasks of {part} keep no state between steps, but workers under {other} do",
            "use placement 'all_reduce' or 'parameter_server'",
        ),
        Need(
            "aggregation",
            lambda a: a.payload == "gradient",
            "tasks of {part} keep no state between steps, but {other} needs models of workers",
            "use placement 'all_reduce' or 'parameter_server'",
        ),
    )

    def start_s(self, partition: int) -> float:
        """Return the seconds before each step on a partition with that many samples."""
        return 0.0

    def scan_s(self, partition: int) -> float:
        """Return the share of `start_s` spent on reading the partition, in seconds."""
        return 0.0

    def broadcast_s(self, network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
        """Return the seconds in which a collective operation sends the model to all workers."""
        return 0.0
