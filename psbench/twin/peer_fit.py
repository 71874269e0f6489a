"""Fit of messages between workers, and of reports and orders, to probes in which workers add up gradients.

A model that passes a server tells nothing of them: where all workers send at once, a message waits for the
processes at both of its ends and for all that these share, and a ring waits for the latest of its members in
each of its rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import brentq

from psbench.arrays import Doubles
from psbench.clusters import Network, make_cluster
from psbench.core.collective import Collective, Jobs, ServerSums, Shares
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.strategy import Strategy
from psbench.results.run import Run
from psbench.twin.codecs import NO_CODEC, codec_of, mean_and_width
from psbench.twin.exchanges import SHORTEST_S, Exchanges, as_quick_both_ways
from psbench.twin.fitted import HOP, Fit, Fitted, rounded
from psbench.twin.peers import Peers, with_beyond
from psbench.twin.variation import kept

#: values of each worker's reports, and of its orders, that a profile keeps
_KEPT = 32
#: the longest time that a message between workers is taken to need beyond its link, seconds
_LONGEST_S = 10.0


def has_server(run: Run) -> bool:
    """Return whether a run's vectors pass a server."""
    placements = [each.placement for each in run.experiment.strategy.compositions]
    return not any(isinstance(each, (Collective, PeerToPeer)) for each in placements)


def adds_up(run: Run) -> bool:
    """Return whether a run's workers add up whole vectors in one ring."""
    return all(_is_one_ring(each) for each in run.experiment.strategy.compositions)


def _is_one_ring(composition: Strategy) -> bool:
    placement = composition.placement
    if not isinstance(placement, Collective) or isinstance(placement, (Jobs, ServerSums, Shares)):
        return False
    is_whole = codec_of(composition) == NO_CODEC and not composition.aggregation.exchanges
    return is_whole and not placement.has_groups


def fit_peers(found: Fit, measured: Sequence[Exchanges], model_bytes: int, decision_s: float) -> None:
    """Fit messages between workers to runs in which they add up, on links that are fitted already.

    A sum is ordered by the coordinator, passes the ring, and is confirmed. What that takes beyond the links
    is shared evenly among the messages.
    """
    sums = np.concatenate([np.zeros(0), *(each.collective_s[each.collective_s > 0] for each in measured)])
    if not len(sums):
        return
    workers = found.cluster["workers"]
    ends = _reports_and_orders(measured, workers, decision_s)
    whole_s, low_s, high_s = mean_and_width(sums)
    hops, latest_s = 2 * (workers - 1), max(np.ravel(found.cluster["latency_s"]).tolist())
    if "peer_latency_s" in found.cluster:
        beyond_s = _beyond_s(found.cluster, model_bytes, whole_s - 2 * latest_s)
        own = make_cluster(with_beyond(found.cluster, beyond_s)).profile()
        ring = [(each, (each + 1) % workers) for each in range(workers)]
        hop_s = float(np.mean([own.between_s(*hop) + own.ends_s(*hop) for hop in ring]))
    else:  # an order and its confirmation are taken to be as long as a message
        beyond_s, hop_s = 0.0, whole_s / (hops + 2)
        found.cluster["latency_s"] = found.cluster["server_latency_s"] = rounded(hop_s)
        found.unknown = [each for each in found.unknown if not each.startswith("latency between workers")]
    doubt_s = min((high_s - low_s) / 2 / hops, 0.9 * hop_s)
    found.fitted[HOP] = Fitted(hop_s, hop_s - doubt_s, hop_s + doubt_s, f"{len(sums)} sums of the workers")
    if "peer_latency_s" in found.cluster:
        found.remarks.append(
            f"messages between workers: {beyond_s * 1e3:.3g} ms beyond their links where all send at once"
        )
    found.peers = Peers(tuple(tuple(kept(end, _KEPT)) for end in ends), rounded(beyond_s))


def _reports_and_orders(measured: Sequence[Exchanges], workers: int, decision_s: float) -> list[Doubles]:
    """Return the seconds of each worker's reports, and then of its orders."""
    ends: list[list[Doubles]] = [[] for _ in range(2 * workers)]
    for each in measured:
        for worker in range(workers):
            own = each.worker == worker
            up, down = as_quick_both_ways(each.up_s[own], each.down_s[own] - decision_s)
            ends[worker].append(up)
            ends[workers + worker].append(down)
    return [np.maximum(np.concatenate(end), SHORTEST_S) for end in ends]


def _beyond_s(cluster: Mapping[str, Any], model_bytes: int, ring_s: float) -> float:
    """Return the seconds beyond links with which a ring takes as long as it did; negative if it took less."""
    members = range(cluster["workers"])

    def late_s(beyond_s: float) -> float:
        profile = make_cluster(with_beyond(cluster, beyond_s)).profile()
        return Network(profile).ring(model_bytes, members) - ring_s

    least_s = -2.0 * float(max(cluster["peer_latency_s"]))
    if late_s(least_s) >= 0:
        return least_s
    return float(brentq(late_s, least_s, _LONGEST_S, xtol=1e-7)) if late_s(_LONGEST_S) > 0 else _LONGEST_S
