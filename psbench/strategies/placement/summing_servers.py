"""Servers that add up, for workers that hold the model: BytePS's summation service."""

from __future__ import annotations

from psbench.core import parameter
from psbench.core.collective import NetworkTimes, ServerSums

SOURCE = "Jiang et al. 2020 (BytePS)"


class SummingServers(ServerSums):
    """Servers sum the pushes of a commit; every worker keeps a replica of the model.

    A sum is one push and one answer of every worker: each server adds up its share of the entries, in the
    order of the commit, and answers all. It knows neither the model nor an optimizer, so an aggregation part
    with an exchange has its sums made here as it has in a ring, one after another.

    Notes
    -----
    Reduces to: `all_reduce`, whose models are the same after every update. In virtual time they are equal to
    the bit; live, a ring adds in another order for each piece, and servers in that of virtual time.
    With codec `fp16` sums are rounded on their way back too, live, as they are in a ring.
    A worker sends and receives 32 d bits a sum, in a ring 2 (n - 1)/n of 32 d each; a server carries 2 n
    times its share. A message to all goes to the servers, which answer with those of all.
    Our reading: each message is cut over all servers; BytePS has servers on the workers' machines too. A
    cluster's `service` is charged for what passes the coordinator, not for adding up.

    Examples
    --------
    >>> placement = SummingServers(servers=2)
    >>> placement.bytes_up(400, num_workers=4), placement.to_all_bytes(10, num_workers=4)
    (400, (10, 40))
    """

    name = "summing_servers"
    source = SOURCE

    servers: int = parameter(1, "number of summing servers", unit="servers", source=SOURCE, ge=1, le=64)

    @property
    def adding_servers(self) -> int:
        """Number of summing servers."""
        return self.servers

    def reduce_s(self, network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
        """Return the time of all pushes, and of the answers with the sum."""
        return network.star(num_bytes, num_bytes, workers)

    def to_all_s(self, network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
        """Return the time of all messages to the servers, and of the answers with all contributions."""
        return network.star(num_bytes, len(workers) * num_bytes, workers)

    def to_all_bytes(self, num_bytes: int, num_workers: int) -> tuple[float, float]:
        """Return the bytes of a worker's message, and of the answer with all contributions."""
        return num_bytes, num_workers * num_bytes
