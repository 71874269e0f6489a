"""Migration of parameters between servers, once no message is in transit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, TypeAlias

from psbench.core import actions as act
from psbench.core.actions import Action
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView, Status

#: the ranges of entries of each server
Ranges: TypeAlias = Sequence[Sequence[tuple[int, int]]]
#: hold reason of a worker whose release is withheld
REASSIGNMENT = "re-assignment"


class Withheld(NamedTuple):
    """A complete release that is withheld; `kept`: samples of the vote whose steps the worker keeps."""

    release: act.Release
    kept: int
    voted: bool


class Migration:
    """A reassignment in progress, and the releases and orders that it withholds.

    Unlike a switch it does not involve the parts: to them a worker computes from its release on, so that they
    decide as they would without a migration, and only the message is late.

    Parameters
    ----------
    change : Reassign
        Performed when no message is under way.
    """

    def __init__(self, change: act.Reassign) -> None:
        self.change = change
        self._releases: dict[int, Withheld] = {}
        self._tells: list[act.Tell] = []
        self._swept = False  # whether workers that might never push were ordered to

    def withhold(self, release: act.Release, kept: int, voted: bool) -> None:
        self._releases.pop(release.worker, None)  # one from before it was cancelled, or left
        self._releases[release.worker] = Withheld(release, kept, voted)

    def withhold_orders(self, tell: act.Tell) -> None:
        """Withhold orders for a worker whose release is withheld."""
        self._tells.append(tell)

    def releases(self, view: ClusterView) -> list[Withheld]:
        """Return the releases that are still valid: their workers have neither left nor been restarted."""
        return [each for worker, each in self._releases.items() if self.withholds(worker, view)]

    def completed(self, view: ClusterView) -> list[tuple[act.Release, int]]:
        """Return the valid releases, brought up to date, each with the samples that its worker keeps.

        A worker starts from the latest version and is sent it, unless it has voted: then it keeps its model.
        """
        releases = self.releases(view)
        for release, _, voted in releases:
            worker = view.workers[release.worker]
            worker.hold_reason = ""
            if not voted:
                release.load = worker.base_version = view.version
                release.send = True
        return [(release, kept) for release, kept, _ in releases]

    def withholds(self, worker: int, view: ClusterView) -> bool:
        """Return whether the release of that worker, which parts regard as computing, is withheld."""
        own, seen = self._releases.get(worker), view.workers[worker]
        return own is not None and own.release.ticket == seen.ticket and seen.status is Status.COMPUTING

    def tells(self, view: ClusterView) -> list[act.Tell]:
        """Return the withheld orders, in order."""
        return [tell for tell in self._tells if self.withholds(tell.worker, view)]

    def sweep(self, view: ClusterView, composition: Strategy) -> list[Action]:
        """Return, once, orders to push for workers that might never push."""
        if self._swept:
            return []
        self._swept = True
        if composition.communication.pushes != "alone":
            return []
        return [act.Tell(w, {"push": True}) for w in view.computing if not self.withholds(w, view)]

    def is_quiet(self, view: ClusterView) -> bool:
        """Return whether no message is in transit or expected."""
        return view.num_under_way == len(self.releases(view))

    def state_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "ranges": [[list(own_range) for own_range in own] for own in self.change.ranges],
            "releases": [[asdict(each.release), each.kept, each.voted] for each in self._releases.values()],
            "tells": [asdict(tell) for tell in self._tells],
            "swept": self._swept,
        }

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Migration:
        """Return the migration of a state of `state_dict`."""
        migration = cls(act.Reassign([[(start, stop) for start, stop in own] for own in state["ranges"]]))
        for release, kept, voted in state["releases"]:
            migration.withhold(act.Release(**release), kept, voted)
        migration._tells = [act.Tell(**tell) for tell in state["tells"]]
        migration._swept = state["swept"]
        return migration


def lost_entries(before: Ranges, after: Ranges) -> list[int]:
    """Return the number of entries that each server loses.

    >>> lost_entries([[(0, 4)], [(4, 8)]], [[(0, 3)], [(3, 8)]])
    [1, 0]
    """
    return [
        sum(stop - start for start, stop in old) - _shared(old, new)
        for old, new in zip(before, after, strict=True)
    ]


def _shared(old: Sequence[tuple[int, int]], new: Sequence[tuple[int, int]]) -> int:
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in old for b in new)
