"""How the client takes the state of a run back from its replica when a server is lost."""

from __future__ import annotations

import logging
import time

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.roles import CLIENT, Address, RunKey
from psbench.backends.dask.protocol.transport import ClientSocket
from psbench.backends.dask.record import Record

logger = logging.getLogger(__name__)

#: seconds between looks, and that the replica may take: it finds out by itself that the coordinator is gone
_LOOK_S, _ANSWER_S = 0.1, 15.0


def take_back(replica: Address, key: RunKey, record: Record) -> None:
    """Complete the log with what the replica has of it, and keep its state; do nothing if it is gone too."""
    with ClientSocket(replica, key, CLIENT) as socket:
        socket.send(msg.GiveStateBack(len(record.log), len(record.log.texts)))
        until = time.monotonic() + _ANSWER_S
        while time.monotonic() < until and not isinstance(message := socket.receive(_LOOK_S), msg.StopRun):
            if isinstance(message, msg.LogRows):
                record.extend(message)
            elif isinstance(message, msg.StoreCheckpoint):
                record.take_back(message)
                break
            elif message is None and socket.lost:
                logger.info("the replica is gone too")
                break
        socket.send(msg.StopRun())
