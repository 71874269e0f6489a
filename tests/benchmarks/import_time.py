"""Seconds until a command answers: `import psbench`, and `psbench run` in a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tests.benchmarks.measure import Row, Rows, in_turns

#: a run that is under way for longer than it takes to see that it is
RUN = ("-m", "psbench", "run", "--set", "strategy=asp", "--set", "stop.epochs=2000")
#: what a terminal shows of a run that makes progress: its share
PROGRESS = b"%"


def _seconds(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def _until_shown(what: bytes) -> float:
    """Return the seconds until `psbench run` shows something in a terminal; anything if that is empty."""
    ours, terminal = os.openpty()
    began = time.perf_counter()
    program = subprocess.Popen([sys.executable, *RUN], stderr=terminal, stdout=subprocess.DEVNULL)
    os.close(terminal)
    shown = b""
    while not shown or what not in shown:
        shown += os.read(ours, 1 << 16)
    seconds = time.perf_counter() - began
    program.kill()
    program.wait()
    os.close(ours)
    return seconds


def run() -> Rows:
    """Measure fresh interpreters in turns; see that the import does not load torch."""
    loads = subprocess.run([sys.executable, "-c", "import psbench, sys; sys.exit('torch' in sys.modules)"])
    ours, bare = in_turns([lambda: _seconds("import psbench"), lambda: _seconds("")], 11)
    note = "loads torch" if loads.returncode else "without torch"
    rows: Rows = [
        Row(
            f"import psbench ({note})",
            f"{ours:.3f} s",
            f"python alone: {bare:.3f} s",
            *(ours - bare, 0.3, 0.15),
            unit="s",
            lower_is_better=True,
        )
    ]
    sides = [lambda: _until_shown(b""), lambda: _until_shown(PROGRESS), lambda: _seconds("import torch")]
    line, progress, torch = in_turns(sides, 5)
    return [
        *rows,
        Row(
            "psbench run in a terminal until it says what it does / python alone",
            f"{line:.3f} s",
            f"python alone: {bare:.3f} s",
            *(line - bare, 0.3),
            unit="s",
            lower_is_better=True,
        ),
        Row(
            "psbench run in a terminal until its progress is shown / import torch",
            f"{progress:.2f} s",
            f"import torch: {torch:.2f} s",
            *(progress - torch, 0.3),
            unit="s",
            lower_is_better=True,
        ),
    ]
