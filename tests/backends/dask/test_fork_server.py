"""What the fork server imports: what a process of a live run needs, and nothing beside; and how those end."""

from __future__ import annotations

import multiprocessing
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from distributed import LocalCluster

from psbench.backends.dask.local_cluster import local_cluster
from psbench.system.fork_server import PRELOADED, ensure_running

_TELLS = """
import gc, sys
slow = {"altair", "pandas", "sklearn", "torch", "torch._dynamo", "torchvision"}
with open(PATH, "w") as file:
    print(gc.isenabled(), gc.get_freeze_count() > 100_000, *sorted(slow & sys.modules.keys()), file=file)
    print(*sys.modules, file=file)
"""


def test_the_fork_server_imports_no_more_than_runs_need(tmp_path: Path) -> None:
    """Python passes over a module that is not there, or cannot be imported; here it is an error."""
    ensure_running()
    path = tmp_path / "told"
    code = _TELLS.replace("PATH", repr(str(path)))
    fork = multiprocessing.get_context("forkserver").Process(target=exec, args=(code, {}))
    fork.start()
    fork.join()
    first, imported = path.read_text().splitlines()
    assert first.split() == ["True", "True", "torch"]
    assert all(find_spec(name) for name in PRELOADED)
    assert {*imported.split()} >= {*PRELOADED}


def test_processes_that_must_be_killed_at_the_end_are_not_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine too busy to close many in time: their nannies took them for lost.

    What is no process of the cluster goes on, though it was started after it.
    """

    def takes_long(cluster: LocalCluster, timeout: float | None = None) -> None:
        raise TimeoutError

    me = psutil.Process()
    before = {*me.children(recursive=True)}
    with monkeypatch.context() as patched:
        patched.setattr(LocalCluster, "close", takes_long)
        with local_cluster(2) as cluster:
            while len(cluster.workers) < 2:
                time.sleep(0.01)
            other = subprocess.Popen(["sleep", "60"])
            own = {*me.children(recursive=True)} - before
    assert other.poll() is None
    other.kill()
    other.wait()
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert {*me.children(recursive=True)} <= before | own
        time.sleep(0.02)
    assert not any(cluster.scheduler.workers)
    cluster.close()
