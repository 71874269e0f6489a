"""Runs on clusters that `dask scheduler` and `dask worker` have made, as those of other people are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, Security
from test_dask_runs import FOREVER, experiment, simulated

from psbench.backends.control import Control
from psbench.backends.dask import versions
from psbench.core.log import EventLog, Kind
from psbench.errors import BackendError, ParameterError
from psbench.runs import run

pytestmark = [pytest.mark.dask, pytest.mark.slow, pytest.mark.timeout(300)]


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run one of Dask's programs; it is killed at the end."""
    command = [sys.executable, "-m", "dask", *arguments]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """Return what a program says about itself in a line."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError(f"it ended without saying {pattern}")


@contextmanager
def real_cluster(scheme: str = "tcp", *options: str, threads: int = 4) -> Iterator[tuple[Any, str]]:
    """Give a scheduler's process and its address; one worker with several threads is cheapest."""
    with ExitStack() as stack:
        where = ("--host", f"{scheme}://127.0.0.1", "--port", "0", "--no-dashboard")
        scheduler = stack.enter_context(program("scheduler", *where, *options))
        address = read_until(scheduler, rf"Scheduler at:\s+({scheme}://\S+)")
        worker = ("worker", address, "--no-nanny", "--nthreads", str(threads), "--no-dashboard")
        stack.enter_context(program(*worker, "--host", f"{scheme}://127.0.0.1", *options))
        yield scheduler, address


@pytest.mark.filterwarnings("ignore")  # Dask's client warns of its own end
def test_a_run_that_loses_the_scheduler_keeps_its_result() -> None:
    control, killed = Control(), list[int]()

    def observer(log: EventLog) -> None:
        pushes = len(log.of_kind(Kind.PUSH)["row"])
        if pushes > 50 and not killed:
            scheduler.kill()
            killed.append(pushes)
        if killed and pushes > killed[0] + 3000:
            control.stop()

    with real_cluster() as (scheduler, address):
        done = run(experiment("asp", address, 1, stop=FOREVER), observer=observer, control=control)
    assert done.meta["status"] == "stopped"
    assert done.parameters is not None
    (incident,) = done.meta["incidents"]
    assert "the Dask scheduler is gone" in incident


def certificates(folder: Path) -> dict[str, str]:
    """Write temporary certificates to files, and return them as Dask's programs call them."""
    temporary = Security.temporary()
    contents = {"ca-file": temporary.tls_ca_file, "cert": temporary.tls_client_cert}
    contents["key"] = temporary.tls_client_key
    for name, content in contents.items():
        (folder / name).write_text(content)
    return {f"--tls-{name}": str(folder / name) for name in contents}


def test_a_cluster_with_tls_and_a_file_that_says_where_it_is(tmp_path: Path) -> None:
    files = certificates(tmp_path)
    options = [each for pair in files.items() for each in pair]
    tls = {"tls_ca_file": files["--tls-ca-file"], "tls_cert": files["--tls-cert"]}
    tls["tls_key"] = files["--tls-key"]
    with real_cluster("tls", *options) as (_, address):
        where = tmp_path / "scheduler.json"
        where.write_text(json.dumps({"address": address}))
        connection = tls | {"scheduler_file": str(where), "ports": "42000-42099"}
        spec = experiment("asp", None, 1, connection=connection)
        ports: set[int] = set()

        def observer(log: EventLog) -> None:
            found = psutil.net_connections("tcp")
            ports.update(c.laddr.port for c in found if c.status == psutil.CONN_LISTEN)

        done = run(spec, observer=observer)
        assert done.meta["params_digest"] == simulated(spec.but(connection={})).meta["params_digest"]
        assert ports & {*range(42000, 42100)}
        # without certificates, and with those of somebody else
        with pytest.raises(ParameterError, match=r"wants TLS.*tls_ca_file"):
            run(experiment("asp", address, 1))
        (tmp_path / "other").mkdir()
        other = certificates(tmp_path / "other")
        wrong = {f"tls_{name.removeprefix('--tls-').replace('-', '_')}": file for name, file in other.items()}
        with pytest.raises(ParameterError, match="TLS handshake"):
            run(experiment("asp", address, 1, connection=wrong))


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"scheduler_file: .*nothing.json: No such file"):
        run(experiment("asp", None, 1, connection={"scheduler_file": str(tmp_path / "nothing.json")}))
    missing = dict.fromkeys(("tls_ca_file", "tls_cert", "tls_key"), str(tmp_path / "none.pem"))
    with pytest.raises(ParameterError, match=r"connection.tls_ca_file: there is no file .*none.pem"):
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
