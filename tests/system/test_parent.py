"""Processes of a pool end when their parent is killed, whatever they are at."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

FUZZ = """
if __name__ == "__main__":
    from psbench_fuzz import run_campaign

    run_campaign(10**9, 0, 80, processes=2)
"""
#: processes of a sweep and of a run, all of them at a step that never ends
STEPS = """
import multiprocessing
import threading

import psbench as ps
from psbench.testing import toy_experiment


def loss(outputs, targets):
    while multiprocessing.parent_process() is not None:
        pass
    return outputs.square().mean()


if __name__ == "__main__":
    toy = toy_experiment(loss=loss, stop={"updates": 10**8})
    grid = {"strategy": ["bsp", "asp"]}
    threading.Thread(target=ps.sweep, args=(toy, grid), kwargs={"processes": 2}).start()
    ps.run(toy.but(processes=3))
"""
#: seconds in which a process that waits for its parent's end has ended on any machine
LONG_S = 120.0


@pytest.mark.nightly  # pools that import torch, and compute until they are found
@pytest.mark.parametrize(
    ("program", "number"), [pytest.param(FUZZ, 2, id="fuzz"), pytest.param(STEPS, 4, id="steps")]
)
def test_processes_end_with_a_parent_that_is_killed(program, number, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(program)
    parent = psutil.Popen([sys.executable, script], stderr=subprocess.DEVNULL)
    others: list[psutil.Process] = []
    try:
        while sum(map(computes, others)) < number:
            assert parent.poll() is None
            time.sleep(0.05)
            others = parent.children(recursive=True)
        parent.kill()
        parent.wait()
        _, alive = psutil.wait_procs(others, timeout=LONG_S)
        assert alive == []
    finally:
        for each in [parent, *others]:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def computes(process: psutil.Process) -> bool:
    """Whether it has computed for half a second, and is no server of other processes."""
    try:
        return process.cpu_times().user > 0.5 and not process.children()
    except psutil.NoSuchProcess:
        return False
