"""What a worker keeps of a model that all hold together."""

from __future__ import annotations

from psbench.backends.dask.server.parameter_server import of_part
from psbench.backends.dask.server.store import slice_of
from psbench.backends.partition import Partition
from psbench.training.server import Server


def share_of(replica: Server, own: slice) -> Server:
    """Return a server of these entries of a replica, with their part of its states, and all buffers."""
    part = Partition((own,))
    state = slice_of(replica.tensors(), part, first=True)
    optimizer, batch = of_part(replica.spec, part), replica.global_batch
    made = Server(state["parameters"], state["buffers"], optimizer, batch, replica.aggregation)
    made.load_states(state)
    return made
