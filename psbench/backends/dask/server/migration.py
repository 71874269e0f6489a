"""Entries that move from one server to another, with optimizer and codec state and waiting pushes."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.messages import PushKey
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.backends.partition import Partition


class SliceMigration:
    """One server's part in a reassignment: it sends some entries, receives others, and keeps the rest.

    Parameters
    ----------
    own : ParameterSlice
    before, after : Partition
        What it holds, and what it is to hold.
    keys : sequence of (worker, ticket)
        The pushes that wait; each must have arrived.
    """

    def __init__(
        self, own: ParameterSlice, before: Partition, after: Partition, keys: Sequence[PushKey]
    ) -> None:
        self._slice, self._before, self._after = own, before, after
        self._kept = own.vectors(keys)

    @property
    def given(self) -> StateDict:
        """Of each vector the entries that leave this server, in order."""
        goes = self._before.without(self._after)
        return {name: goes.of(self._before.scatter(vector)) for name, vector in self._kept.items()}

    def take(self, received: StateDict) -> None:
        """Hold the remaining and the received entries."""
        comes = self._after.without(self._before)
        end = self._after.end
        vectors = {}
        for name, vector in self._kept.items():
            whole = self._before.scatter(vector, end)
            comes.put(whole, received[name])
            vectors[name] = self._after.of(whole)
        self._slice.hold_vectors(vectors)


def exchange(
    given: Sequence[StateDict], before: Sequence[Partition], after: Sequence[Partition]
) -> list[StateDict]:
    """Return the entries that each server receives in an exchange of all servers' entries.

    >>> import torch
    >>> from psbench.backends.partition import partitions_of
    >>> before, after = partitions_of([[(0, 3)], [(3, 4)]]), partitions_of([[(0, 1)], [(1, 4)]])
    >>> given = [{"w": torch.tensor([5.0, 6.0])}, {"w": torch.tensor([])}]
    >>> [received["w"].tolist() for received in exchange(given, before, after)]
    [[], [5.0, 6.0]]
    """
    end = max(cut.end for cut in before)
    found: list[StateDict] = [{} for _ in before]
    for name, sample in given[0].items():
        whole = sample.new_empty(end)
        for part, old, new in zip(given, before, after, strict=True):
            old.without(new).put(whole, part[name])
        for received, old, new in zip(found, before, after, strict=True):
            received[name] = new.without(old).of(whole)
    return found
