"""Runs on Dask whose processes are lost and replaced, or for which there is no room yet."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import Client
from test_dask_runs import FOREVER, client, experiment, process_of, simulated

from psbench import replay
from psbench.backends.control import Control
from psbench.backends.dask.attempt import Attempt
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.messages import StoreCheckpoint
from psbench.backends.dask.protocol.transport import ClientSocket
from psbench.backends.dask.record import Record
from psbench.checkpoints.file import Checkpoint
from psbench.core.log import EventLog, Kind
from psbench.errors import BackendError, ServerLost
from psbench.results.run import Run
from psbench.runs.execution import run

pytestmark = pytest.mark.dask
__all__ = ["client"]

TWO_SERVERS = {"name": "asp", "placement": {"name": "parameter_server", "servers": 2}}


class Killer:
    """An observer that kills a role's process after so many pushes, and stops the run when that is over."""

    def __init__(self, client: Client, role: str, after: int = 100, over: Any = None) -> None:
        self.client, self.role, self.after, self.over = client, role, after, over
        self.control, self.killed = Control(), False

    def __call__(self, log: EventLog) -> None:
        if not self.killed and len(log.of_kind(Kind.PUSH)["row"]) > self.after:
            os.kill(process_of(self.client, self.role), signal.SIGKILL)
            self.killed = True
        if self.over is not None and self.over(log):
            self.control.stop()


def test_a_server_that_is_lost_before_anything_was_done_is_started_again(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[Attempt] = []

    def start(attempt: Attempt) -> None:
        starts.append(attempt)
        if len(starts) == 1:
            raise ServerLost("server 1 is gone: its process was killed before it could listen")
        begin(attempt)

    begin = Attempt.start
    monkeypatch.setattr(Attempt, "start", start)
    spec = experiment("asp", scheduler, 1)
    assert run(spec).meta["params_digest"] == simulated(spec).meta["params_digest"]
    assert len(starts) == 2


def test_who_stops_a_run_that_has_yet_to_go_on_keeps_what_it_had(
    scheduler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    attempts: list[Attempt] = []
    begin, read, control = Attempt.start, Attempt._read, Control()

    def start(attempt: Attempt) -> None:
        attempts.append(attempt)
        if len(attempts) == 2:
            control.stop()
            control.check()
        begin(attempt)

    def lose(attempt: Attempt, message: Message, coordinator: ClientSocket) -> None:
        read(attempt, message, coordinator)
        if isinstance(message, StoreCheckpoint):
            raise ServerLost("server 1 is gone")

    monkeypatch.setattr(Attempt, "start", start)
    monkeypatch.setattr(Attempt, "_read", lose)
    spec = experiment("asp", scheduler, 1, checkpoint_every=0.5, stop=FOREVER)
    done = run(spec, control=control, folder=tmp_path)
    checkpoint = Checkpoint.load(Path(done.meta["checkpoints"][-1]))
    assert (done.meta["status"], len(attempts)) == ("stopped", 2)
    assert done.meta["reason"].startswith("stopped by hand before it resumed from checkpoint")
    assert torch.equal(done.parameters, checkpoint.tensors["parameters"])
    assert done.log.of_kind(Kind.APPLY)["version"][-1] == checkpoint.state["engine"]["view"]["version"]
    assert replay(done) == len(done.log)


def test_what_was_done_is_not_begun_again_without_a_checkpoint() -> None:
    log = EventLog()
    record = Record(experiment("asp", None, 1), log, None, None, None)
    assert record.can_go_back
    log.add(Kind.HOLD, 0.5, text="barrier")
    assert record.go_back() == "nothing had been computed"
    assert (len(log), log.texts) == (0, ("",))
    log.add(Kind.APPLY, 0.5, version=1)
    assert not record.can_go_back


def test_a_dask_worker_that_is_frozen_is_named(scheduler: str, client: Client) -> None:
    processes = client.run(os.getpid)
    frozen = sorted(processes)[0]
    os.kill(processes[frozen], signal.SIGSTOP)
    try:
        with pytest.raises(BackendError, match=rf"no answer within 1 s from .*{frozen}.*frozen"):
            run(experiment("asp", scheduler, 4, connection={"answer_within_s": 1.0}))  # on all Dask workers
    finally:
        os.kill(processes[frozen], signal.SIGCONT)


@pytest.mark.parametrize("role", ["coordinator", "server 1"])
def test_a_run_that_loses_a_server_goes_on_from_its_last_checkpoint(
    role: str, scheduler: str, client: Client, tmp_path: Path
) -> None:
    def has_gone_on(log: EventLog) -> bool:
        resumed = log.of_kind(Kind.RESUME)["row"]
        return bool(len(resumed)) and int((log.of_kind(Kind.APPLY)["row"] > resumed[-1]).sum()) > 100

    spec = experiment(TWO_SERVERS, scheduler, 2, stop=FOREVER, checkpoint_every=0.2)
    killer = Killer(client, role, after=200, over=has_gone_on)
    done = run(spec, observer=killer, control=killer.control, folder=tmp_path)
    assert done.meta["status"] == "stopped"
    (incident,) = done.meta["incidents"]
    name = "parameter server 0" if role == "coordinator" else role
    assert re.match(rf"{name} is gone.*(no update|updates and .* s) since checkpoint .* lost", incident)
    assert incident in done.summary()["warnings"]
    made = done.log.of_kind(Kind.APPLY)["version"].tolist()
    assert made == list(range(1, len(made) + 1))  # no version is missing, and none is there twice
    replay(Run.load(tmp_path))


class Comeback(Killer):
    """An observer that stops the run when it has gone on with another process in the killed one's role."""

    address, back = "", 0

    def __call__(self, log: EventLog) -> None:
        pushes = len(log.of_kind(Kind.PUSH)["row"])
        if not self.killed and pushes > self.after:
            (self.address,) = self.places()
            os.kill(process_of(self.client, self.role), signal.SIGKILL)
            self.killed = True
        elif self.killed and not self.back and self.places() - {self.address}:
            self.back = pushes
        elif self.back and pushes > self.back + 100:
            self.control.stop()

    def places(self) -> set[str]:
        """Return the Dask workers with that role."""
        ending = self.role.replace(" ", "-")
        tasks = self.client.processing().items()
        return {address for address, keys in tasks if any(str(key).endswith(ending) for key in keys)}


@pytest.mark.parametrize(
    ("strategy", "role"),
    [
        (TWO_SERVERS, "server 1"),
        ("bsp", "coordinator"),
        pytest.param("all_reduce", "coordinator", marks=pytest.mark.nightly),
        pytest.param(TWO_SERVERS, "coordinator", marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_with_a_replica_no_update_is_lost_with_a_server(
    strategy: Any, role: str, scheduler: str, client: Client
) -> None:
    spec = experiment(strategy, scheduler, 2, stop=FOREVER, recovery={"replicas": 1})
    killer = Comeback(client, role, after=200)
    done = run(spec, observer=killer, control=killer.control)
    assert done.meta["status"] == "stopped"
    (incident,) = done.meta["incidents"]
    assert re.search(r"is gone.*; no update since the replica's last state is lost", incident)
    made = list(dict.fromkeys(done.log.of_kind(Kind.APPLY)["version"].tolist()))
    assert made == list(range(1, len(made) + 1))  # no version is missing
    assert len(done.log.of_kind(Kind.PUSH)["id"]) == len({*done.log.of_kind(Kind.PUSH)["id"].tolist()})
    if strategy != TWO_SERVERS:
        whole = simulated(spec.but(stop={"updates": len(made)}, recovery={}))
        assert done.meta["params_digest"] == whole.meta["params_digest"]
    replay(done)


def test_a_killed_evaluator_is_replaced_and_no_evaluation_is_missing(scheduler: str, client: Client) -> None:
    spec = experiment("asp", scheduler, 2, stop={"updates": 800}, evaluate_every=0.5)
    done = run(spec, observer=Killer(client, "evaluator"))
    assert done.meta["status"] == "finished"
    assert [text.split(" at ")[0] for text in done.meta["incidents"]] == [
        "evaluator was lost",
        "evaluator has joined on another Dask worker",
    ]
    versions = done.log.of_kind(Kind.EVALUATED)["version"].tolist()
    assert len(versions) == len({*versions})  # none was taken twice
    due = 1 + int(done.summary()["epochs"] / 0.5 + 1e-9)  # the start, and each half of an epoch
    assert len(versions) in (due, due + 1)  # and the end


def has_pushed_again(log: EventLog, worker: int) -> bool:
    """Whether a worker has left, joined and pushed since then."""
    rows = log.rows()
    kinds = [int(kind) for kind in rows["kind"][rows["worker"] == worker]]
    return Kind.LEAVE in kinds and kinds[kinds.index(Kind.LEAVE) :].count(Kind.PUSH) >= 5


@pytest.mark.parametrize(
    "strategy",
    [
        TWO_SERVERS,
        "all_reduce",
        "d_psgd",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("bsp", "selsync", "ad_psgd", "sgp")),
    ],
    ids=str,
)
def test_a_free_dask_worker_takes_the_place_of_a_worker_that_is_killed(
    strategy: Any, scheduler: str, client: Client
) -> None:
    killer = Killer(client, "worker 1", over=lambda log: has_pushed_again(log, 1))
    spec = experiment(strategy, scheduler, 2, stop=FOREVER, recovery={"replace_workers": True})
    done = run(spec, observer=killer, control=killer.control)
    assert done.meta["status"] == "stopped"
    assert done.meta["lost_workers"] == []
    assert [text.split(" at ")[0] for text in done.meta["incidents"]] == [
        "worker 1 was lost",
        "worker 1 has joined on another Dask worker",
    ]


# -------------------------------------------------------------------- too little room


@contextmanager
def busy(client: Client, count: int, path: Path) -> Iterator[None]:
    """Keep some Dask workers busy, until a file is written or the block ends."""

    def until(path: str) -> None:  # in here it is sent whole: Dask's workers cannot import this module
        while not Path(path).exists():
            time.sleep(0.02)

    futures = [client.submit(until, str(path), pure=False, key=f"busy-{i}-{path}") for i in range(count)]
    while sum(map(len, client.processing().values())) < count:
        time.sleep(0.02)
    try:
        yield
    finally:
        path.touch()
        client.gather(futures)
        del futures


def test_a_run_says_who_has_the_workers_and_waits_as_long_as_told(
    scheduler: str, client: Client, tmp_path: Path
) -> None:
    free = tmp_path / "free"
    with busy(client, 4, free):
        with pytest.raises(BackendError, match=r"2 free of 6 threads.*needs 5 \(other work has 4\)"):
            run(experiment("asp", scheduler, 3, recovery={"wait_for_workers": 0.3}))
        threading.Timer(0.5, free.touch).start()
        assert run(experiment("asp", scheduler, 3)).meta["status"] == "finished"


def test_two_runs_at_once_are_not_placed_on_the_same_workers(scheduler: str, client: Client) -> None:
    results: dict[int, Any] = {}

    def one(seed: int) -> None:
        results[seed] = run(experiment("asp", scheduler, 2, seed=seed, stop={"updates": 50}))

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in threads):
        tasks = client.processing().values()
        most = max(most, *(sum("warm" not in str(key) for key in keys) for keys in tasks))
        time.sleep(0.02)
    assert [results[seed].meta["status"] for seed in range(2)] == ["finished", "finished"]
    assert most == 1


def test_workers_join_when_there_is_room_for_them(scheduler: str, client: Client, tmp_path: Path) -> None:
    free, control = tmp_path / "free", Control()

    def observer(log: EventLog) -> None:
        workers = log.of_kind(Kind.PUSH)["worker"].tolist()
        if len(workers) > 50 and {0, 1, 2} <= {*workers} and not free.exists():
            assert 3 not in workers
            free.touch()
        if workers.count(3) > 5:
            control.stop()

    with busy(client, 1, free):
        spec = experiment("ssp", scheduler, 4, stop=FOREVER, recovery={"min_workers": 2})
        done = run(spec, observer=observer, control=control)
    assert done.meta["status"] == "stopped"
    assert done.log.of_kind(Kind.JOIN)["worker"].tolist() == [0, 1, 2, 3]


def test_dasks_dashboard_shows_the_run_and_who_waits_for_whom(scheduler: str, client: Client) -> None:
    spec = experiment("bsp", scheduler, 2, name="seen <there>", stop=FOREVER)
    pages, control = list[str](), Control()

    def observer(log: EventLog) -> None:
        host = scheduler.split("//")[1].rpartition(":")[0]
        port = client.scheduler_info()["services"]["dashboard"]
        with urllib.request.urlopen(f"http://{host}:{port}/psbench") as answer:
            pages.append(answer.read().decode())
        if "bsp: " in pages[-1]:
            control.stop()

    run(spec, observer=observer, control=control)
    assert all("psbench" in page for page in pages)
    assert "seen &lt;there&gt;" in pages[-1]
