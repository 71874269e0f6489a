"""Freed memory is kept for the next step, and given back when a run is over."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from psbench.system.allocator import give_back_freed_memory, keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(1 << 20)  # 8 MiB: 2,048 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

plain = faults()
assert keep_freed_memory()
np.ones(1 << 20)
kept, held = faults(), resident()
give_back_freed_memory()
print(plain, kept, held - resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_freed_memory_is_used_again_and_given_back_at_last() -> None:
    """In a process of its own, as it is the process's C library that is told."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    plain, kept, given_back = map(int, done.stdout.split())
    assert plain > 10 * max(kept, 1)
    assert given_back > 4 << 20
