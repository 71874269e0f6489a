"""The how-to about SLURM, on a SLURM of this test: jobs are cancelled, requeued, and reach time limits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

import psbench as ps
from psbench.core.log import EventLog, Kind

from .own_slurm import Slurm, is_installed, own_slurm

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.dask,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not is_installed(), reason="needs root, and the packages slurmctld, slurmd and munge"),
]

PAGE = (Path(__file__).parents[2] / "notebooks/site/howto/run_on_slurm.md").read_text()


def block(language: str, **changes: str) -> str:
    """Return the page's block in that language, with changes that a test needs."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    programs = str(Path(sys.executable).parent)
    with own_slurm(tmp_path_factory.mktemp("slurm")) as started:
        started.environment["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        started.environment |= {"DASK_JOBQUEUE__SLURM__INTERFACE": "lo"}
        yield started


def until(what: str, is_so: Callable[[], bool], within_s: float = 240.0) -> None:
    end = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end, f"not within {within_s} s: {what}"
        time.sleep(0.5)


def in_order(log: EventLog) -> bool:
    """Return whether each version is made once, after the one before."""
    made = log.of_kind(Kind.APPLY)["version"].tolist()
    return list(dict.fromkeys(made)) == list(range(1, made[-1] + 1)) and made == sorted(made)


def test_one_job_survives_requeues_its_time_limit_and_a_cancel(slurm: Slurm, tmp_path: Path) -> None:
    """On loopback, and with two processes that load torch rather than five."""
    script, spec = tmp_path / "job.sh", yaml.safe_load(block("yaml"))
    changes = {
        **{"--ntasks=5": "--ntasks=2", "--nthreads 1": "--nthreads 3"},
        **{"dask scheduler": "dask scheduler --interface lo", "dask worker": "dask worker --interface lo"},
    }
    script.write_text(block("shell", **changes))
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(spec | {"stop": {"epochs": 100_000}}))
    folder = tmp_path / "runs/ssp"

    def checkpoints() -> set[str]:
        return {path.name for path in (folder / "checkpoints").glob("*.npz")}

    def await_progress(starts: int) -> None:
        """Wait until the job has continued the run so often, and has written a checkpoint since."""
        said = "continuing the run in runs/ssp"
        until(f"the run is continued ({starts})", lambda: output.read_text().count(said) == starts)
        before = checkpoints()
        until("a checkpoint is written", lambda: bool(checkpoints() - before))

    job = slurm.submit(script)
    output = tmp_path / f"slurm-{job}.out"
    until("the first checkpoint is written", lambda: bool(checkpoints()))
    slurm.call("scontrol", "requeue", job)
    until("the job is requeued", lambda: slurm.restarts(job) == 1)
    await_progress(1)
    slurm.set_limit(job, slurm.minutes(job) + 3)
    until("the job is requeued before its time limit", lambda: slurm.restarts(job) == 2)
    slurm.set_limit(job, 60)
    await_progress(2)
    slurm.call("scancel", job)
    assert slurm.await_state(job, "CANCELLED") == "CANCELLED"
    until("the run is saved", lambda: not slurm.call("squeue", "-h").strip())
    stopped = ps.Run.load(folder)
    assert (slurm.restarts(job), stopped.meta["status"]) == (2, "stopped")

    epochs = int(stopped.summary()["epochs"]) + 2
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(spec | {"stop": {"epochs": epochs}}))
    job = slurm.submit(script)
    assert slurm.await_state(job, "COMPLETED", "FAILED", "TIMEOUT") == "COMPLETED", output.read_text()
    done = ps.Run.load(folder)
    assert done.meta["status"] == "finished"
    assert in_order(done.log)
    resumed = done.log.of_kind(Kind.RESUME)["version"].tolist()
    assert len(resumed) == 3
    assert resumed == sorted(resumed)
    assert ps.replay(done) == len(done.log)

    job = slurm.submit(script)  # once more: nothing is trained
    assert slurm.await_state(job, "COMPLETED", "FAILED", "TIMEOUT") == "COMPLETED"
    assert "the run in runs/ssp has ended" in (tmp_path / f"slurm-{job}.out").read_text()
    assert ps.Run.load(folder).log.digest() == done.log.digest()


def test_jobs_of_dask_jobqueue_end_by_lifetime_cancel_and_requeue(slurm: Slurm, tmp_path: Path) -> None:
    changes = {'"55m"': '"100s"', '"4m"': '"30s"', '{"epochs": 40}': '{"seconds": 120}'}
    (tmp_path / "script.py").write_text(block("py", **changes))
    folder, output = tmp_path / "runs/ssp", tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "script.py"], cwd=tmp_path, env=slurm.environment, stdout=file, stderr=file
        )
    try:
        until("a checkpoint is written", lambda: any((folder / "checkpoints").glob("*.npz")))
        first, second, *_ = slurm.call("squeue", "-h", "-t", "RUNNING", "-o", "%A").split()
        slurm.call("scancel", first)
        slurm.call("scontrol", "requeue", second)
        code = process.wait(600)
    finally:
        process.kill()
        process.wait()
    assert code == 0, output.read_text()
    done = ps.Run.load(folder)
    assert done.meta["status"] == "finished"
    assert in_order(done.log)
    assert len(done.log.of_kind(Kind.LEAVE)["row"]) + len(done.log.of_kind(Kind.RESUME)["row"]) >= 2
    assert ps.replay(done) == len(done.log)
