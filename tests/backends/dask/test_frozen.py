"""Processes of a cluster that are killed or frozen for good: what the user sees in the terminal, and when."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

pytestmark = [pytest.mark.dask, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

WORKERS = 4
RUN = {
    "strategy": "asp",
    "cluster": "{workers: 1, step_time: constant}",
    "batch_size": "24",
    "stop": "{epochs: 300}",
    "checkpoint_every": "1",
    "recovery.wait_for_workers": "30",
}


#: seconds that a run has for anything that a test waits for
PATIENCE_S = 120


class Terminal:
    """`psbench run` on that scheduler, and the lines that it prints, as they come."""

    def __init__(self, address: str, changes: Mapping[str, str]) -> None:
        settings = [f"--set={path}={value}" for path, value in {**RUN, **changes}.items()]
        command = [sys.executable, "-m", "psbench", "run", "--backend", "dask", "--scheduler", address]
        self.process = subprocess.Popen(
            [*command, *settings], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def until(self, pattern: str) -> None:
        """Wait for a line in which this is found."""
        until = time.monotonic() + PATIENCE_S
        while not any(re.search(pattern, line) for line in self.lines):
            self.check(f"a line with {pattern!r}", until)
            time.sleep(0.05)

    def check(self, awaited: str, until: float) -> None:
        """Fail if the run is over, or the time is."""
        assert self.process.poll() is None, f"the run is over before {awaited}: {self.lines}"
        assert time.monotonic() < until, f"no {awaited} within {PATIENCE_S} s: {self.lines}"

    def end(self) -> str:
        """Wait for the end; return all that was printed."""
        self.process.wait(400)
        self._thread.join()
        text = "\n".join(self.lines)
        assert "Traceback" not in text
        assert "distributed." not in text
        return text

    def close(self) -> None:
        """Kill it if it has not ended."""
        self.process.kill()
        self._thread.join()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class OwnCluster:
    """A scheduler and Dask workers, each a process of its own that has imported what a run needs."""

    scheduler: subprocess.Popen[bytes]
    address: str
    client: Client
    numbers: dict[str, int]

    def __init__(self, folder: Path) -> None:
        self._file = folder / "scheduler.json"
        self.processes, self.frozen = list[subprocess.Popen[bytes]](), set[str]()

    def start(self, workers: int = WORKERS, nanny: str = "--no-nanny") -> None:
        """Start its processes; `end` ends them, also if this fails."""
        self.scheduler = self._start_scheduler("0")
        while not self._file.exists():
            time.sleep(0.05)
        self.address = str(json.loads(self._file.read_text())["address"])
        self.add(workers, nanny)
        self.client = Client(self.address, set_as_default=False, timeout=60)
        self.client.wait_for_workers(workers, timeout=300)
        self.numbers = self.client.run(os.getpid)
        self.client.run(lambda: bool(__import__("psbench.backends.dask.tasks")))

    def _start_scheduler(self, port: str) -> subprocess.Popen[bytes]:
        page = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        where = ["--host", "127.0.0.1", "--port", port, "--scheduler-file", str(self._file)]
        return self._start("scheduler", *where, *page)

    def add(self, workers: int, nanny: str = "--no-nanny") -> None:
        """Start further Dask workers."""
        for _ in range(workers):
            options = ["--scheduler-file", str(self._file), "--nthreads", "1", nanny, "--no-dashboard"]
            self._start("worker", *options)

    def restart_scheduler(self) -> None:
        """Kill the scheduler, and start another at its address."""
        self.scheduler.kill()
        self.scheduler.wait()
        self.scheduler = self._start_scheduler(self.address.rpartition(":")[2])

    def _start(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        command, quiet = (
            [sys.executable, "-m", f"distributed.cli.dask_{program}", *options],
            subprocess.DEVNULL,
        )
        self.processes.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))
        return self.processes[-1]

    def process_of(self, role: str, terminal: Terminal) -> int:
        """Return the process of a role, as soon as it has one."""
        until = time.monotonic() + PATIENCE_S
        while True:
            terminal.check(f"a process is the {role}", until)
            for address, keys in self.client.processing().items():
                if any(str(key).endswith(role.replace(" ", "-")) for key in keys):
                    return int(self.numbers[address])
            time.sleep(0.01)

    def freeze(self, addresses: Iterable[str]) -> set[str]:
        """Stop some Dask workers; return all that are stopped."""
        for address in addresses:
            os.kill(self.numbers[address], signal.SIGSTOP)
            self.frozen.add(address)
        return self.frozen

    def end(self) -> None:
        """Kill all processes."""
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        with suppress(Exception):
            self.client.close(timeout=1)


@contextmanager
def running(folder: Path, *of_cluster: Any, **changes: str) -> Iterator[tuple[OwnCluster, Terminal]]:
    with ExitStack() as ends:
        cluster = OwnCluster(folder)
        ends.callback(cluster.end)
        cluster.start(*of_cluster)
        terminal = Terminal(cluster.address, changes)
        ends.callback(terminal.close)
        yield cluster, terminal


def test_an_evaluator_killed_at_the_start_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, terminal):
        os.kill(cluster.process_of("evaluator", terminal), signal.SIGKILL)
        said = terminal.end()
        assert "evaluator has joined on another Dask worker" in said
        assert terminal.process.returncode == 0


def test_a_run_whose_coordinator_freezes_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, terminal):
        coordinator = cluster.process_of("coordinator", terminal)
        terminal.until(r"epoch ([2-9]|\d\d) of")  # the first one's checkpoint is written
        os.kill(coordinator, signal.SIGSTOP)
        said = terminal.end()
        assert "no message from parameter server 0 for" in said
        assert "does not respond: is it frozen?" in said
        assert "the run resumes from there (restart 1 of 2)" in said
        assert terminal.process.returncode == 0


def test_a_run_whose_scheduler_freezes_ends_as_it_would(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, terminal):
        terminal.until("epoch")
        os.kill(cluster.scheduler.pid, signal.SIGSTOP)
        said = terminal.end()
        assert "the Dask scheduler has not answered within 5 s" in said
        assert "finished: 300 epochs are done" in said
        assert terminal.process.returncode == 0


def test_a_scheduler_killed_at_the_start_is_one_sentence(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, terminal):
        cluster.process_of("coordinator", terminal)
        os.kill(cluster.scheduler.pid, signal.SIGKILL)
        said = terminal.end()
        assert [line for line in said.splitlines() if "scheduler" in line] == [
            "error: the Dask scheduler is gone: its process was killed, or its machine is unreachable"
        ]
        assert terminal.process.returncode == 1


def test_spares_that_are_frozen_keep_no_role_from_those_that_are_not(tmp_path: Path) -> None:
    """Four of six that are free are frozen, and the first in the scheduler's order are."""
    several = {"cluster": "{workers: 2, step_time: constant}", "stop": "{epochs: 100000}"}
    with running(tmp_path, 10, **several, recovery="{replace_workers: true}") as (cluster, terminal):
        terminal.until("epoch")
        for role in ("worker 1", "evaluator"):  # one after the other, as long as there are healthy ones
            free = [address for address, keys in cluster.client.processing().items() if not keys]
            frozen = cluster.freeze([address for address in free if address not in cluster.frozen][:2])
            os.kill(cluster.process_of(role, terminal), signal.SIGKILL)
            killed = time.monotonic()
            terminal.until(f"{role} has joined on another Dask worker")
            assert time.monotonic() < killed + 45  # and not after answer_within_s, a minute
            taken = cluster.client.processing()
            assert not any(taken[address] for address in frozen)
        terminal.process.send_signal(signal.SIGINT)
        assert "stopped" in terminal.end()


def test_a_dask_worker_without_a_nanny_that_is_told_to_end_is_retired(tmp_path: Path) -> None:
    several = {"cluster": "{workers: 2, step_time: constant}", "stop": "{epochs: 100000}"}
    with running(tmp_path, 5, **several, recovery="{replace_workers: true}") as (cluster, terminal):
        terminal.until("epoch")
        os.kill(cluster.process_of("worker 1", terminal), signal.SIGTERM)
        terminal.until("worker 1 left, as its Dask worker is being retired")
        terminal.until("worker 1 has joined on another Dask worker")
        terminal.process.send_signal(signal.SIGINT)
        assert "stopped" in terminal.end()


@pytest.mark.parametrize("nanny", ["--no-nanny", "--nanny"])
def test_a_scheduler_that_is_restarted_at_its_address_ends_no_run(nanny: str, tmp_path: Path) -> None:
    """Other Dask workers join it, as those of the run do not before the run is over."""
    changes = {"stop": "{seconds: 40}", "recovery": "{replace_workers: true}"}
    with running(tmp_path, WORKERS, nanny, **changes) as (cluster, terminal):
        terminal.until("epoch")
        cluster.restart_scheduler()
        cluster.add(2)
        said = terminal.end()
        assert "finished: " in said
        assert not re.search("lost|restart", said)
        assert terminal.process.returncode == 0
