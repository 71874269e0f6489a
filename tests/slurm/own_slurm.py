"""Debian's SLURM on the loopback of this machine: munged, slurmctld and a slurmd with files of their own."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
#: CPUs that the node claims to have: more than one of a small machine
CPUS = 16
_CONFIGURATION = """
ClusterName=psbench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
SwitchType=switch/none
TaskPlugin=task/none
ProctrackType=proctrack/linuxproc
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=5,sched_interval=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ReturnToService=2
JobRequeue=1
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=64000
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


class Slurm:
    """A SLURM that is up.

    Parameters
    ----------
    environment : dict
        For programs that use it.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def call(self, *command: str, folder: Path | None = None) -> str:
        """Run a program of SLURM, and return its output."""
        done = subprocess.run(
            command, env=self.environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def submit(self, script: Path) -> str:
        """Submit a batch script from its folder, and return the number of the job."""
        return self.call("sbatch", "--parsable", script.name, folder=script.parent).strip()

    def state(self, job: str) -> str:
        """Return the state of a job: PENDING, RUNNING, COMPLETED, CANCELLED, TIMEOUT, ..."""
        return self._fact(job, "JobState")

    def restarts(self, job: str) -> int:
        """Return the number of times that a job was queued again."""
        return int(self._fact(job, "Restarts"))

    def set_limit(self, job: str, minutes: int) -> None:
        """Let a job reach its time limit so many minutes after its start."""
        self.call("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")

    def minutes(self, job: str) -> int:
        """Return the whole minutes for which a job has run since its start."""
        hours, minutes, _ = map(int, self._fact(job, "RunTime").split(":"))
        return 60 * hours + minutes

    def await_state(self, job: str, *states: str, within_s: float = 300.0) -> str:
        """Wait until a job is in one of some states, and return it."""
        until = time.monotonic() + within_s
        while (state := self.state(job)) not in states:
            assert time.monotonic() < until, f"job {job} is {state}, and not {states}, after {within_s} s"
            time.sleep(0.5)
        return state

    def _fact(self, job: str, name: str) -> str:
        found = re.search(rf"\b{name}=(\S+)", self.call("scontrol", "show", "job", job))
        assert found is not None
        return found[1]


def is_installed() -> bool:
    """Return whether a SLURM can be started here: its programs are there, and this is root."""
    return os.geteuid() == 0 and all(map(shutil.which, PROGRAMS))


@contextmanager
def own_slurm(folder: Path) -> Iterator[Slurm]:
    """Start a SLURM with all its files in a folder, and end it with all its jobs."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    (key := folder / "munge.key").write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(_CONFIGURATION.format(host=host, folder=folder, ports=_ports(2), cpus=CPUS))
    environment = os.environ | {"SLURM_CONF": str(configuration)}
    slurm = Slurm(environment)
    munge = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid"}
    munge |= {"log-file": "munge.log", "seed-file": "munge.seed"}
    with ExitStack() as stack:
        for program in (
            [
                "munged",
                "--foreground",
                "--force",
                *(f"--{name}={folder / file}" for name, file in munge.items()),
            ],
            ["slurmctld", "-D", "-i"],
            ["slurmd", "-D"],
        ):
            output = stack.enter_context((folder / f"{program[0]}.out").open("w"))
            # not of this terminal: at Ctrl-C the jobs are cancelled first
            process = subprocess.Popen(
                program, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            stack.callback(_end, process)
        _await_node(slurm, folder)
        stack.callback(_cancel_all, slurm)
        yield slurm


def _ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _await_node(slurm: Slurm, folder: Path) -> None:
    until = time.monotonic() + 60
    while True:
        found = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env=slurm.environment, capture_output=True, text=True, check=False
        )
        if found.stdout.strip() == "idle":
            return
        logs = {
            path.name: path.read_text()[-2000:] for path in (*folder.glob("*.log"), *folder.glob("*.out"))
        }
        assert time.monotonic() < until, f"{found.stdout}{found.stderr}{logs}"
        time.sleep(0.5)


def _cancel_all(slurm: Slurm) -> None:
    """Cancel all jobs, and wait until their processes have ended."""
    slurm.call("scancel", "--user", "root")
    until = time.monotonic() + 60
    while slurm.call("squeue", "-h").strip() and time.monotonic() < until:
        time.sleep(0.5)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
