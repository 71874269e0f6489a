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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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

    def __init__(self, address: str) -> None:
        settings = [f"--set={path}={value}" for path, value in RUN.items()]
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

    def __init__(self, folder: Path) -> None:
        file = folder / "scheduler.json"
        of_dask = [sys.executable, "-m", "distributed.cli.dask_"]
        self.processes: list[subprocess.Popen[bytes]] = []
        page = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        where = ["--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file)]
        self._start([*of_dask[:2], of_dask[2] + "scheduler", *where, *page])
        while not file.exists():
            time.sleep(0.05)
        for _ in range(WORKERS):
            options = ["--scheduler-file", str(file), "--nthreads", "1", "--no-nanny", "--no-dashboard"]
            self._start([*of_dask[:2], of_dask[2] + "worker", *options])
        self.address = str(json.loads(file.read_text())["address"])
        self.client = Client(self.address, set_as_default=False, timeout=60)
        self.client.wait_for_workers(WORKERS, timeout=120)
        self._numbers = self.client.run(os.getpid)
        self.client.run(lambda: bool(__import__("psbench.backends.dask.tasks")))

    @property
    def scheduler(self) -> int:
        """The scheduler's process."""
        return self.processes[0].pid

    def _start(self, command: list[str]) -> None:
        quiet = subprocess.DEVNULL
        self.processes.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))

    def process_of(self, role: str, terminal: Terminal) -> int:
        """Return the process of a role, as soon as it has one."""
        until = time.monotonic() + PATIENCE_S
        while True:
            terminal.check(f"a process is the {role}", until)
            for address, keys in self.client.processing().items():
                if any(str(key).endswith(role.replace(" ", "-")) for key in keys):
                    return int(self._numbers[address])
            time.sleep(0.01)

    def end(self) -> None:
        """Kill all processes."""
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        with suppress(Exception):
            self.client.close(timeout=1)


@contextmanager
def running(folder: Path) -> Iterator[tuple[OwnCluster, Terminal]]:
    cluster = OwnCluster(folder)
    terminal = Terminal(cluster.address)
    try:
        yield cluster, terminal
    finally:
        terminal.close()
        cluster.end()


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
        assert "no word of parameter server 0 for" in said
        assert "gives no sign of life: is it frozen?" in said
        assert "the run goes on from there (restart 1 of 2)" in said
        assert terminal.process.returncode == 0


def test_a_run_whose_scheduler_freezes_ends_as_it_would(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, terminal):
        terminal.until("epoch")
        os.kill(cluster.scheduler, signal.SIGSTOP)
        said = terminal.end()
        assert "the Dask scheduler has not answered within 5 s" in said
        assert "finished: 300 epochs are done" in said
        assert terminal.process.returncode == 0


def test_a_scheduler_killed_at_the_start_is_one_sentence(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, terminal):
        cluster.process_of("coordinator", terminal)
        os.kill(cluster.scheduler, signal.SIGKILL)
        said = terminal.end()
        assert [line for line in said.splitlines() if "scheduler" in line] == [
            "error: the Dask scheduler is gone: its process was killed, or its machine is unreachable"
        ]
        assert terminal.process.returncode == 1
