"""No server: the workers reduce their gradients among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import model_serializer, model_validator

from psbench.core import parameter
from psbench.core.collective import NetworkTimes, Replicas, are_local
from psbench.errors import ParameterError

TWO_LEVELS = "Sergeev and Del Balso 2018 (Horovod); Mikami et al. 2018"


class Ring(Replicas):
    """Base of placements whose workers pass pieces of vectors along one ring."""

    def reduce_s(self, network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
        return network.ring(num_bytes, workers)

    def bytes_up(self, payload: int, num_workers: int) -> int:
        return round(payload * (num_workers - 1) / num_workers)

    def bytes_down(self, payload: int, num_workers: int) -> int:
        return round(payload * (num_workers - 1) / num_workers)


class AllReduce(Ring):
    """An All-Reduce over the pushers of a commit; every worker keeps a replica of the model.

    In a ring of n workers each sends 2 (n - 1)/n of the vector. Its first half, the
    reduce-scatter, counts as bytes up and its second, the all-gather, as bytes down: each message once.

    With `algorithm: hierarchical` the workers of each host first add up in a ring of their own, which leaves
    each with the sum of a piece. Workers of all hosts with the same piece then add it up in a ring, and hand
    it round on their hosts. With a vector of B bytes, n workers in groups of k, links of b bytes/s and of
    latency l, and links within a host of c bytes/s and of latency m, an All-Reduce takes

    - in one ring 2 (n - 1) (B/(n b) + l),
    - hierarchically 2 (k - 1) (B/(k c) + m) + 2 (n/k - 1) (B/(n b) + l).

    Over links that differ each message takes what its own link does, and a worker sends as soon as it has a
    piece. Either way a worker sends 2 (n - 1)/n of the vector; in 2 (n - 1) messages, or in 2 (k - 1) +
    2 (n/k - 1).

    Notes
    -----
    Reduces to: one ring, hierarchically, where all workers are of one group or each is alone. The sums are
    equal up to rounding, as entries are added in another order; in virtual time, where they are added in
    worker order, bit by bit.
    Our readings: groups may differ in size, and the smallest decides into how many pieces a vector is cut.
    `auto` compares the two costs by the numbers of the cluster, for each sum. Live, a host is one on which
    workers were placed, and only the numbers are the cluster's. Messages that are not added up, such as those
    of 1-bit Adam, pass along one ring.

    Examples
    --------
    >>> ring = AllReduce()
    >>> ring.bytes_up(400, num_workers=4) + ring.bytes_down(400, num_workers=4)
    600
    """

    name = "all_reduce"
    source = "Patarasuk and Yuan 2009; thesis 2.1.2"

    algorithm: Literal["ring", "hierarchical", "auto"] = parameter(
        "ring", "one ring, rings within hosts and between them, or what costs less", source=TWO_LEVELS
    )
    group_size: int = parameter(
        0, "workers that count as of one host, in order; 0: those that share one", unit="workers", ge=0
    )

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        if self.group_size and self.algorithm == "ring":
            raise ParameterError(
                f"placement {self.name!r}: group_size applies only to algorithms 'hierarchical' and "
                "'auto', not to 'ring'; remove it"
            )
        return self

    @model_serializer(mode="wrap")
    def _with_name(self, handler: Any) -> dict[str, Any]:
        """Leave out defaults, so that specifications stay as they were before these fields existed."""
        values = {"name": self.name, **handler(self)}
        unset = [name for name, field in type(self).model_fields.items() if values[name] == field.default]
        return {name: value for name, value in values.items() if name not in unset}

    @property
    def has_groups(self) -> bool:
        """Return True if workers may add up in groups first."""
        return self.algorithm != "ring"

    def groups(
        self, network: NetworkTimes, num_bytes: int, workers: Sequence[int], hosts: Sequence[object]
    ) -> list[list[int]]:
        """Return the groups in which workers on these hosts add up first; a single one is one ring."""
        found: dict[object, list[int]] = {}
        for place, (worker, host) in enumerate(zip(workers, hosts, strict=True)):
            found.setdefault(place // self.group_size if self.group_size else host, []).append(worker)
        groups, one_ring = list(found.values()), [list(workers)]
        if self.algorithm == "ring" or len(groups) == len(workers):
            return one_ring
        if self.algorithm == "auto":
            rings = network.two_levels(num_bytes, groups, local=are_local(groups, workers, hosts))
            return groups if rings < network.ring(num_bytes, workers) else one_ring
        return groups

    def reduce_s(self, network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
        """Return the time of an All-Reduce by the algorithm that is chosen."""
        if not self.has_groups:
            return super().reduce_s(network, num_bytes, workers)
        hosts = network.hosts(workers)
        groups = self.groups(network, num_bytes, workers, hosts)
        if len(groups) == 1:
            return network.ring(num_bytes, workers)
        return network.two_levels(num_bytes, groups, local=are_local(groups, workers, hosts))

    def to_all_s(self, network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
        """Return the time of a message from each worker to all others: half of one ring for their sum."""
        return 0.5 * network.ring(len(workers) * num_bytes, workers)
