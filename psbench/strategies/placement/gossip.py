"""No server and no common model: workers exchange their models with neighbours in a graph."""

from __future__ import annotations

from typing import Self

from pydantic import PositiveInt, model_validator

from psbench.core import parameter
from psbench.core.peer_to_peer import PeerToPeer
from psbench.errors import ParameterError
from psbench.strategies.placement.graphs import GraphName, check_graph, receivers, senders
from psbench.strategies.placement.groups import grid_group, level_group

MOSHPIT = "Ryabinin et al. 2021 (Moshpit SGD)"
#: graphs of groups, in which all average with all
_GROUPS = ("moshpit", "hierarchical")
#: parameters that only these graphs have
_OF_GRAPH = {
    "graph_seed": ("time_varying_ring", "random_pairs"),
    "group_size": ("moshpit",),
    "levels": ("hierarchical",),
}


class Gossip(PeerToPeer):
    """Every worker keeps a local model and exchanges it along the edges of a graph.

    There is no version that all agree on: a worker's version is the number of times that its own model was
    mixed with others. What a run leaves, and what is evaluated, is the mean of the workers' models, which no
    process holds; how far they are from it is the consensus distance of each evaluation.

    Notes
    -----
    Reduces to: local SGD averaged after every step, with the complete graph. A model that is sent counts as
    bytes up of who sends it, once for each neighbour that mixes it; nothing comes down from anywhere.
    Our readings: a neighbour that is gone is left out, and its weight stays with the worker itself; a worker
    that joins or comes back begins with the model of the present one with the lowest number, and exchanges
    from the furthest version on.

    Examples
    --------
    >>> Gossip(graph="ring").receivers(0, exchange=3, num_workers=4)
    [3, 1]
    """

    name = "gossip"
    source = "Lian et al. 2017 (D-PSGD)"

    graph: GraphName = parameter("ring", "the exchange graph", source="Lian et al. 2017 (D-PSGD)")
    graph_seed: int = parameter(
        0, "seed of graphs that are redrawn for each exchange", source="our reading", ge=0
    )

    group_size: int = parameter(
        2, "workers that average at a time (graph moshpit)", unit="workers", source=MOSHPIT, ge=2
    )
    levels: tuple[tuple[PositiveInt, PositiveInt], ...] = parameter(
        ((1, 2), (4, 65_535)),
        "period in steps and group size; the longest period that is due applies (graph hierarchical)",
        source="our reading",
    )

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        for name, graphs in _OF_GRAPH.items():
            if self.graph not in graphs and getattr(self, name) != type(self).model_fields[name].default:
                raise ParameterError(
                    f"placement {self.name!r}: {name} applies only to graph {' or '.join(graphs)}, not to "
                    f"{self.graph}; remove it"
                )
        return self

    def receivers(self, worker: int, exchange: int, num_workers: int) -> list[int]:
        """Return the receivers of a worker's model at its given exchange."""
        if (group := self._group(worker, exchange, num_workers)) is not None:
            return [other for other in group if other != worker]
        return receivers(self.graph, worker, exchange, num_workers, self.graph_seed)

    def senders(self, worker: int, exchange: int, num_workers: int) -> list[int]:
        """Return the workers whose models a worker receives at its given exchange."""
        if self.graph in _GROUPS:
            return self.receivers(worker, exchange, num_workers)
        return senders(self.graph, worker, exchange, num_workers, self.graph_seed)

    def _group(self, worker: int, exchange: int, num_workers: int) -> list[int] | None:
        if self.graph == "moshpit":
            return grid_group(worker, exchange, num_workers, self.group_size)
        if self.graph == "hierarchical":
            return level_group(worker, exchange, num_workers, self.levels)
        return None

    def check(self, num_workers: int, global_batch: int) -> None:
        """Raise ParameterError if the graph does not exist for that many workers."""
        check_graph(self.graph, num_workers)
        largest = max((size for _, size in self.levels), default=1)
        if self.graph == "hierarchical" and largest < num_workers:
            raise ParameterError(
                f"placement {self.name!r}: the largest levels connect only {largest} of {num_workers} "
                f"workers; add a level such as [8, {num_workers}]"
            )
