"""Runs on real Dask workers: parameters, deaths of processes, requests from outside, nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from distributed import Client
from toybox import at_night

import psbench as ps
from psbench import replay
from psbench.backends.control import Control, Observer
from psbench.backends.dask.placement import place
from psbench.backends.dask.protocol.roles import roles_of
from psbench.core.log import EventLog, Kind
from psbench.errors import BackendError, Cancelled, ParameterError, ServerLost
from psbench.experiment import Experiment
from psbench.metrics import timeline, trained_groups
from psbench.results.run import Run
from psbench.runs.execution import run
from psbench.system.start_progress import StartProgress, watching_start

pytestmark = pytest.mark.dask

FOREVER = {"updates": 10**9}


@pytest.fixture
def client(scheduler: str) -> Iterator[Client]:
    with Client(scheduler, set_as_default=False) as client:
        yield client
        # whom a test killed, its nanny has started again
        client.wait_for_workers(6, timeout=60)


def experiment(strategy: Any, scheduler: str | None, workers: int = 3, **changes: Any) -> Experiment:
    settings: dict[str, Any] = {
        "strategy": strategy,
        "cluster": {"workers": workers, "step_time": "constant"},
        "batch_size": 24,
        "stop": {"updates": 20},
        "backend": "dask",
        "scheduler": scheduler,
    }
    return Experiment(**settings | changes)


def simulated(spec: Experiment) -> Run:
    return run(spec.but(backend="simulated", scheduler=None))


def run_detached(
    spec: Experiment,
    *,
    observer: Observer | None = None,
    control: Control | None = None,
    folder: Path | None = None,
) -> Run:
    """Submit a run, and follow and control it from here as an attached one."""
    control = control or Control()
    with Client(spec.scheduler, set_as_default=False) as client:
        submitted = ps.submit(spec, client=client, folder=folder)

        def seen(log: EventLog) -> None:
            if observer is not None:
                observer(log)
            for press in control.take_presses():
                submitted.press(press.worker, press.what, press.factor)
            for request in control.take():
                submitted.switch(request.to)
            if control.stopping and submitted.listed.state == "running":
                with suppress(BackendError):  # it has ended meanwhile
                    submitted.stop()

        try:
            return submitted.wait(seen)
        finally:
            submitted.forget()


#: how a live run is started: it has the same properties however that is
STARTED = pytest.mark.parametrize("start", [run, *at_night(run_detached)])


@STARTED
def test_one_worker_gives_the_simulated_parameters_bit_for_bit(start: Any, scheduler: str) -> None:
    spec = experiment("asp", scheduler, workers=1)
    assert start(spec).meta["params_digest"] == simulated(spec).meta["params_digest"]


@STARTED
def test_bsp_equals_the_simulated_run(start: Any, scheduler: str) -> None:
    """Watts and prices change nothing of it: energy is that of its seconds, by hand."""
    costs = {"idle_watts": 50, "busy_watts": 150, "server_idle_watts": 20, "server_busy_watts": 80}
    cluster = {"workers": 3, "step_time": "constant", "costs": costs}
    placement = {"name": "parameter_server", "servers": 2}
    spec = experiment({"name": "bsp", "placement": placement}, scheduler, cluster=cluster)
    live = start(spec)
    assert live.meta["params_digest"] == simulated(spec).meta["params_digest"]
    table = live.frame("energy").set_index("machine")
    assert [*table.index] == [*(f"worker {worker}" for worker in range(3)), "server 0", "server 1"]
    used = timeline(live.log).assign(s=lambda spans: spans["end_s"] - spans["start_s"])
    for worker, own in used.groupby("worker"):
        busy = own.loc[own["phase"] == "compute", "s"].sum()
        assert table["joules"][f"worker {worker}"] == pytest.approx(150 * busy + 50 * (own["s"].sum() - busy))
    whole, cpu_s = live.summary()["time_s"], live.meta["server_usage"][0]["cpu_s"]
    assert table["joules"]["server 0"] == pytest.approx(20 * whole + 60 * min(cpu_s, whole))
    said = "; ".join(live.summary()["warnings"])
    assert "measured_joules" in live.meta or "energy was not measured on" in said


@STARTED
def test_a_selection_by_neighbourhood_equals_the_simulated_run(start: Any, scheduler: str) -> None:
    """Workers get the neighbourhoods of a user's frame with their shards, and report what they drew."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 4)), columns=list("wxyz"))
    frame = frame.assign(kind=rng.integers(0, 3, 120), site=np.arange(120) % 4)
    spec = experiment(
        {
            "name": "bsp",
            "selection": {"name": "data_aware", "neighbourhoods": {"name": "column", "column": "site"}},
        },
        scheduler,
        data=ps.data(frame, target="kind", keep=["site"]),
        model="logistic",
        evaluate_every=1000,  # shares change with evaluations, whose moments depend on the machine
    )
    live, virtual = start(spec), simulated(spec)
    assert live.meta["params_digest"] == virtual.meta["params_digest"]
    tables = [trained_groups(each.log, each.meta, by="neighbourhood").to_dict() for each in (live, virtual)]
    assert tables[0] == tables[1]


@STARTED
def test_all_reduce_equals_bsp_to_rounding(start: Any, scheduler: str) -> None:
    live, server = start(experiment("all_reduce", scheduler)), simulated(experiment("bsp", scheduler))
    torch.testing.assert_close(live.parameters, server.parameters, rtol=1e-5, atol=1e-6)
    assert live.meta["status"] == "finished"
    assert live.log.evaluations()[0]["epoch"] == 0
    rows = live.log.rows()
    rings = [n for n, text in enumerate(live.log.texts) if "collective_s" in text]
    ends = rows[(rows["kind"] == Kind.PUSH) & np.isin(rows["text"], rings)]
    made = rows[rows["kind"] == Kind.APPLY]
    assert len(ends) == 20  # the last push of each version arrives when its ring is over
    assert np.unique(made["time_s"]).tolist() == ends["time_s"].tolist()
    assert live.meta["time_s"] >= ends["time_s"][-1]
    assert replay(live) == len(live.log)


def process_of(client: Client, role: str) -> int:
    """Return the process that the task of a role runs in."""
    for address, keys in client.processing().items():
        if any(str(key).endswith(role.replace(" ", "-")) for key in keys):
            return int(client.run(os.getpid, workers=[address])[address])
    raise AssertionError(f"no task of {role} is running")


class Killer:
    """An observer that kills a role's process during training, and stops when the others have gone on."""

    def __init__(self, client: Client, role: str, control: Control | None = None) -> None:
        self.client, self.role, self.control = client, role, control
        self.killed = False

    def __call__(self, log: EventLog) -> None:
        kinds = log.rows()["kind"].tolist()
        if not self.killed and kinds.count(Kind.PUSH) > 20:
            os.kill(process_of(self.client, self.role), signal.SIGKILL)
            self.killed = True
        gone = kinds.index(Kind.LEAVE) if Kind.LEAVE in kinds else len(kinds)
        if self.control and kinds[gone:].count(Kind.APPLY) > 20:
            self.control.stop()


@pytest.mark.parametrize(
    ("strategy", "start"),
    [("bsp", run), *at_night(("asp", run), ("all_reduce", run), ("bsp", run_detached))],
)
def test_the_others_go_on_when_a_worker_is_killed(
    strategy: str, start: Any, scheduler: str, client: Client
) -> None:
    control = Control()
    killer = Killer(client, "worker 1", control)
    done = start(experiment(strategy, scheduler, stop=FOREVER), observer=killer, control=control)
    assert done.meta["status"] == "stopped"
    assert done.meta["lost_workers"] == [1]
    assert torch.isfinite(done.parameters).all()


TWO_SERVERS = {"name": "asp", "placement": {"name": "parameter_server", "servers": 2}}


@pytest.mark.parametrize(
    ("role", "start"),
    [("coordinator", run), *at_night(("server 1", run), ("server 1", run_detached))],
)
def test_a_killed_server_ends_the_run_and_names_the_checkpoint(
    role: str, start: Any, scheduler: str, client: Client, tmp_path: Path
) -> None:
    spec = experiment(
        TWO_SERVERS, scheduler, 2, stop=FOREVER, checkpoint_every=0.05, recovery={"max_restarts": 0}
    )
    with pytest.raises(ServerLost, match=r"server.* is gone.*the last checkpoint is .*\.npz") as lost:
        start(spec, observer=Killer(client, role), folder=tmp_path)
    assert Path(str(lost.value).split("checkpoint is ")[1]).is_file()


def test_a_worker_that_raises_shows_its_own_traceback(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(
        experiment: Experiment, sent: None, largest: int, topic: str, worker: int, servers: Any
    ) -> None:
        from psbench.backends.dask.keys import take_key
        from psbench.backends.dask.protocol.transport import ClientSocket
        from psbench.backends.dask.tasks import _report

        with ClientSocket(servers[0], take_key(), "worker 0") as client:
            _report(client, lambda: {}["a bug of worker 0"])

    monkeypatch.setattr("psbench.backends.dask.tasks.train", broken)
    with pytest.raises(BackendError, match=r"(?s)worker 0 failed.*Traceback.*a bug of worker 0"):
        run(experiment("asp", scheduler, 1))


def test_stop_and_switch_by_hand(scheduler: str) -> None:
    control = Control()
    pair = {"name": "strategy_switch", "first": "all_reduce", "second": "asp", "rule": "manual"}
    threads: list[str] = []

    def observer(log: EventLog) -> None:
        threads.append(threading.current_thread().name)
        kinds = log.rows()["kind"].tolist()
        if Kind.SWITCH_REQUESTED not in kinds and len(threads) == 2:
            control.switch()
        if Kind.HANDOVER in kinds and kinds[kinds.index(Kind.HANDOVER) :].count(Kind.APPLY) > 10:
            control.stop()

    log = EventLog()
    done = run(experiment(pair, scheduler, stop=FOREVER), observer=observer, control=control, log=log)
    assert done.log is log
    assert done.meta["status"] == "stopped"
    assert set(threads) == {threading.current_thread().name}
    assert log.rows()["kind"].tolist().count(Kind.HANDOVER) == 1


def test_an_error_of_the_observer_ends_the_run(scheduler: str, client: Client) -> None:
    def observer(log: EventLog) -> None:
        raise LookupError("the chart is gone")

    with pytest.raises(LookupError, match="the chart is gone"):
        run(experiment("asp", scheduler, 2, stop=FOREVER), observer=observer)
    assert not any(client.processing().values())


def test_nothing_of_a_run_stays_on_the_cluster(scheduler: str, client: Client) -> None:
    before = client.run(open_sockets)
    run(experiment("all_reduce", scheduler, 2))
    assert not any(client.processing().values())
    assert not client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
    after = client.run(open_sockets)
    assert all(after[address] <= count for address, count in before.items())


def open_sockets() -> int:
    """Return how many ports and names this process listens on."""
    connections = psutil.Process().net_connections
    named = sum(c.laddr.startswith("@psbench") for c in connections("unix"))
    return named + sum(c.status == psutil.CONN_LISTEN for c in connections("tcp"))


def test_an_own_cluster_is_gone_afterwards_and_listens_on_loopback() -> None:
    me = psutil.Process()
    spawned = dask.config.get("distributed.nanny.pre-spawn-environ")
    environment, children = {n: os.environ.get(n) for n in spawned}, set(me.children(recursive=True))
    hosts: set[str] = set()
    start = StartProgress()

    def observer(log: EventLog) -> None:
        for process in [me, *me.children(recursive=True)]:
            connections = process.net_connections("inet")
            hosts.update(c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN)

    with watching_start(start):
        done = run(experiment("asp", None, 1), observer=observer)
    assert done.meta["status"] == "finished"
    stages = dict(start.rows())
    assert list(stages) == ["coordinator", "worker 0", "evaluator"]
    for times in stages.values():  # each stage was told, in its order
        assert times == sorted(times)
        assert 0 < times[0] < times[-1]
    assert hosts == {"127.0.0.1"}
    left = [child for child in me.children(recursive=True) if child not in children]
    assert all(child.ppid() == me.pid and is_pythons_own(child) for child in left)
    assert {name: os.environ.get(name) for name in spawned} == environment


def test_a_stop_while_our_own_cluster_starts_leaves_no_process() -> None:
    me, control = psutil.Process(), Control()
    children = set(me.children(recursive=True))
    with watching_start(StartProgress(changed=control.stop)), pytest.raises(Cancelled, match="before"):
        run(experiment("asp", None, 1), control=control)
    left = [child for child in me.children(recursive=True) if child not in children]
    assert all(child.ppid() == me.pid and is_pythons_own(child) for child in left)


def is_pythons_own(process: psutil.Process) -> bool:
    """Whether it starts processes or tidies up after them; such a one ends with its parent."""
    return any(name in " ".join(process.cmdline()) for name in ("forkserver", "resource_tracker"))


@pytest.mark.timeout(600)
def test_ctrl_c_in_a_terminal_keeps_what_was_computed(tmp_path: Path) -> None:
    """Of a script whose start is not guarded, as one writes it first."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        # a shell's background jobs, perhaps this test among them, ignore it
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sent = []\n"
        "from psbench.experiment import Experiment\n"
        "from psbench.errors import Interrupted\n"
        "from psbench.runs.execution import run\n"
        "def observer(log):\n"
        "    if len(log) > 50 and not sent:\n"
        "        sent.append(os.killpg(0, signal.SIGINT))\n"
        "endless = Experiment(strategy='asp', cluster={'workers': 1}, backend='dask',"
        " stop={'updates': 10**9})\n"
        "try:\n"
        "    runs = [run(endless, observer=observer) for _ in range(2)]\n"
        "except Interrupted as stopped:\n"
        "    done = stopped.run\n"
        "print(done.meta['status'], len(done.log) > 50, os.getpid())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=500, start_new_session=True
    )
    *outcome, session = done.stdout.split()
    assert outcome == ["stopped", "True"], done.stderr
    # the fork server ends when the script has, and then takes leave of torch
    until = time.monotonic() + 120
    while left := [process for process in psutil.process_iter() if runs_in_session(process, int(session))]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def runs_in_session(process: psutil.Process, session: int) -> bool:
    """Whether a process was started by the leader of a session, and has not ended by now."""
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_a_process_that_is_lost_is_a_fork_again(scheduler: str, client: Client) -> None:
    """A new interpreter would import torch again, which takes seconds, and run the user's script."""
    address, process = sorted(client.run(os.getpid).items())[0]
    os.kill(process, signal.SIGKILL)
    while address in client.scheduler_info(n_workers=-1)["workers"]:
        time.sleep(0.01)
    client.wait_for_workers(6, timeout=60)
    parents = client.run(os.getppid)
    assert address not in parents
    assert len(set(parents.values())) == 1


def test_a_scheduler_that_does_not_answer() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ParameterError, match="no Dask scheduler answers at"):
            run(experiment("asp", address, 1))


def test_too_few_dask_workers_are_named(scheduler: str) -> None:
    with pytest.raises(BackendError, match="has 6 workers with 6 threads, and the run needs 10"):
        run(experiment("asp", scheduler, 8, recovery={"wait_for_workers": 0}))


def test_roles_and_their_places() -> None:
    roles = roles_of(experiment("bsp", None, 2))
    assert roles == ["coordinator", "worker 0", "worker 1", "evaluator"]
    assert place(roles, {"a": 1, "b": 1, "c": 1, "d": 1}) == dict(zip(roles, "abcd", strict=True))
    shared = place(roles, {"big": 3, "small": 1})
    assert shared == {"coordinator": "small", "worker 0": "big", "worker 1": "big", "evaluator": "big"}
    assert "evaluator" not in place(roles, {"a": 3})
