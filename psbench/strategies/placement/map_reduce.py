"""A driver that starts a job for every mini-batch: map over the partitions, then reduce."""

from __future__ import annotations

from math import ceil, log2

from psbench.core import parameter
from psbench.core.collective import Jobs, NetworkTimes

_MLLIB = "thesis, Table 2.4 (MLlib, logistic regression): 6,533,333 examples/s on 140 workers"


class MapReduce(Jobs):
    """The driver broadcasts the model, one task per partition computes a gradient, and a tree sums them.

    Every mini-batch is a job of its own, and each task goes through its whole partition to find the members
    of the mini-batch: that is what makes small mini-batches expensive in this style.

    Notes
    -----
    Reduces to: BSP, update by update. The time of a mini-batch of T samples on n workers is
    job_s + scan + T/n samples + 2 tree, tree = ceil(log2(n + 1)) times latency + bytes / bandwidth.
    The 0.1 s of a job is chosen by hand, as what a job of Spark's is commonly said to take; measure yours.

    Examples
    --------
    >>> MapReduce(job_s=0.5, scan_s_per_sample=0.25).start_s(partition=2)
    1.0
    """

    name = "map_reduce"
    source = "thesis 2.2, 2.3 (Spark MLlib)"

    job_s: float = parameter(0.1, "time to start a job, in virtual time", unit="s", source="by hand", ge=0)
    scan_s_per_sample: float = parameter(
        140 / 6_533_333, "time to scan a sample, in virtual time", unit="s", source=_MLLIB, ge=0
    )

    def start_s(self, partition: int) -> float:
        return self.job_s + self.scan_s(partition)

    def scan_s(self, partition: int) -> float:
        """Return the time of a scan of the partition, which does not depend on the mini-batch."""
        return partition * self.scan_s_per_sample

    def broadcast_s(self, network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
        """Return the time of sending the model down a tree."""
        return _tree(network, num_bytes, workers)

    def reduce_s(self, network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
        """Return the time of adding up along a tree."""
        return _tree(network, num_bytes, workers)


def _tree(network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
    return ceil(log2(len(workers) + 1)) * network.hop(num_bytes, workers)
