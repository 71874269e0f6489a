"""A live run whose whole job is told to end, as by SLURM or `timeout`: every process is sent SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from psbench import replay
from psbench.checkpoints.file import Checkpoint
from psbench.results.run import Run

pytestmark = [pytest.mark.dask, pytest.mark.timeout(600)]

SCRIPT = """
import json, os, signal, subprocess, sys, time
from contextlib import ExitStack
from pathlib import Path
from distributed import Client, LocalCluster
from psbench.experiment import Experiment
from psbench.runs.execution import run

folder, kind, strategy = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
sent = []

def observer(log):
    if len(log) > 50 and not sent:
        sent.extend((set(sys.modules), time.process_time()))
        os.killpg(0, signal.SIGTERM)

def given(options):
    "A scheduler and Dask workers of this job."
    file, dask = folder / "scheduler.json", [sys.executable, "-m", "distributed.cli.dask_"]
    page = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    file_of = ["--scheduler-file", str(file)]
    start = lambda name, *more: subprocess.Popen([*dask[:2], dask[2] + name, *file_of, *more])
    start("scheduler", "--host", "127.0.0.1", "--port", "0", *page)
    while not file.exists():
        time.sleep(0.05)
    for _ in range(4):
        start("worker", "--nthreads", "1", "--no-dashboard", *options)
    return json.loads(file.read_text())["address"]

def main():
    options = {"alone": ["--no-nanny"], "nanny": ["--nanny"]}
    scheduler = given(options[kind]) if kind in options else None
    with ExitStack() as stack:
        client = None
        if kind == "local":
            cluster = LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address="127.0.0.1:0")
            stack.enter_context(cluster)
            client = stack.enter_context(Client(cluster))
        try:
            run(
                Experiment(
                    strategy=strategy, cluster={"workers": 2}, data="digits", backend="dask",
                    scheduler=scheduler, stop={"updates": 10**9}, recovery={"wait_for_workers": 300},
                ),
                observer=observer,
                folder=folder / "run",
                client=client,
            )
        finally:
            (folder / "seconds").write_text(str(time.process_time() - sent[1]))
            (folder / "imported").write_text("\\n".join({*sys.modules} - sent[0]))

if __name__ == "__main__":  # as the LocalCluster imports this script
    main()
"""

#: what saving a run needs
HEAVY = {"pandas", "pyarrow"}
#: seconds that a job has left at most; of CPU, as others may use this machine
LEFT_S = 5.0
SLOW = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("own", "asp"),
        pytest.param("own", "map_reduce", marks=SLOW),
        pytest.param("own", "all_reduce", marks=SLOW),
        pytest.param("local", "asp", marks=SLOW),
        pytest.param("alone", "asp", marks=SLOW),
        pytest.param("nanny", "bsp", marks=SLOW),
    ],
)
def test_a_job_that_is_told_to_end_keeps_everything(kind: str, strategy: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path), kind, strategy]
    log = tmp_path / "stderr"
    with log.open("w") as stderr:
        job = subprocess.Popen(command, stdout=stderr, stderr=stderr, start_new_session=True)
        try:
            code = job.wait(500)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    assert code == 128 + signal.SIGTERM, log.read_text()
    late = {name.partition(".")[0] for name in (tmp_path / "imported").read_text().split()}
    assert late.isdisjoint(HEAVY)  # importing them takes seconds, of which the job has few
    assert float((tmp_path / "seconds").read_text()) < LEFT_S
    done = Run.load(tmp_path / "run")
    assert (done.meta["status"], len(done.log) > 50) == ("stopped", True)
    assert replay(done) == len(done.log)
    if strategy == "map_reduce":  # it goes on from no checkpoint
        assert done.parameters is not None
        return
    last = Checkpoint.load(Path(done.meta["checkpoints"][-1]))
    assert torch.equal(done.parameters, last.tensors["parameters"])
