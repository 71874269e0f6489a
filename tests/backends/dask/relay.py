"""A relay of one port, as `ssh -L` and `kubectl port-forward` are; it can be cut and go on.

python relay.py LISTEN TARGET, each the path of a Unix socket or HOST:PORT.
"""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress


def _family(where: str) -> tuple[int, str | tuple[str, int]]:
    if where.startswith("/"):
        return socket.AF_UNIX, where
    host, _, port = where.rpartition(":")
    return socket.AF_INET, (host, int(port))


class Relay:
    """Passes on what comes to one place to another one, in threads."""

    def __init__(self, listen: str, target: str) -> None:
        family, place = _family(listen)
        self._target, self._ends, self.is_cut = target, list[socket.socket](), False
        self._server = socket.socket(family, socket.SOCK_STREAM)
        self._server.bind(place)
        self._server.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *error: object) -> None:
        self.cut()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join()

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def cut(self) -> None:
        """Break all connections, and refuse new ones until `mend`."""
        self.is_cut = True
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()

    def mend(self) -> None:
        self.is_cut = False

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:  # it is closed
                return
            if self.is_cut:
                near.close()
                continue
            family, place = _family(self._target)
            far = socket.socket(family, socket.SOCK_STREAM)
            far.connect(place)
            self._ends += (near, far)
            for ends in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._pass_on, args=ends, daemon=True))
                self._threads[-1].start()

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16):
                sink.sendall(part)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()


if __name__ == "__main__":
    Relay(*sys.argv[1:])
    print("ready", flush=True)
    threading.Event().wait()
