"""From `ps.run` to the first step of a live run on a cluster of our own, and the memory of its processes.

Counted is the CPU of this program and all its processes, in imports of torch, each in a program of its own;
the program's own import of torch is part of its first run's start.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import psutil

import psbench as ps
from psbench.core.log import Kind
from tests.benchmarks.live import ROOT, cpu_s, processes
from tests.benchmarks.measure import Row, Rows

WORKERS, REPEATS = 4, 3


def _program() -> None:
    """Run twice, and print what each start took and what its processes hold."""
    if "torch" in sys.modules:
        raise RuntimeError("torch is here already: importing it is part of the first run's start")
    found: list[dict[str, float]] = []
    for _ in range(2):
        spent_s, clock_s, start = cpu_s(), time.perf_counter(), dict[str, float]()

        def observe(log: Any, spent_s: float = spent_s, clock_s: float = clock_s, start: Any = start) -> None:
            if not start and len(log.of_kind(Kind.PUSH)["time_s"]):
                start |= {"cpu_s": cpu_s() - spent_s, "clock_s": time.perf_counter() - clock_s} | _memory()

        ps.run(
            ps.Experiment(strategy="asp", backend="dask", cluster={"workers": WORKERS}, stop={"epochs": 20}),
            observer=observe,
        )
        found.append(start)
    print(json.dumps(found))


def _memory() -> dict[str, float]:
    """Return the memory of a run's processes, shared pages divided among those who share them, and of one."""
    roles = [each for each in processes() if "psbench" in _title(each) and each.pid != psutil.Process().pid]
    full = [each.memory_full_info() for each in roles]
    return {"roles": len(full), "pss": sum(each.pss for each in full), "rss": max(each.rss for each in full)}


def _title(process: psutil.Process) -> str:
    # those that a cluster has: forks of the fork server, which is our child and is none itself
    return "psbench" if process.ppid() != psutil.Process().pid else ""


def _import_of_torch() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run() -> Rows:
    """Measure in turns."""
    imports, starts = [], []
    for _ in range(REPEATS):
        imports.append(_import_of_torch())
        code = "from tests.benchmarks.live_start import _program\nif __name__ == '__main__': _program()"
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
        )
        starts.append(json.loads(done.stdout.splitlines()[-1]))
    torch_s, rows = statistics.median(imports), list[Any]()
    for place, (which, least, towards) in enumerate((("first", 3.0, 1.0), ("next", 0.5, 0.2))):
        spent_s, clock_s = (statistics.median(s[place][k] for s in starts) for k in ("cpu_s", "clock_s"))
        rows.append(
            Row(
                f"live run of {WORKERS} workers until its first step, {which} run of a program, CPU",
                f"{spent_s:.2f} s ({clock_s:.2f} s by the clock)",
                f"import torch: {torch_s:.2f} s",
                *(spent_s / torch_s, least, towards),
                lower_is_better=True,
            )
        )
    memory = [statistics.median(s[0][k] for s in starts) for k in ("roles", "pss", "rss")]
    return [
        *rows,
        Row(
            f"memory of its {memory[0]:.0f} processes / of one",
            f"{memory[1] / 2**20:,.0f} MiB, shared pages counted once",
            f"{memory[2] / 2**20:,.0f} MiB",
            *(memory[1] / memory[2], 2.5, 2.0),
            lower_is_better=True,
        ),
    ]
