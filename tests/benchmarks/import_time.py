"""Seconds of `import psbench`, beside an interpreter that imports nothing."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.benchmarks.measure import Row, Rows, in_turns


def _seconds(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def run() -> Rows:
    """Measure the import in fresh interpreters and see that it does not load torch."""
    loads = subprocess.run([sys.executable, "-c", "import psbench, sys; sys.exit('torch' in sys.modules)"])
    ours, bare = in_turns([lambda: _seconds("import psbench"), lambda: _seconds("")], 11)
    note = "loads torch" if loads.returncode else "without torch"
    return [
        Row(
            f"import psbench ({note})",
            f"{ours:.3f} s",
            f"python alone: {bare:.3f} s",
            ours - bare,
            0.3,
            0.15,
            unit="s",
            lower_is_better=True,
        )
    ]
