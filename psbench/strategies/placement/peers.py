"""No server and no graph: any workers may exchange their models."""

from __future__ import annotations

from psbench.core.peer_to_peer import AnyPeers


class Peers(AnyPeers):
    """Every worker keeps a local model, and any group of workers may add up their models in a ring.

    Notes
    -----
    As under `gossip`, what a run leaves is the mean of the workers' models. A ring of n workers sends
    2 (n - 1) models in all, which count as bytes up; it begins when the links of all are free, and passes
    over each worker's own, as in All-Reduce.
    """

    name = "peers"
    source = "Luo et al. 2020 (Prague)"
