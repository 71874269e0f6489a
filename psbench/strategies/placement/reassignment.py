"""Reassignment of parameters from a busy server to an idle one."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Part, parameter
from psbench.core.migration import Ranges
from psbench.core.rounding import largest_remainder
from psbench.strategies.placement.assignment import Range, joined


class Reassignment(Part):
    """Base of the rules; the servers' loads are measured every `every` updates, or never if it is 0."""

    domain = "reassignment"

    @property
    def interval(self) -> int:
        """Number of updates between two measurements of the servers' load; 0 if there are none."""
        return 0

    def rebalanced(self, ranges: Ranges, loads: Sequence[float]) -> Ranges:
        """Return each server's new ranges; the given ones if nothing moves.

        Parameters
        ----------
        ranges : the ranges of entries that each server holds
        loads : seconds that each server was busy, (num_servers,), >= 0
        """
        return ranges


class Never(Reassignment):
    """Every server keeps its initial parameters."""

    name = "none"
    source = "thesis 3.2.4 (static load balancing)"


class ByLoad(Reassignment):
    """Move entries from busy servers to less busy servers, in proportion to their speeds.

    Notes
    -----
    A server's speed is the entries that it holds over the seconds that they kept it busy, and each server is
    to hold entries in proportion to its speed. Where the time is proportional to the entries, one move
    suffices; where a request costs something however small it is, each move takes a server nearer, and none
    overshoots. Nothing moves unless the busiest server is to have less to do. As many entries move as are too
    many, and no others: whole ranges first, and then a piece of a larger one.

    Lapse moves a parameter to where it is accessed, and NuPS replicates what all access instead: both live
    from different workers needing different parameters. In dense data-parallel training every worker reads
    and writes every entry at every step, so that nothing is hotter than anything else, and only how long a
    server takes for what it holds can be mended. That is what moves here; after Chen et al., as the thesis
    tells it ("skewness and the performance of each available server").

    Examples
    --------
    >>> rule = ByLoad(threshold=1.2)
    >>> rule.rebalanced([[(0, 60)], [(60, 120)]], loads=[3.0, 1.0])
    [[(0, 30)], [(30, 120)]]
    >>> rule.rebalanced([[(0, 60)], [(60, 120)]], loads=[1.1, 0.9])
    [[(0, 60)], [(60, 120)]]
    """

    name = "by_load"
    source = (
        "Renz-Wieland et al. 2020 (Lapse); Renz-Wieland et al. 2022 (NuPS); thesis 3.2.4; the rule is ours"
    )

    every: int = parameter(
        50, "updates between two measurements of the servers' load", unit="updates", source="by hand", ge=1
    )
    threshold: float = parameter(
        1.2,
        "ratio of the busiest server's load to the mean load above which entries move",
        source="by hand",
        gt=1,
    )

    @property
    def interval(self) -> int:
        """Updates between two looks at the servers."""
        return self.every

    def rebalanced(self, ranges: Ranges, loads: Sequence[float]) -> Ranges:
        """Return ranges with entries in proportion to the servers' speeds, at least one entry each."""
        entries = [sum(stop - start for start, stop in own) for own in ranges]
        if imbalance(loads) <= self.threshold or sum(entries) <= len(entries) or not all(entries):
            return ranges
        wanted = _wanted(entries, loads)
        expected = [want * load / count for want, load, count in zip(wanted, loads, entries, strict=True)]
        # entries are whole: with a few of them two assignments may be equally good
        return _moved(ranges, wanted) if max(expected) < max(loads) * (1 - 1e-6) else ranges


def imbalance(loads: Sequence[float]) -> float:
    """Return the busiest server's load over the mean; 1 if no server was busy.

    >>> imbalance([3.0, 1.0])
    1.5
    """
    return max(loads) * len(loads) / sum(loads) if sum(loads) > 0 else 1.0


def _wanted(entries: Sequence[int], loads: Sequence[float]) -> list[int]:
    """Return the new number of entries of each server."""
    # in shares of the longest; who was hardly busy may have a thousand times its speed, and no more
    shares = [max(load / max(loads), 1e-3) for load in loads]
    speeds = [count / share for count, share in zip(entries, shares, strict=True)]
    wanted = largest_remainder(sum(entries), speeds)
    for idle in (server for server, count in enumerate(wanted) if not count):
        wanted[wanted.index(max(wanted))] -= 1
        wanted[idle] = 1
    return wanted


def _moved(ranges: Ranges, wanted: Sequence[int]) -> Ranges:
    """Return the ranges after moving entries from servers with too many to servers with too few."""
    held = [list(own) for own in ranges]
    missing = [want - sum(b - a for a, b in own) for want, own in zip(wanted, held, strict=True)]
    order = sorted(range(len(held)), key=lambda server: missing[server])
    for giver in order:
        for taker in reversed(order):
            count = min(-missing[giver], missing[taker])
            if count > 0:
                held[taker] += _taken(held[giver], count)
                missing[giver] += count
                missing[taker] -= count
    return [joined(own) for own in held]


def _taken(own: list[Range], count: int) -> list[Range]:
    """Remove `count` entries from a server's ranges: whole ranges first, then the end of a larger one."""
    found: list[Range] = []
    while count:
        own.sort(key=lambda entries: entries[1] - entries[0])
        fitting = [entries for entries in own if entries[1] - entries[0] <= count]
        if fitting:
            own.remove(fitting[-1])
            found.append(fitting[-1])
        else:
            start, stop = own.pop()
            own.append((start, stop - count))
            found.append((stop - count, stop))
        count -= found[-1][1] - found[-1][0]
    return found
