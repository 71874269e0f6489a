"""Moves of parameters between servers; the rule is ours (docstrings of `by_load` and `ParameterServer`)."""

from __future__ import annotations

from typing import Any

from psbench.core import Measure
from psbench.core.actions import Reassign
from psbench_fuzz.model.rule import Decisions, Rule, rule
from psbench_fuzz.model.view import ModelCluster

#: nothing moves
rule(
    "placement", "all_reduce", "gossip", "map_reduce", "peers", "sharded", "shared_memory", "summing_servers"
)(Rule)


@rule("placement", "parameter_server")
class _ParameterServer(Rule):
    """Measure the servers' loads at intervals; undo a move that did not help."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.next = self.interval = 0
        self.worst = 0.0  # imbalance that the last move was to mend, until that is judged
        self.before: Any = None  # what the servers held before it
        self.goal: Any = None  # what they are to hold, until they do

    def start(self, c: ModelCluster) -> Decisions:
        self.interval = self.own.reassignment.interval
        self.next = c.version + self.interval
        return []

    def on_applied(self, c: ModelCluster) -> Decisions:
        if self.goal is not None:
            if self.goal != ranges(c):
                return []
            self.goal, self.next = None, c.version + self.interval
        if c.version < self.next:
            return []
        self.next = c.version + self.interval
        return [Measure("placement", {f"server_load:{s}": None for s in range(self.own.servers)})]

    def on_measured(self, facts: dict[str, float], c: ModelCluster) -> Decisions:
        loads = [facts[f"server_load:{server}"] for server in range(self.own.servers)]
        uneven = max(loads) / (sum(loads) / len(loads)) if sum(loads) else 1.0
        if self.worst and uneven >= self.worst:
            self.interval, self.goal, self.worst = 2 * self.interval, self.before, 0.0
        else:
            self.worst = 0.0
            wanted = self.own.reassignment.rebalanced(c.ranges, loads)
            if wanted == c.ranges:
                return []
            self.worst, self.before = uneven, ranges(c)
            self.goal = [[tuple(one) for one in own] for own in wanted]
        return [Reassign(self.goal)]


def ranges(c: ModelCluster) -> list[list[tuple[int, ...]]]:
    """Return the entries of each server."""
    return [[tuple(one) for one in own] for own in c.ranges]
