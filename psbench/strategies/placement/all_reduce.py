"""No server: the workers reduce their gradients among themselves."""

from __future__ import annotations

from psbench.core.collective import NetworkTimes, Replicas


class AllReduce(Replicas):
    """A ring All-Reduce over the pushers of a commit; every worker keeps a replica of the model.

    In a ring of n workers each sends 2 (n - 1)/n of the vector. Its first half, the
    reduce-scatter, counts as bytes up and its second, the all-gather, as bytes down: each message once.

    Examples
    --------
    >>> ring = AllReduce()
    >>> ring.bytes_up(400, num_workers=4) + ring.bytes_down(400, num_workers=4)
    600
    """

    name = "all_reduce"
    source = "Patarasuk and Yuan 2009; thesis 2.1.2"

    def reduce_s(self, network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
        return network.ring(num_bytes, workers)

    def bytes_up(self, payload: int, num_workers: int) -> int:
        return round(payload * (num_workers - 1) / num_workers)

    def bytes_down(self, payload: int, num_workers: int) -> int:
        return round(payload * (num_workers - 1) / num_workers)
