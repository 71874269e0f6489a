"""A recorded run opens where there is no torch: its log, metrics, charts, comparison and replay."""

from __future__ import annotations

import subprocess
import sys

import psbench as ps
from psbench.testing import toy_experiment

SCRIPT = """
import sys
sys.modules["torch"] = sys.modules["torchvision"] = None  # what `import torch` then finds is no module
import psbench as ps

run = ps.Run.load(sys.argv[1])
print(run.summary()["status"], len(run.metrics), ps.replay(run) == len(run.log), run.parameters)
run.chart().to_dict()
comparison = ps.compare([run])
comparison.report(sys.argv[1] + "/compare.html")
print(ps.strategies.ssp(staleness_bound=3).name, ps.Experiment(strategy="asp").num_workers)
"""


def test_a_recorded_run_opens_without_torch(tmp_path):
    run = ps.run(toy_experiment("ssp"), folder=tmp_path / "run")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"finished {len(run.metrics)} True None", "ssp 9"]
    assert "<html" in (tmp_path / "run" / "compare.html").read_text()[:500].lower()
