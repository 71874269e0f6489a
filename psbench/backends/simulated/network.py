"""The network of one composition in virtual time: its links, and how much each message carries."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from psbench.clusters import Network, Profile
from psbench.core.migration import Ranges, lost_entries
from psbench.core.parts import Placement
from psbench.core.strategy import Strategy
from psbench.training.workload import Workload


class Sizes(NamedTuple):
    """Bytes of the messages of a composition; `first_down` is of a model that is sent whole."""

    vector: int  # of a collective
    up: int
    down: int
    first_down: int


def sizes_of(workload: Workload, composition: Strategy, ranges: Ranges) -> Sizes:
    """Return what messages take if each server holds these entries."""
    size, n = workload.wire_size._replace(ranges=ranges), workload.profile.num_workers
    return Sizes(
        vector=size.of(composition.communication.codec, composition.placement),
        up=composition.bytes_up(size, n),
        down=composition.bytes_down(size, n),
        first_down=composition.bytes_down(size, n, whole=True),
    )


def network_of(profile: Profile, placement: Placement, ranges: Ranges) -> Network:
    """Return the links to servers that hold these entries; a collective has none."""
    links = profile.server_bandwidth_mbit_s
    if placement.collective and isinstance(links, tuple):
        return Network(replace(profile, server_bandwidth_mbit_s=max(links)))
    return Network(profile, placement.num_servers, shares_of(ranges))


def shares_of(ranges: Ranges) -> list[float]:
    """Return what part of the entries each server holds."""
    entries = [sum(stop - start for start, stop in own) for own in ranges]
    return [count / sum(entries) for count in entries]


def move(network: Network, before: Ranges, after: Ranges, entry_bytes: int) -> float:
    """Move entries between servers while no message is under way; returns the seconds that it takes."""
    given, taken = lost_entries(before, after), lost_entries(after, before)
    seconds = network.move([entry_bytes * n for n in given], [entry_bytes * n for n in taken])
    network.server_loads()  # what was carried before says nothing of what will be
    network.share(shares_of(after))
    return seconds
