"""A hub between TAP devices: each machine's way out and in has a rate and a delay, groups may share a line.

The kernel's netem would do the same; not every kernel has it.
"""

import fcntl
import heapq
import math
import os
import select
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

_TUNSETIFF, _TAP_WITHOUT_INFO = 0x400454CA, 0x1002
#: seconds of frames that a queue keeps; more are dropped, as of a full queue
_QUEUE_S = 1.0
#: bytes that the kernel is asked for at most: no frame has more
_LARGEST = 65_536


@dataclass(frozen=True)
class Link:
    """A machine's own link: Mbit/s out and in, and the milliseconds that each way adds."""

    up_mbit: float
    down_mbit: float
    delay_ms: float


@dataclass(frozen=True)
class Network:
    """The links of some machines, the server's first; some of them may be in a second rack.

    Frames between racks pass over one line, which is as fast either way, and wait there in one queue.
    """

    links: tuple[Link, ...]
    far_rack: tuple[int, ...] = ()
    line: Link | None = None

    def path(self, start: int, end: int) -> list["Hop"]:
        """Return what a frame between two machines passes."""
        out, into = self.links[start], self.links[end]
        found = [Hop(f"out of {start}", out.up_mbit, out.delay_ms / 1e3)]
        if self.line is not None and (start in self.far_rack) != (end in self.far_rack):
            whither = "back" if start in self.far_rack else "there"
            found.append(Hop(f"line {whither}", self.line.up_mbit, self.line.delay_ms / 1e3))
        return [*found, Hop(f"into {end}", into.down_mbit, into.delay_ms / 1e3)]

    def delay_s(self, start: int, end: int) -> float:
        """Return the seconds that a frame is under way beside its queues."""
        return sum(hop.delay_s for hop in self.path(start, end))

    def mbit_s(self, start: int, end: int) -> float:
        """Return the rate of the thinnest queue between two machines."""
        return min(hop.mbit_s for hop in self.path(start, end))


class Hop(NamedTuple):
    """A queue, by name, with its rate and the delay behind it."""

    queue: str
    mbit_s: float
    delay_s: float


class Queues:
    """The queues of a network, and the frames in them; times are those of one clock, in seconds."""

    def __init__(self, network: Network) -> None:
        machines = range(len(network.links))
        self._paths = {
            (start, end): [(hop.queue, hop.mbit_s * 125_000, hop.delay_s) for hop in network.path(start, end)]
            for start in machines
            for end in machines
            if start != end
        }
        self._free_s = {queue: 0.0 for path in self._paths.values() for queue, _, _ in path}
        # when it begins to arrive, its number, the frame, its way, the hop that is next, when all has arrived
        self._due: list[tuple[float, int, bytes, tuple[int, int], int, float]] = []
        self._count = 0

    @property
    def next_s(self) -> float:
        """When a frame arrives somewhere next."""
        return self._due[0][0] if self._due else math.inf

    def put(self, now: float, frame: bytes, way: tuple[int, int]) -> None:
        """Put a frame into the first queue of its way."""
        self._count += 1
        self._enter(now, self._count, frame, way, 0, now)

    def take(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Move all frames as far as they are by now; yield those that have arrived, and where."""
        while self._due and self._due[0][0] <= now:
            *at, way, hop, whole = heapq.heappop(self._due)
            if hop == len(self._paths[way]):
                yield way[1], at[2]
            else:
                self._enter(*at, way, hop, whole)

    def _enter(
        self, at: float, count: int, frame: bytes, way: tuple[int, int], hop: int, whole: float
    ) -> None:
        """Put a frame into a queue, which passes it on while it comes in.

        Queues are entered in the order of arrival: a frame that waits before one of them keeps it free.
        """
        queue, rate, delay_s = self._paths[way][hop]
        begins = max(at, self._free_s[queue])
        if begins - at > _QUEUE_S:
            return
        self._free_s[queue] = begins + len(frame) / rate
        whole = max(whole, begins + len(frame) / rate) + delay_s
        last = hop + 1 == len(self._paths[way])
        heapq.heappush(self._due, (whole if last else begins + delay_s, count, frame, way, hop + 1, whole))


class Hub:
    """Hands frames from each of some TAP devices to the others."""

    def __init__(self, names: list[str], network: Network) -> None:
        self._queues = Queues(network)
        self._ends = [self._open(name) for name in names]
        self._place = {end: place for place, end in enumerate(self._ends)}
        self._machine: dict[bytes, int] = {}  # by hardware address, from what it has sent

    @staticmethod
    def _open(name: str) -> int:
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_INFO))
        return end

    def run(self) -> None:
        """Hand on frames until the process ends."""
        while True:
            left = min(1.0, max(0.0, self._queues.next_s - time.monotonic()))
            for end in select.select(self._ends, [], [], left)[0]:
                with suppress(OSError):  # no more, or the device is not up yet
                    while True:
                        self._put(self._place[end], os.read(end, _LARGEST))
            for to, frame in self._queues.take(time.monotonic()):
                with suppress(OSError):  # its namespace is gone
                    os.write(self._ends[to], frame)

    def _put(self, start: int, frame: bytes) -> None:
        self._machine[frame[6:12]] = start
        to = self._machine.get(frame[:6])
        # who has an address is asked of all
        for end in range(len(self._ends)) if to is None else [to]:
            if end != start:
                self._queues.put(time.monotonic(), frame, (start, end))
