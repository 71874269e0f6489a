"""What the live rows share: a run on Dask, and a peer as a process, each giving its steps a second."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

import psbench as ps
from psbench.backends.control import Observer
from psbench.core.log import Kind
from psbench.experiment import Experiment

PEERS = Path(__file__).parent / "peers"
ROOT = Path(__file__).parents[2]
#: the first part of a run does not count: processes warm up
WARM_UP = 0.2


def processes() -> Iterator[psutil.Process]:
    """Yield this process and all that descend from it."""
    me = psutil.Process()
    yield me
    yield from me.children(recursive=True)


def cpu_s() -> float:
    """Return the CPU seconds of this program and all its processes, those that have ended included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for process in processes():
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    own = psutil.Process().cpu_times()  # whose children are in `ended`
    return total - own.children_user - own.children_system


def steps_a_second(experiment: Experiment, kind: Kind, observer: Observer | None = None) -> float:
    """Run on a local Dask cluster and return how many rows of a kind were logged a second."""
    times = ps.run(experiment, observer=observer).log.of_kind(kind)["time_s"]
    first = int(len(times) * WARM_UP)
    return (len(times) - 1 - first) / (times[-1] - times[first])


def peer_python() -> str:
    """Return the Python that has the peers; this one unless another was named."""
    return os.environ.get("PSBENCH_PEER_PYTHON", sys.executable)


def has(python: str, module: str) -> bool:
    """Whether a module can be found by that Python."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def peer(python: str, program: str, arguments: Sequence[int]) -> float:
    """Run a peer's program and return what it prints last: its steps a second."""
    quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    words = [python, str(PEERS / program), *map(str, arguments)]
    done = subprocess.run(words, env={**os.environ, **quiet}, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(f"{program} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])
