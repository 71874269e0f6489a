"""One connection of the stream wire: frames to bytes and back; a reader polls for a moment before it sleeps.

A frame is a head of fixed size, a body, and the bytes of a tensor. What the system does not take at once is
queued, and sent by a thread that all connections of a process share (`sender`).

Before the peer's greeting was checked (`meet`) a frame may be no larger than a greeting and has no payload,
and neither bytes nor heartbeats are signs of life.
"""

from __future__ import annotations

import math
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from psbench.backends.dask.protocol.decoder import MessageRefused
from psbench.backends.dask.protocol.payloads import TYPES, ZERO_COPY_BYTES, bytes_of, new_payload
from psbench.backends.dask.protocol.wire import HEARTBEAT_S, Frame

#: kind of the frame, type of its payload, bytes of the body, entries of the payload
HEAD = struct.Struct("<BBxxIQ")
_HEAD_BYTES = HEAD.size
#: small frames are read whole, and several at once
_BUFFER = 1 << 16
#: seconds that a reader polls without sleeping: a small model's update takes that long
_SPIN_S = 2e-4
#: buffers that are read and dropped at the end
_UNREAD = 1 << 10
#: bytes of the largest body that is received of a peer, and of the largest greeting
_LARGEST_BODY, _GREETING = 1 << 28, 1 << 12
#: the kind of a sign of life, which no message has
_HEARTBEAT = 255


class Connection:
    """One end of a connection; one thread reads, any may write.

    Parameters
    ----------
    end : socket
    greeting_s : float, seconds
        Time for the peer's whole greeting.

    Attributes
    ----------
    gone : bool
        Whether nothing more will come.
    is_met : bool
        Whether the peer's greeting was checked.
    name : str or None
        Of the peer; for the holder of the connection.
    binding : bytes
        What only the two ends of this connection know, if it is encrypted.
    """

    binding = b""

    def __init__(
        self,
        end: socket.socket,
        greeting_s: float = math.inf,
    ) -> None:
        end.setblocking(False)
        if end.family != getattr(socket, "AF_UNIX", None):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._end, self._number = end, end.fileno()
        self._receive: Callable[[memoryview], int] = end.recv_into
        self._transmit: Callable[[list[memoryview | bytes]], int] = end.sendmsg
        self._poller = select.poll()
        self._poller.register(self._number, select.POLLIN)
        self.gone = self.is_met = False
        self.name: str | None = None
        self._largest_body, self._largest_payload = _GREETING, 0
        self._buffer = bytearray(HEAD.size + _GREETING)
        self._view = memoryview(self._buffer)
        self._start = self._stop = 0  # what has been read and not taken yet
        self._head: tuple[int, bytes] | None = None  # kind and body of a frame whose payload is arriving
        self._payload: Tensor | None = None
        self._into = memoryview(b"")  # the rest of that payload's memory
        self._lock = threading.Lock()
        self._queue: deque[memoryview | bytes] = deque()
        self._closed = False
        self._sent_s = self._heard_s = time.monotonic()
        self._silence_s = greeting_s

    def fileno(self) -> int:
        """Return the number of the socket, for pollers."""
        return self._number

    def meet(self, silence_s: float, largest_payload: int = 1 << 40) -> None:
        """Receive messages from now on: the peer's greeting was checked.

        Parameters
        ----------
        silence_s : float, seconds
            Time without a sign of life after which the peer is gone.
        largest_payload : int
            Entries (at least a byte each) of the largest payload; a frame that announces more is refused.
        """
        self.is_met = True
        self._silence_s, self._heard_s = silence_s, time.monotonic()
        self._largest_body, self._largest_payload = _LARGEST_BODY, largest_payload
        self._make_room(_BUFFER)

    # ---------------------------------------------------------------- reading

    @property
    def has_bytes(self) -> bool:
        return self._stop > self._start

    @property
    def has_unseen_bytes(self) -> bool:
        """Return whether received bytes wait outside the socket, where a poller cannot detect them."""
        return False

    @property
    def is_silent(self) -> bool:
        """Return whether the peer has been silent for too long; call this only when nothing can be read."""
        return time.monotonic() - self._heard_s > self._silence_s

    def wait(self, timeout_s: float) -> bool:
        """Wait until data can be read, at most `timeout_s`; return whether it can."""
        if timeout_s > 0 and self._comes_soon():
            return True
        return bool(self._poller.poll(max(0, round(timeout_s * 1000))))

    def _comes_soon(self) -> bool:
        """Poll for a moment without sleeping: waking takes as long as a server's answer to a small push.

        Other threads may have the core meanwhile.
        """
        until = time.perf_counter() + _SPIN_S
        while time.perf_counter() < until:
            if self._poller.poll(0):
                return True
            os.sched_yield()
        return False

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None if it is incomplete.

        A call reads one buffer, or a payload as far as it is there: no peer keeps the reader from the others.

        Raises
        ------
        MessageRefused
            If what comes is no frame; nothing can be read any more then.
        """
        may_read, frame = True, self._take() if self.has_bytes else None
        while frame is None:
            if not (may_read and self._fill()):
                self.gone |= not self.is_met and self.is_silent
                return None
            may_read, frame = self._head is not None, self._take()
        return frame

    def _take(self) -> Frame | None:
        """Return the next frame if it has been read completely, skipping heartbeats after the greeting."""
        while self._head is None:
            have = self._stop - self._start
            if have < _HEAD_BYTES:
                return None
            kind, type_number, size, entries = HEAD.unpack_from(self._buffer, self._start)
            if size > self._largest_body or entries > self._largest_payload:
                raise self._refusal(size, entries)
            end = _HEAD_BYTES + size
            if have < end:
                self._make_room(end)
                return None
            body = bytes(self._view[self._start + _HEAD_BYTES : self._start + end])
            self._start += end
            if entries:
                memory = new_payload(type_number, entries)
                self._payload, self._into = torch.from_numpy(memory), memory.data.cast("B")
                self._head = kind, body
            elif kind != _HEARTBEAT or not self.is_met:
                return Frame(kind, body, None)
        return self._take_payload()

    def _take_payload(self) -> Frame | None:
        count = min(self._stop - self._start, len(self._into))
        if count:
            self._into[:count] = self._view[self._start : self._start + count]
            self._into, self._start = self._into[count:], self._start + count
        if len(self._into):
            return None
        assert self._head is not None
        frame = Frame(*self._head, self._payload)
        self._head = self._payload = None
        return frame

    def _refusal(self, size: int, entries: int) -> MessageRefused:
        """Return the reason why a frame of that size is not read."""
        if size > self._largest_body:
            return MessageRefused(f"its body would have {size:,} bytes")
        if not self.is_met:
            return MessageRefused("a peer sent a payload without proving that it has the run's key")
        return MessageRefused(f"its header announces {entries} entries, more than any message has")

    def _make_room(self, size: int) -> None:
        """Enlarge the buffer for a frame with head and body of that size."""
        if size > len(self._buffer):
            rest = bytes(self._view[self._start : self._stop])
            self._buffer = bytearray(size)
            self._view = memoryview(self._buffer)
            self._view[: len(rest)] = rest
            self._start, self._stop = 0, len(rest)

    def _fill(self) -> bool:
        """Read available bytes into the current payload, or else into the buffer."""
        if self.gone:
            return False
        if self._head is None:
            if self._start:
                self._shift()
            into = self._view[self._stop :]
        else:
            into = self._into
        try:
            count = self._receive(into)
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        self.gone = not count
        if self.is_met:
            self._heard_s = time.monotonic()
        if self._head is None:
            self._stop += count
        else:
            self._into = into[count:]
        return bool(count)

    def _shift(self) -> None:
        """Move the unread bytes to the beginning of the buffer."""
        left = self._stop - self._start
        if left:
            self._view[:left] = bytes(self._view[self._start : self._stop])
        self._start, self._stop = 0, left

    def look(self) -> None:
        """Check whether the peer has closed the connection; earlier messages can still be read."""
        if self._head is None and self._stop - self._start < len(self._buffer):
            while self._fill():
                if self._stop == len(self._buffer):
                    return
        # of a payload that is arriving nothing is read here: what the system holds of it is a sign of life
        unread = self.has_bytes or self.has_unseen_bytes or self.wait(0)
        self.gone = self.gone or (not unread and self.is_silent)

    # ---------------------------------------------------------------- writing

    def send(self, frame: Frame) -> bool:
        """Send a frame, or queue the part that the socket does not accept; False if the connection is closed.

        A payload of `ZERO_COPY_BYTES` or more must not change afterwards.
        """
        kind, body, payload = frame
        entries = 0 if payload is None else payload.numel()
        if payload is None or not entries:
            parts: list[memoryview | bytes] = [HEAD.pack(kind, 0, len(body), 0) + body]
        else:
            head = HEAD.pack(kind, TYPES.index(payload.dtype), len(body), entries)
            parts = [head + body, bytes_of(payload)]
        with self._lock:
            if self._closed:
                return False
            if not self._queue:
                parts = self._write(parts)
            if parts:
                self._queue.extend(bytes(part) if len(part) < ZERO_COPY_BYTES else part for part in parts)
            return not self._closed

    def _write(self, parts: list[memoryview | bytes]) -> list[memoryview | bytes]:
        """Write as much as the socket accepts, and return the rest."""
        try:
            sent = self._transmit(parts)
        except BlockingIOError:
            return parts
        except OSError:
            self._closed = True
            return []
        self._sent_s = time.monotonic()
        for place, part in enumerate(parts):
            if sent < len(part):
                return [memoryview(part)[sent:], *parts[place + 1 :]]
            sent -= len(part)
        return []

    @property
    def has_queue(self) -> bool:
        return bool(self._queue)

    @property
    def waits_for(self) -> int:
        """The poll event to wait for before more can be sent."""
        return select.POLLOUT

    def flush(self) -> None:
        """Write as much of the queue as the socket accepts."""
        with self._lock:
            if self._closed:
                self._queue.clear()
            elif self._queue:
                self._queue = deque(self._write(list(self._queue)[:16]) + list(self._queue)[16:])

    def beat(self, now_s: float) -> None:
        """Send a heartbeat if nothing was sent for a while."""
        if now_s - self._sent_s > HEARTBEAT_S and not self._queue:
            self.send(Frame(_HEARTBEAT, b"", None))

    def close(self, linger_s: float) -> None:
        """Close the connection after the queue is sent, or after `linger_s`."""
        deadline = time.monotonic() + linger_s
        poller = select.poll()
        while self._queue and not self._closed and (left := deadline - time.monotonic()) > 0:
            poller.register(self._number, self.waits_for)
            poller.poll(left * 1000)
            self.flush()
        with self._lock:
            self._closed = self.gone = True
            self._queue.clear()
            with suppress(OSError):
                self._end.shutdown(socket.SHUT_WR)
                # a socket that is closed unread may take back what it has sent; a stranger was sent nothing
                for _ in range(_UNREAD if self.is_met else 1):
                    if not self._end.recv(_BUFFER):
                        break
            self._end.close()
