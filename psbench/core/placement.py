"""The base of placements: where parameters are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from psbench.core.actions import Action
from psbench.core.part import Part
from psbench.core.view import ClusterView

#: a model's tensors in the order of its vector: name, entries
Layout: TypeAlias = Sequence[tuple[str, int]]


class Placement(Part):
    """Location of the parameters, and thus the cost of messages; makes no decisions about workers.

    Families say who has the model: servers, unless a placement derives from `Collective`, whose commits are
    collective operations of their pushers (`psbench.core.collective`), or from `PeerToPeer`, without a model
    that all share (`psbench.core.peer_to_peer`).
    """

    domain = "placement"
    #: number of servers that share the parameters
    num_servers: ClassVar[int] = 1
    #: whether parameters may move between servers during a run; only then `on_applied` is called
    moves: ClassVar[bool] = False

    def on_applied(self, view: ClusterView) -> list[Action]:
        """React to a new version."""
        return []

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Answer the part's own `Measure`."""
        return []

    def ranges(self, layout: Layout) -> list[list[tuple[int, int]]]:
        """Return the entries that each server begins with: ranges, start included, stop excluded."""
        return [[(0, sum(size for _, size in layout))]]

    def balance(self, layout: Layout) -> dict[str, Any]:
        """Return the load of each server, and the `imbalance` of each kind of load: maximum over mean.

        Keys are lists of counts by server, such as `entries`, and `imbalance` with a number for each.
        """
        entries = [sum(stop - start for start, stop in own) for own in self.ranges(layout)]
        return {"entries": entries, "imbalance": {"entries": max(entries) * len(entries) / sum(entries)}}

    def worker_bytes(self, num_parameters: int, kept: int, num_workers: int) -> int:
        """Return the bytes that a worker holds: parameters, gradient and `kept` vectors of their size."""
        return 4 * num_parameters * (2 + kept)

    def bytes_up(self, payload: int, num_workers: int) -> int:
        """Return the bytes that one worker sends for a payload of that many bytes."""
        return payload

    def bytes_down(self, payload: int, num_workers: int) -> int:
        """Return the bytes that one worker receives to load a model of that many bytes."""
        return payload
