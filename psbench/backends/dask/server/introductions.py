"""Addresses of workers for other workers: each is sent those that it needs, when it first needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.roles import Address, worker_name


class Introductions:
    """Sends workers the addresses of others before the first message that they are to send them.

    A member of a ring sends to one other, and a worker in a graph to its neighbours: so n workers are sent as
    many addresses as there are connections, and not all n addresses each.

    Parameters
    ----------
    out : Outbox
    address_of : callable
        Returns the address at which a worker's process listens; None without one.
    """

    def __init__(self, out: Outbox, address_of: Callable[[int], Address | None]) -> None:
        self._out, self._address_of = out, address_of
        #: addresses that each worker's process was sent
        self._known: dict[int, dict[int, Address]] = {}

    def introduce(self, worker: int, others: Iterable[int]) -> None:
        """Send a worker the addresses of these others, as far as it does not have them."""
        known = self._known.setdefault(worker, {})
        new = dict[int, Address]()
        for other in others:
            address = self._address_of(other)
            if address is not None and known.get(other) != address:
                new[other] = address
        if new:
            known |= new
            self._out.send(worker_name(worker), msg.PeerAddresses(new))

    def forget(self, worker: int) -> None:
        """Forget a lost process: another in its place has no addresses, and has one of its own."""
        self._known.pop(worker, None)
        for known in self._known.values():
            known.pop(worker, None)
