"""The wire on one machine against bare sockets: a push as large as ResNet-50, and a small one.

Each side is a process that receives and answers with a few bytes, and one that sends. Seconds are of the
clock, as the two processes of a side work at the same time.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import torch

from psbench.backends.dask.protocol.messages import Ping, PushMessage
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.protocol.transport import ClientSocket, ServerSocket
from tests.benchmarks.measure import Row, Rows, in_turns

KEY = b"b" * 32
#: parameters of ResNet-50, and of the MLP on digits
LARGE, SMALL = 25_600_000, 4_810


def _ours(pipe: Connection) -> None:
    """Receive pushes and answer each."""
    with ServerSocket("127.0.0.1", KEY) as server:
        server.keep_payload = lambda key, payload: None
        pipe.send(tuple(server.address))
        while True:
            received = server.receive(30)
            if received is not None and isinstance(received.message, PushMessage):
                server.send(received.sender, Ping())


def _bare(pipe: Connection) -> None:
    """Receive so many bytes into memory that is there, and answer with one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pipe.send(listening.getsockname())
        end, _ = listening.accept()
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        memory = {n: memoryview(bytearray(4 * n)) for n in (LARGE, SMALL)}
        with end:
            while size := int.from_bytes(end.recv(8), "little"):
                into = memory[size]
                while len(into):
                    into = into[end.recv_into(into) :]
                end.send(b"k")


class _Sides:
    """Both sides, connected."""

    def __init__(self) -> None:
        self.processes: list[Any] = []
        self.client = ClientSocket(Address(*self._start(_ours)), KEY, "worker 0")
        self.bare = socket.create_connection(self._start(_bare))
        self.bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _start(self, serve: Any) -> Any:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self.processes.append(context.Process(target=serve, args=(theirs,), daemon=True))
        self.processes[-1].start()
        return ours.recv()

    def push(self, vector: torch.Tensor) -> float:
        """Return the seconds of a push and its answer."""
        message = PushMessage(1, 0, 32, 1, 0.0, 0.0, 0.0, payload=vector)
        began = time.perf_counter()
        self.client.send(message)
        while self.client.receive(1) is None:
            pass
        return time.perf_counter() - began

    def bytes(self, vector: torch.Tensor) -> float:
        """Return the seconds of as many bytes over a bare socket, and its answer."""
        view = memoryview(vector.numpy()).cast("B")
        began = time.perf_counter()
        self.bare.sendall(len(vector).to_bytes(8, "little"))
        self.bare.sendall(view)
        self.bare.recv(1)
        return time.perf_counter() - began

    def close(self) -> None:
        """End both processes."""
        self.client.close()
        self.bare.close()
        for process in self.processes:
            process.kill()
            process.join()


def run() -> Rows:
    """Measure both sizes."""
    sides = _Sides()
    try:
        rows: Rows = []
        for size, repeats, each, least, towards in ((LARGE, 9, 3, 1.5, 1.1), (SMALL, 9, 500, None, None)):
            vector = torch.randn(size)
            ours, bare = in_turns(
                [
                    lambda v=vector, n=each: statistics.median(sides.push(v) for _ in range(n)),
                    lambda v=vector, n=each: statistics.median(sides.bytes(v) for _ in range(n)),
                ],
                repeats,
            )
            rows.append(
                Row(
                    f"a push of {size:,} parameters / as many bytes over a bare socket",
                    f"{1e3 * ours:.3g} ms",
                    f"{1e3 * bare:.3g} ms",
                    ours / bare,
                    least,
                    towards,
                    lower_is_better=True,
                )
            )
        return rows
    finally:
        sides.close()
