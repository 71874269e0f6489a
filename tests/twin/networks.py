"""Five networks of namespaces, with a Dask cluster on them: real TCP over links that are shaped.

python -m tests.twin.networks unequal                  # measure it: round trips and rates of a socket
python -m tests.twin.networks unequal COMMAND...       # run a command beside the scheduler

The scheduler is at tcp://10.77.0.1:8786. Its machine has a Dask worker for the servers; those of the other
machines have the resource `TRAIN`. Needs root, `ip` and /dev/net/tun.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection

from tests.twin.hub import Hub, Link, Network
from tests.twin.processes import enter

SCHEDULER = "tcp://10.77.0.1:8786"
#: worker 0 to 5: Mbit/s up and down, and ms
_UNEQUAL = ((50, 50, 5), (20, 20, 40), (10, 10, 10), (5, 20, 20), (30, 30, 30), (2, 2, 15))
NETWORKS = {
    "unequal": Network((Link(50, 50, 0), *(Link(*each) for each in _UNEQUAL))),
    "far": Network((Link(10, 10, 10),) * 5),
    "near": Network((Link(100, 100, 1),) * 7),
    "one_slow": Network((Link(50, 50, 2), *(Link(50, 50, 2),) * 7, Link(4, 4, 2))),
    "racks": Network((Link(100, 100, 1),) * 7, far_rack=(4, 5, 6), line=Link(10, 10, 3)),
}
#: share of a frame's bytes that a TCP stream of 1,500-byte packets is
PAYLOAD = 1448 / 1514


@dataclass
class Machines:
    """The namespaces of a network, at 10.77.0.1, 2, ..."""

    network: Network
    names: list[str] = field(default_factory=list)

    def enter(self, machine: int) -> list[str]:
        """Return the beginning of a command that runs there, before other work of this machine."""
        return ["ip", "netns", "exec", self.names[machine], "nice", "-n", "-20"]

    def socket(self, machine: int) -> socket.socket:
        """Return a new TCP socket of that machine: it stays there whoever uses it."""
        return _within(self.names[machine], lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))


def _within(name: str, make: Callable[[], socket.socket]) -> socket.socket:
    """Return what is made in a namespace, which a thread that ends here enters."""

    def made() -> socket.socket:
        enter(name)
        return make()

    with ThreadPoolExecutor(1) as one:
        return one.submit(made).result()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _hub(names: list[str], network: Network, ready: Connection) -> None:
    """Hand on frames, before all other processes: late frames would be longer links."""
    hub = Hub(names, network)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    ready.send("ready")
    hub.run()


@contextmanager
def machines(network: Network) -> Iterator[Machines]:
    """Make the namespaces of a network, and remove them."""
    names = [f"ps{os.getpid() % 10_000}-{number}" for number in range(len(network.links))]
    with ExitStack() as stack:
        processes = get_context("spawn")
        seen, ready = processes.Pipe(duplex=False)
        hub = processes.Process(target=_hub, args=(names, network, ready), daemon=True)
        hub.start()
        ready.close()
        stack.callback(hub.join)
        stack.callback(hub.terminate)
        seen.recv()  # EOFError if the hub failed, whose error is above
        for number, name in enumerate(names):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("link", "set", name, "netns", name)
            _ip("-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", name)
            for device in (name, "lo"):
                _ip("-n", name, "link", "set", device, "up")
            # a window as most machines have it, whatever the choice of this one is: nothing here is lost
            chosen = ["sysctl", "-q", "-w", "net.ipv4.tcp_congestion_control=reno"]
            _ip("netns", "exec", name, *chosen)
        yield Machines(network, names)


@contextmanager
def cluster(network: Network) -> Iterator[Machines]:
    """Start a Dask scheduler and workers on the machines of a network."""
    with machines(network) as made, ExitStack() as stack:
        where = ["--host", "10.77.0.1", "--port", "8786", "--no-dashboard"]
        commands = [[made.names[0], "dask", "scheduler", *where]]
        for number, name in enumerate(made.names):
            options = ["--host", f"10.77.0.{number + 1}", "--no-nanny", "--no-dashboard"]
            # the first role, that of the server, goes to who has most threads
            options += ["--nthreads", "1", "--resources", "TRAIN=1"] if number else ["--nthreads", "3"]
            commands.append([name, "dask", "worker", SCHEDULER, *options])
        processes = [sys.executable, "-m", "tests.twin.processes", json.dumps(commands)]
        process = subprocess.Popen(processes, stderr=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        # roles are placed on those that are there
        count = len(network.links)
        waits = f"import distributed as d; d.Client({SCHEDULER!r}).wait_for_workers({count}, 180)"
        subprocess.run([*made.enter(0), sys.executable, "-c", waits], check=True)
        yield made


# -------------------------------------------------------------------- measurements of the network itself


@dataclass
class Measured:
    """What a socket of a machine has, by (from, to): seconds of a round trip, and Mbit/s of a stream."""

    round_trip_s: dict[tuple[int, int], float] = field(default_factory=dict)
    mbit_s: dict[tuple[int, int], float] = field(default_factory=dict)

    def errors(self, network: Network) -> Iterator[tuple[str, float, float]]:
        """Yield what was measured, its value, and what the network is meant to have."""
        for (start, end), seconds in self.round_trip_s.items():
            meant = network.delay_s(start, end) + network.delay_s(end, start)
            yield f"round trip {start} to {end}, s", seconds, meant
        for (start, end), rate in self.mbit_s.items():
            yield f"rate {start} to {end}, Mbit/s", rate, PAYLOAD * network.mbit_s(start, end)


def measured(
    made: Machines, ways: Sequence[tuple[int, int]], seconds: float = 0.5, at_once: bool = False
) -> Measured:
    """Measure round trips of a byte, and the rates of streams one after another, or all at once.

    A stream's rate is what arrives in `seconds`, from when it has been as fast as it will be.
    """
    found = Measured()
    with ExitStack() as stack:
        pairs = {}
        for port, (start, end) in enumerate(ways, 4000):
            listening = stack.enter_context(made.socket(end))
            listening.bind((f"10.77.0.{end + 1}", port))
            listening.listen(1)
            out = stack.enter_context(made.socket(start))
            out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            out.connect(listening.getsockname())
            into = stack.enter_context(listening.accept()[0])
            into.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pairs[start, end] = out, into
        for way, pair in pairs.items():
            found.round_trip_s[way] = min(_round_trip_s(*pair) for _ in range(5))
        with ThreadPoolExecutor(len(pairs) if at_once else 1) as streams:
            rates = streams.map(lambda pair: _mbit_s(*pair, seconds), pairs.values())
            found.mbit_s = dict(zip(pairs, rates, strict=True))
    return found


def _round_trip_s(out: socket.socket, into: socket.socket) -> float:
    began = time.perf_counter()
    out.sendall(b"?")
    into.recv(1)
    into.sendall(b"!")
    out.recv(1)
    return time.perf_counter() - began


def _mbit_s(out: socket.socket, into: socket.socket, seconds: float) -> float:
    over = threading.Event()
    out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)

    def send() -> None:
        out.settimeout(0.1)
        while not over.is_set():
            try:
                out.send(bytes(1 << 14))
            except TimeoutError:
                continue

    sending = threading.Thread(target=send)
    sending.start()
    _received(into, time.perf_counter() + 0.5)
    began = time.perf_counter()
    count, until = _received(into, began + seconds)
    over.set()
    sending.join()
    return count * 8e-6 / (until - began)


def _received(into: socket.socket, until: float) -> tuple[int, float]:
    """Return the bytes that arrive until a time, and when the last of them did."""
    count, last = 0, time.perf_counter()
    while last < until:
        count += len(into.recv(1 << 16))
        last = time.perf_counter()
    return count, last


def main(name: str, *command: str) -> int:
    """Run a command on a network, or measure it."""
    network = NETWORKS[name]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces go
    if command:
        with cluster(network) as made:
            return subprocess.run([*made.enter(0), *command], check=False).returncode
    workers = range(1, len(network.links))
    with machines(network) as made:
        for ways in ([(each, 0) for each in workers], [(0, each) for each in workers]):
            for what, value, meant in measured(made, ways).errors(network):
                print(f"{what:<24} {value:9.4f}, meant {meant:9.4f}: {value / meant - 1:+.1%}", flush=True)
        together = measured(made, [(each, 0) for each in workers], 1.0, at_once=True).mbit_s
        print(f"all at once to the server, Mbit/s: {sum(together.values()):.1f} together, of {together}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
