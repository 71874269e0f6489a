"""Recovery of a run's state from its replica, by the client, when a server is lost."""

from __future__ import annotations

import logging
import time

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.roles import CLIENT, Address, RunKey
from psbench.backends.dask.protocol.transport import ClientSocket
from psbench.backends.dask.protocol.wire import patience_of
from psbench.backends.dask.record import Record
from psbench.clusters.connection import ConnectionSettings

logger = logging.getLogger(__name__)

#: seconds between looks
_LOOK_S = 0.1


def take_back(replica: Address, key: RunKey, record: Record, limits: ConnectionSettings) -> None:
    """Complete the log from the replica, and store its state; do nothing if the replica is lost too.

    It finds out by itself that the coordinator is gone, and may take `replica_within_s`.
    """
    with ClientSocket(replica, key, CLIENT, patience_of(limits)) as socket:
        socket.send(msg.GiveStateBack(len(record.log), len(record.log.texts)))
        until = time.monotonic() + limits.replica_within_s
        while not isinstance(message := socket.receive(_LOOK_S), msg.StopRun):
            if time.monotonic() > until:
                logger.warning("the replica has not answered within %g s", limits.replica_within_s)
                break
            if isinstance(message, msg.LogRows):
                record.extend(message)
            elif isinstance(message, msg.StoreCheckpoint):
                record.take_back(message)
                break
            elif message is None and socket.lost:
                logger.info("the replica is gone too")
                break
        socket.send(msg.StopRun())
