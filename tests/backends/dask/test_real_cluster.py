"""Runs on clusters that `dask scheduler` and `dask worker` have made, as those of other people are."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import cloudpickle
import psutil
import pytest
import yaml
from distributed import Client, LocalCluster, Security
from test_dask_runs import FOREVER, experiment, simulated
from test_retirement import HERE

from psbench.backends.control import Control
from psbench.backends.dask import versions
from psbench.backends.dask.keys import give_key, take_key
from psbench.backends.dask.placement import place
from psbench.backends.dask.protocol.roles import RunKey
from psbench.backends.dask.record import Record
from psbench.cli import main
from psbench.clusters.connection import ConnectionSettings
from psbench.core.log import EventLog, Kind
from psbench.errors import BackendError, ParameterError
from psbench.results.run import Run
from psbench.runs.execution import run

pytestmark = [pytest.mark.dask, pytest.mark.slow]

#: of Dask's processes, each with certificates
ROLES = ("scheduler", "worker", "client")


class Program(NamedTuple):
    process: subprocess.Popen[bytes]
    output: IO[bytes]

    def said(self) -> str:
        """Return all that the program has printed so far."""
        return os.pread(self.output.fileno(), 10**9, 0).decode()


@contextmanager
def program(*arguments: str, within: Sequence[str] = ()) -> Iterator[Program]:
    """Run one of Dask's programs, perhaps within another; at the end all that it started is killed."""
    command = [*within, sys.executable, "-m", "dask", *arguments]
    # not a pipe: one that nobody reads stops the program once it is full
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield Program(process, output)
        finally:
            started = psutil.Process(process.pid).children(recursive=True)
            for each in (psutil.Process(process.pid), *started):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()


def read_until(program: Program, pattern: str) -> str:
    """Return what a program says about itself in a line."""
    while (found := re.search(rf"{pattern}.*\n", said := program.said())) is None:
        assert program.process.poll() is None, said
        time.sleep(0.05)
    return found[1]


@contextmanager
def real_cluster() -> Iterator[tuple[Any, str]]:
    """Give a scheduler's process and its address; one worker with several threads is cheapest."""
    with ExitStack() as stack:
        where = ("--host", "tcp://127.0.0.1", "--port", "0", "--no-dashboard")
        scheduler = stack.enter_context(program("scheduler", *where))
        address = read_until(scheduler, r"Scheduler at:\s+(tcp://\S+)")
        worker = ("worker", address, "--no-nanny", "--nthreads", "4", "--no-dashboard")
        stack.enter_context(program(*worker, "--host", "tcp://127.0.0.1"))
        yield scheduler.process, address


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # Dask's client warns of its own end
def test_a_run_that_loses_the_scheduler_keeps_its_result_and_exits_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trains, extend = threading.Event(), Record.extend

    def extended(record: Record, rows: Any) -> None:
        extend(record, rows)
        if len(record.log.of_kind(Kind.EVALUATED)["row"]):  # all roles are there
            trains.set()

    monkeypatch.setattr(Record, "extend", extended)
    with real_cluster() as (scheduler, address):

        def kill_it_in_mid_run() -> None:
            trains.wait()
            scheduler.kill()

        killer = threading.Thread(target=kill_it_in_mid_run)
        killer.start()
        spec = experiment("asp", address, 1, stop={"seconds": 4.0}).spec()
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
        code = main(["run", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "run")])
        killer.join()
    assert code == 0
    assert "the Dask scheduler is gone" in "".join(capsys.readouterr())
    done = Run.load(tmp_path / "run")
    assert done.meta["status"] == "finished"
    assert done.parameters is not None
    (incident,) = done.meta["incidents"]
    assert "the Dask scheduler is gone" in incident


def certificates(folder: Path) -> dict[str, str]:
    """Write temporary certificates to files, and return them as settings of a connection."""
    temporary = Security.temporary()
    contents = {"ca_file": temporary.tls_ca_file, "cert": temporary.tls_client_cert}
    contents["key"] = temporary.tls_client_key
    for name, content in contents.items():
        (folder / name).write_text(content)
    return {f"tls_{name}": str(folder / name) for name in contents}


def test_a_cluster_with_tls_and_a_file_that_says_where_it_is(tmp_path: Path) -> None:
    tls = certificates(tmp_path)
    own = {f"tls_{role}_{what}": tls[f"tls_{what}"] for role in ROLES for what in ("cert", "key")}
    security = Security(tls_ca_file=tls["tls_ca_file"], require_encryption=True, **own)
    threads = {"n_workers": 1, "threads_per_worker": 4, "processes": False}
    with LocalCluster(**threads, **HERE | {"protocol": "tls://"}, security=security) as cluster:
        address = cluster.scheduler_address
        where = tmp_path / "scheduler.json"
        where.write_text(json.dumps({"address": address}))
        connection = tls | {"scheduler_file": str(where), "ports": "42000-42099"}
        spec = experiment("asp", None, 1, connection=connection)
        ports, allowed = set[int](), {*range(42000, 42100)}

        def observer(log: EventLog) -> None:
            if ports & allowed:
                return  # to look through all processes takes longer than the run
            found = psutil.net_connections("tcp")
            ports.update(c.laddr.port for c in found if c.status == psutil.CONN_LISTEN)

        done = run(spec, observer=observer)
        assert done.meta["params_digest"] == simulated(spec.but(connection={})).meta["params_digest"]
        assert ports & allowed
        # without certificates, and with those of somebody else
        with pytest.raises(ParameterError, match=r"requires TLS.*tls_ca_file"):
            run(experiment("asp", address, 1))
        (tmp_path / "other").mkdir()
        other = certificates(tmp_path / "other")
        with pytest.raises(ParameterError, match="TLS handshake"):
            run(experiment("asp", address, 1, connection=other))


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=rf"scheduler_file: .*nothing.json: {os.strerror(errno.ENOENT)}"):
        run(experiment("asp", None, 1, connection={"scheduler_file": str(tmp_path / "nothing.json")}))
    missing = dict.fromkeys(("tls_ca_file", "tls_cert", "tls_key"), str(tmp_path / "none.pem"))
    with pytest.raises(ParameterError, match=r"connection.tls_ca_file: file .*none.pem does not exist"):
        run(experiment("asp", "tls://127.0.0.1:1", 1, connection=missing))


def test_the_callers_client_is_used_and_stays_open(scheduler: str) -> None:
    spec = experiment("asp", None, 1)
    with Client(scheduler, set_as_default=False) as client:
        assert run(spec, client=client).meta["status"] == "finished"
        assert client.status == "running"
    with pytest.raises(ParameterError, match="client: its connection to the scheduler is closed"):
        run(spec, client=client)
    with pytest.raises(ParameterError, match="client: only the dask backend has one"):
        run(spec.but(backend="simulated"), client=client)


def test_other_versions_on_the_workers_are_named(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = versions.versions_here() | {"torch": "0.4"}
    monkeypatch.setattr(versions, "versions_here", lambda: here)
    with pytest.raises(BackendError, match=r"torch is 0\.4 here and \d.* on 3 of 3 Dask workers"):
        run(experiment("asp", scheduler, 1))


# -------------------------------------------------------------------- who may know the key


def test_a_second_client_of_the_scheduler_finds_the_key_nowhere(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, found = b"the key of this run, 32 letters.", list[Any]()
    monkeypatch.setattr("psbench.backends.dask.attempt.RunKey", lambda _: RunKey(key))

    # in here these are sent whole: neither scheduler nor workers can import this module
    def kept_by_scheduler(dask_scheduler: Any) -> tuple[list[str], bytes]:
        tasks = {name: task.run_spec for name, task in dask_scheduler.tasks.items() if "psbench" in name}
        # as texts: what Dask has noted of earlier runs can have objects that cannot be pickled
        told = repr((dask_scheduler.get_events(), dask_scheduler.get_logs()))
        return list(tasks), cloudpickle.dumps(tasks) + told.encode()

    def kept_by_worker(dask_worker: Any) -> tuple[list[str], bytes]:
        files = [path for path in Path(dask_worker.local_directory).rglob("*") if path.is_file()]
        shown = [path.read_bytes() for path in files], dask_worker.get_logs()
        return list(getattr(dask_worker, "_psbench_keys", ())), cloudpickle.dumps(shown)

    def observer(log: EventLog) -> None:
        if not found:
            with Client(scheduler, set_as_default=False) as other:
                found.append(other.run_on_scheduler(kept_by_scheduler))
                found.extend(other.run(kept_by_worker).values())

    run(experiment("asp", scheduler, 2, stop={"seconds": 2.0}), observer=observer)
    (tasks, _), *of_workers = found
    assert sum("warm" not in name for name in tasks) == 4
    assert of_workers
    assert not any(waiting for waiting, _ in of_workers)  # each task has taken its key
    assert not any(key in shown for _, shown in found)


def test_a_task_that_dask_starts_once_more_gets_no_key(scheduler: str) -> None:
    with Client(scheduler, set_as_default=False) as client:
        (address, *_) = client.nthreads()
        give_key(client, RunKey(b"k" * 32), "takes", address, ConnectionSettings())
        assert client.submit(lambda: take_key() == b"k" * 32, workers=[address], key="takes").result()
        with pytest.raises(BackendError, match="has no key of its run"):
            client.submit(take_key, workers=[address], key="takes again").result()


# -------------------------------------------------------------------- nannies, resources, other addresses


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def place_of(client: Client) -> dict[str, str]:
    """Return the Dask worker of each role of the run, by the last word of its task."""
    return {str(key)[-8:]: address for address, keys in client.processing().items() for key in keys}


@pytest.mark.nightly
def test_resources_hold_and_a_server_moves_when_its_lifetime_ends() -> None:
    port, control, places = free_port(), Control(), list[dict[str, str]]()
    contact = f"tcp://127.0.0.1:{port}"
    with ExitStack() as stack:
        where = ("--host", "tcp://127.0.0.1", "--port", "0", "--no-dashboard")
        address = read_until(stack.enter_context(program("scheduler", *where)), r"Scheduler at:\s+(\S+)")
        common = ("worker", address, "--no-dashboard", "--nthreads")
        named = ("--listen-address", f"tcp://localhost:{port}", "--contact-address", contact)
        stack.enter_context(program(*common, "4", "--no-nanny", "--resources", "GPU=2", *named))
        stack.enter_context(program(*common, "1", "--host", "tcp://127.0.0.1", "--lifetime", "1 hour"))
        client = stack.enter_context(Client(address, set_as_default=False))
        client.wait_for_workers(2, timeout=60)

        def end_lifetime(dask_worker: Any) -> None:  # sent whole: a Dask worker cannot import this module
            dask_worker.loop.add_callback(dask_worker.close_gracefully, reason="worker-lifetime-reached")

        def observer(log: EventLog) -> None:
            pushes = len(log.of_kind(Kind.PUSH)["row"])
            if pushes > 50 and not places:
                places.append(place_of(client))
                client.run(end_lifetime, workers=[places[0]["rdinator"]])
            elif pushes > 50 and len(client.nthreads()) == 1 and len(client.processing()[contact]) == 4:
                control.stop()

        spec = experiment("asp", address, 2, stop=FOREVER, recovery={"max_restarts": 0})
        uses = {"resources": {"GPU": 3}}
        with pytest.raises(BackendError, match=r"of which 0 have room: GPU: 3 is .* GPU: 2 \(1 of 2\)"):
            run(spec.but(connection=uses, recovery={"wait_for_workers": 0}))
        done = run(spec.but(connection={"resources": {"GPU": 1}}), observer=observer, control=control)
    assert done.meta["status"] == "stopped"
    (before,) = places
    assert [before[role] == contact for role in ("rdinator", "worker-0", "worker-1")] == [False, True, True]
    (moved,) = done.meta["incidents"]
    assert re.match(r"the Dask worker of parameter server 0 is being retired; 0 updates", moved)


def test_roles_are_spread_over_machines_or_packed() -> None:
    roles = ["coordinator", "worker 0"]
    there = dict.fromkeys(("tcp://a:1", "tcp://a:2", "tcp://b:1"), 1)
    hosts = {how: {each[6] for each in place(roles, there, how).values()} for how in ("spread", "pack")}
    assert hosts == {"spread": {"a", "b"}, "pack": {"a"}}


@contextmanager
def two_namespaces() -> Iterator[list[tuple[str, ...]]]:
    """Give two network namespaces with a link between 10.213.0.1 and .2, as commands that enter them."""
    names = [f"psbench-{os.getpid()}-{number}" for number in (1, 2)]

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    with ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
            ip("-n", names[0], "link", "add", "v1", "type", "veth", "peer", "name", "v2", "netns", names[1])
            for number, name in enumerate(names, 1):
                ip("-n", name, "address", "add", f"10.213.0.{number}/24", "dev", f"v{number}")
                for device in (f"v{number}", "lo"):
                    ip("-n", name, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
            pytest.skip(f"this machine lets nobody make network namespaces: {why}")
        yield [("ip", "netns", "exec", name) for name in names]


@pytest.mark.nightly
def test_a_run_between_two_machines_as_two_network_namespaces(tmp_path: Path) -> None:
    spec = experiment("bsp", "tcp://10.213.0.1:8786", 2)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec.spec()))
    with two_namespaces() as enter, ExitStack() as stack:
        where = ("--host", "tcp://10.213.0.1", "--port", "8786", "--no-dashboard")
        scheduler = stack.enter_context(program("scheduler", *where, within=enter[0]))
        address = read_until(scheduler, r"Scheduler at:\s+(\S+)")
        for number, within in enumerate(enter, 1):
            options = ("--host", f"tcp://10.213.0.{number}", "--nthreads", "2", "--no-dashboard")
            stack.enter_context(program("worker", address, *options, within=within))
        command = [*enter[0], sys.executable, "-m", "psbench", "run", "spec.yaml", "--out", "run"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
    assert Run.load(tmp_path / "run").meta["params_digest"] == simulated(spec).meta["params_digest"]
