"""Run `psbench twin` over links of 20 ms and 10 Mbit/s: a network namespace for each machine, real TCP.

python -m tests.twin.shaped --out FOLDER [--quick] [--workers 4]

The machines are emulated by waiting, one of them slower, as they are where no links are shaped.
Needs root, `ip` and /dev/net/tun. Each namespace has one end of a TAP device; the other ends are in this
process, which hands frames on after what they take at the rate, out of one machine and into the other, and
the delay. (The kernel's netem would do the same; not every kernel has it.)
"""

import argparse
import fcntl
import heapq
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from psbench.twin.recording import emulated

_TUNSETIFF, _TAP_WITHOUT_INFO = 0x400454CA, 0x1002
#: seconds of frames that a machine's way out, or in, keeps; more are dropped, as of a full queue
_QUEUE_S = 1.0


class Hub:
    """Hands frames from each of some TAP devices to the others, at a rate and with a delay."""

    def __init__(self, names: list[str], delay_s: float, mbit_s: float) -> None:
        self._delay_s, self._rate = delay_s, mbit_s * 125_000
        self._ends = [self._open(name) for name in names]
        self._machine: dict[bytes, int] = {}  # by hardware address, from what it has sent
        self._out_s, self._in_s = [0.0] * len(names), [0.0] * len(names)  # until when it is busy
        self._due: list[tuple[float, int, int, bytes]] = []
        self._count, self.dropped, self._over = 0, 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @staticmethod
    def _open(name: str) -> int:
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_INFO))
        return end

    def __enter__(self) -> "Hub":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)

    def _run(self) -> None:
        while not self._over.is_set():
            left = self._due[0][0] - time.monotonic() if self._due else 0.1
            for end in select.select(self._ends, [], [], min(0.1, max(0.0, left)))[0]:
                with suppress(OSError):  # no more, or the device is not up yet
                    while True:
                        self._take(self._ends.index(end), os.read(end, 65536))
            while self._due and self._due[0][0] <= time.monotonic():
                _, _, to, frame = heapq.heappop(self._due)
                with suppress(OSError):  # its namespace is gone
                    os.write(self._ends[to], frame)

    def _take(self, machine: int, frame: bytes) -> None:
        now, takes = time.monotonic(), len(frame) / self._rate
        self._machine[frame[6:12]] = machine
        left = max(now, self._out_s[machine])
        if left - now > _QUEUE_S:
            self.dropped += 1
            return
        self._out_s[machine] = left + takes
        to = self._machine.get(frame[:6])
        for other in range(len(self._ends)) if to is None else [to]:
            # it is passed on while it comes in, so a way in that is free adds nothing
            begins = max(left, self._in_s[other])
            if other == machine or begins - left > _QUEUE_S:
                continue
            self._in_s[other] = begins + takes
            self._count += 1
            heapq.heappush(self._due, (begins + takes + self._delay_s, self._count, other, frame))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def machines(count: int, delay_s: float, mbit_s: float) -> Iterator[list[list[str]]]:
    """Give so many namespaces at 10.77.0.1, 2, ... as commands that enter them."""
    names = [f"ps{os.getpid() % 10_000}-{number}" for number in range(count)]
    with ExitStack() as stack:
        stack.enter_context(Hub(names, delay_s, mbit_s))
        for number, name in enumerate(names):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("link", "set", name, "netns", name)
            _ip("-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", name)
            for device in (name, "lo"):
                _ip("-n", name, "link", "set", device, "up")
        yield [["ip", "netns", "exec", name] for name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--mbit", type=float, default=10.0)
    parser.add_argument("--batches", default="40", help="global batches of each run")
    parser.add_argument("--out", required=True, help="where runs, report and results go")
    parser.add_argument("--quick", action="store_true", help="two repeats in place of five")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces go
    dask = [sys.executable, "-m", "dask"]
    address = "tcp://10.77.0.1:8786"
    with machines(asked.workers + 1, asked.delay_ms / 1e3, asked.mbit) as enter, ExitStack() as stack:
        where = ["--host", "10.77.0.1", "--port", "8786", "--no-dashboard"]
        commands = [[*enter[0], *dask, "scheduler", *where]]
        for number, within in enumerate(enter, 1):
            options = ["--host", f"10.77.0.{number}", "--nthreads", "2", "--no-nanny", "--no-dashboard"]
            commands.append([*within, *dask, "worker", address, *options])
        for command in commands:
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        spec = emulated(asked.workers).spec()
        twin = ["twin", "--scheduler", address]
        for key in ("cluster", "batch_size"):
            twin += ["--set", f"{key}={json.dumps(spec[key])}"]
        twin += ["--batches", asked.batches, "--out", asked.out, *(["--quick"] if asked.quick else [])]
        return subprocess.run([*enter[0], sys.executable, "-m", "psbench", *twin], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
