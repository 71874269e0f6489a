"""Parameters on one or more servers."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, SerializeAsAny, field_validator, model_validator

from psbench.core import Action, ClusterView, Measure, Part, Placement, make_part, parameter
from psbench.core.actions import Reassign
from psbench.core.migration import Ranges
from psbench.core.parts import Layout
from psbench.errors import ParameterError
from psbench.strategies.placement.assignment import POLICIES, Range, TensorBlock, ranges_of
from psbench.strategies.placement.reassignment import Never, Reassignment, imbalance

#: what a server's load is called among the numbers that are measured; after it comes the server's number
LOAD = "server_load"


class ParameterServer(Placement):
    """Servers hold the parameters; a worker pushes to all servers and receives a reply from each.

    Parameters
    ----------
    assignment : str
        contiguous: ranges of equal length, to within one entry. layer: tensor j on server j mod S. hash: each
        tensor where a hash of its name falls, so that another server moves few of them. size_threshold: as in
        MXNet, large tensors cut over all servers and small ones on one. best_fit: as in Optimus, by size into
        the room that is left.
    reassignment : Reassignment, its name, or a mapping
        Whether entries move during a run, and when. A move after which the servers are no more even
        than before is taken back, and the time to the next look doubles: noise, or time that does not depend
        on the entries, moves them a few times and not for ever.

    Raises
    ------
    ParameterError
        If entries are to move and there is only one server.

    Notes
    -----
    One worker sends and receives 32 d bits a step, whatever the number of servers; a server carries 2 n
    times its own share of that. The update does not depend on the assignment, bit by bit, since optimizers
    work entry by entry; codecs with a scale have one a server, and differ.
    Our reading: where MXNet draws a server at random for a small tensor, a hash of its name is used here, so
    that every process finds the same. Optimus' 1 % rule is known from accounts of others only.

    Examples
    --------
    >>> server = ParameterServer(servers=2, assignment="layer")
    >>> server.ranges([("weight", 6), ("bias", 2), ("head", 4)])
    [[(0, 6), (8, 12)], [(6, 8)]]
    """

    name = "parameter_server"
    source = "Li et al. 2014; thesis 3.2.4"
    measures = (LOAD,)

    servers: int = parameter(1, "number of server shards", unit="servers", source="thesis 3.2.4", ge=1, le=64)
    assignment: Literal["contiguous", "layer", "hash", "size_threshold", "best_fit"] = parameter(
        "contiguous", "assignment of parameters to servers", source="our reading"
    )
    large_tensor: int = parameter(
        1_000_000,
        "smallest tensor that is split over all servers (size_threshold)",
        unit="entries",
        source="MXNet",
        ge=1,
    )
    reassignment: SerializeAsAny[Reassignment] = Field(
        default_factory=Never,
        description="whether parameters move between servers during a run",
        json_schema_extra={"unit": "", "source": "Lapse, NuPS; thesis 3.2.4"},
    )
    _next_look: int = PrivateAttr(default=0)  # at that version
    _interval: int = PrivateAttr(default=0)
    # the imbalance that the last move was to mend, until that is judged
    _before: float = PrivateAttr(default=0.0)
    _back: list[list[list[int]]] = PrivateAttr(default_factory=list)  # what servers held before it
    _goal: list[list[list[int]]] = PrivateAttr(default_factory=list)  # what they are to hold, till they do

    @field_validator("reassignment", mode="before")
    @classmethod
    def _reassignment(cls, value: Any) -> Part:
        return make_part("reassignment", value)

    @model_validator(mode="after")
    def _has_somewhere_to_move(self) -> Self:
        if self.moves and self.servers == 1:
            raise ParameterError(
                f"placement {self.name!r}: reassignment {self.reassignment.name!r} moves parameters between "
                "servers, and there is only one; give servers: 2 or more, or reassignment: none"
            )
        return self

    @property
    def num_servers(self) -> int:  # pyrefly: ignore[bad-override]
        return self.servers

    @property
    def moves(self) -> bool:  # pyrefly: ignore[bad-override]
        """Return True if parameters may move between servers during a run."""
        return self.reassignment.interval > 0

    def start(self, view: ClusterView) -> list[Action]:
        """Measure the servers' load for the first time after one interval."""
        self._interval = self.reassignment.interval
        self._next_look = view.version + self._interval
        return []

    def on_applied(self, view: ClusterView) -> list[Action]:
        """Request the servers' loads if they are due."""
        if self._goal:
            if self._goal != _plain(view.ranges):
                return []  # messages are still under way
            self._goal, self._next_look = [], view.version + self._interval
        if view.version < self._next_look:
            return []
        self._next_look = view.version + self._interval
        return [Measure(self.domain, {f"{LOAD}:{server}": None for server in range(self.servers)})]

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Move entries if the rule decides so, or undo the last move if it did not help."""
        loads = [facts[f"{LOAD}:{server}"] for server in range(self.servers)]
        before, self._before = self._before, 0.0
        if before and imbalance(loads) >= before:
            self._interval *= 2
            self._goal = self._back
        else:
            ranges = self.reassignment.rebalanced(view.ranges, loads)
            if ranges == view.ranges:
                return []
            self._before, self._back, self._goal = imbalance(loads), _plain(view.ranges), _plain(ranges)
        return [Reassign([[(start, stop) for start, stop in own] for own in self._goal])]

    def held(self, layout: Layout) -> list[list[TensorBlock]]:
        """Return the blocks of each server.

        Raises
        ------
        ParameterError
            If a server would hold nothing.
        """
        found = POLICIES[self.assignment](layout, self.servers, self.large_tensor)
        found += [[]] * (self.servers - len(found))
        if layout and not all(found):
            idle = ", ".join(str(server) for server, blocks in enumerate(found) if not blocks)
            raise ParameterError(
                f"placement {self.name!r}: with assignment {self.assignment!r} server {idle} of "
                f"{self.servers} would hold nothing of the model's {len(layout)} tensors; "
                "use fewer servers, or 'contiguous'"
            )
        return found

    def ranges(self, layout: Layout) -> list[list[Range]]:
        """Return the entries that each server holds."""
        return [ranges_of(blocks) for blocks in self.held(layout)]

    def balance(self, layout: Layout) -> dict[str, Any]:
        """Return entries, requests and parts by server, and the imbalance of each: the most over the mean.

        A request is a tensor, or a piece of one, that a worker sends to that server at every push; a part is
        a range of neighbouring entries.
        """
        held = self.held(layout)
        counts = {
            "entries": [sum(block.size for block in blocks) for blocks in held],
            "requests": [len(blocks) for blocks in held],
            "parts": [len(ranges_of(blocks)) for blocks in held],
        }
        worst = {name: max(each) * len(each) / sum(each) for name, each in counts.items()}
        return counts | {"imbalance": worst}


def _plain(ranges: Ranges) -> list[list[list[int]]]:
    return [[list(one) for one in own] for own in ranges]
