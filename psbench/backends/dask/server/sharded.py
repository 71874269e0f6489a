"""Placement `sharded`: All-Reduce whose workers each hold a share of the model and of its state.

A ring's first half leaves every worker with the sum of its own share, from which it makes that share of the
next version; the second half gathers the version's parameters. A state is put together from all
shares, so with one of them the version is lost: the run goes back to its last checkpoint, as where a
parameter server is lost.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.roles import worker_name
from psbench.backends.dask.server.all_reduce import Addend, AllReduceStore, Request, Weighted
from psbench.backends.dask.server.ring_order import one_ring
from psbench.backends.dask.server.store import Then, join
from psbench.backends.partition import Partition, ring_shares
from psbench.errors import ServerLost


class ShardedStore(AllReduceStore):
    """The store under placement `sharded`: the workers' shares; see `AllReduceStore`."""

    kind = "a sharded model"

    def __init__(self, out: Outbox, workers: list[int], *rest: Any) -> None:
        super().__init__(out, workers, *rest)
        self._members = sorted(workers)  # of every ring, in this order: a share never moves
        for worker, place in zip(self._members, one_ring(self._members), strict=True):
            self._introduce(worker, [place])
            self._send(worker, msg.KeepShare(place))

    def _start(self, of: Weighted, members: list[Addend], total: float, numbers: dict[str, float]) -> None:
        super()._start(of, sorted(members), total, numbers)

    def gather(self, states: bool, then: Then) -> None:
        """Request every worker's share, and join the shares."""
        found: dict[int, StateDict] = {}

        def take(worker: int, state: StateDict) -> None:
            found[worker] = state
            if len(found) == len(self._members):
                then(self._whole([found[each] for each in self._members]))

        for worker in self._members:
            self._request(Request(lambda tag: msg.SendState(tag, states), partial(take, worker), worker))

    def _whole(self, shares: list[StateDict]) -> StateDict:
        length = sum(len(share["parameters"]) for share in shares)
        return join(shares, [Partition((own,)) for own in ring_shares(length, len(shares))])

    def leave(self, worker: int, ticket: int) -> None:
        """Raise ServerLost: no other process holds the lost worker's share of the model."""
        if worker in self._members:
            name = worker_name(worker)
            raise ServerLost(
                f"{name} is lost, and its share of the model with it (placement 'sharded')", name
            )

    def join(self, worker: int) -> None:
        """Ignore a joining worker: the shares of all others would have to change."""
