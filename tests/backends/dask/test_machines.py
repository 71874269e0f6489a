"""Before a run is placed: its client reaches the Dask workers, and their machines hold its processes."""

from __future__ import annotations

import pickle
import socket
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from psbench.backends.dask import machines, reach
from psbench.backends.dask.machines import check_machines
from psbench.backends.dask.protocol.roles import roles_of
from psbench.backends.dask.reach import check_reach, unreachable
from psbench.clusters.connection import ConnectionSettings
from psbench.errors import BackendError, ParameterError
from psbench.experiment import Experiment
from psbench.training.build import Workload
from psbench.training.memory import held_by_processes

LIMITS = ConnectionSettings(connect_within_s=0.5)


def answering(monkeypatch: pytest.MonkeyPatch, contact: dict[str, str]) -> None:
    """Have Dask workers answer here; `contact` has the address by which each is reached."""

    def ask(client: Any, function: Any, *arguments: Any, of: Any, limits: Any) -> dict[str, Any]:
        found = {}
        for address in of:
            worker = SimpleNamespace(address="tcp://127.0.0.1:1", contact_address=contact[address])
            found[address] = pickle.loads(cloudpickle.dumps(function))(*arguments, dask_worker=worker)
        return found

    monkeypatch.setattr(reach, "ask", ask)


def test_a_dask_worker_that_cannot_be_connected_to_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is reached, another's host refuses, a third is behind a firewall that drops what comes."""
    there = {"a": "tcp://127.0.0.1:1", "b": "tcp://127.0.0.77:1", "c": "tcp://127.0.0.1:1"}
    answering(monkeypatch, there)
    assert unreachable(None, "ac", LIMITS) == {}  # type: ignore[arg-type]
    found = check_reach(None, "ab", LIMITS)  # type: ignore[arg-type]
    assert list(found) == ["b"]
    assert found["b"].startswith("127.0.0.77:")

    def dropped(*_: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", dropped)
    with pytest.raises(BackendError, match=r"reaches the Dask scheduler, but not .* within 0.5 s"):
        check_reach(None, "c", LIMITS)  # type: ignore[arg-type]


def test_another_program_at_the_same_address_is_no_dask_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the cluster's private addresses are in use in the client's network, too."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(reach, "ask", lambda *_, **__: {"a": ("127.0.0.1", port)})
        connect, accepted = socket.create_connection, []

        def answered(*arguments: Any) -> Any:
            end = connect(*arguments)
            accepted.append(other.accept()[0])
            accepted[-1].sendall(b"SSH-2.0-server\r\n")
            accepted[-1].close()
            return end

        monkeypatch.setattr(socket, "create_connection", answered)
        assert "another program answers" in unreachable(None, "a", LIMITS)["a"]  # type: ignore[arg-type]


def test_a_port_that_the_run_may_use_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"a": "tcp://127.0.0.1:1"})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        only = ConnectionSettings(ports=f"{port}-{port}", connect_within_s=0.5)
        assert unreachable(None, "a", only) == {}  # type: ignore[arg-type]  # the run says that none is free
    tried: list[int] = []
    monkeypatch.setattr(reach, "_why_not", lambda host, port, **_: tried.append(port) or "")
    unreachable(None, "a", only)  # type: ignore[arg-type]
    assert tried == [port]


# -------------------------------------------------------------------- memory


def live(**changes: Any) -> Experiment:
    settings: dict[str, Any] = {
        "strategy": "asp",
        "cluster": {"workers": 64},
        "batch_size": 640,
        "backend": "dask",
        "scheduler": "tcp://10.0.0.1:8786",
        "model": {"name": "mlp", "hidden": [1000]},
    }
    return Experiment(**settings | changes)


def memory(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    monkeypatch.setattr("psbench.system.limits.available_memory", lambda: available)


@pytest.mark.parametrize("strategy", ["asp", "bsp", "local_sgd", "all_reduce", "d_psgd"])
def test_a_client_holds_its_own_model_only(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 workers elsewhere it holds nothing; of those on this machine their memory is this one's."""
    memory(monkeypatch, 40_000_000)  # 133 models
    Workload.build(live(strategy=strategy))
    Workload.build(live(strategy=strategy, scheduler=None), whole_run=False)  # of a client that is given
    written = {"scheduler": None, "connection": {"scheduler_file": "scheduler.json"}}
    Workload.build(live(strategy=strategy, **written))
    with pytest.raises(ParameterError, match=r"held \d+ times in 67 processes"):
        Workload.build(live(strategy=strategy, scheduler=None))


def vectors(experiment: Experiment) -> tuple[float, ...]:
    return tuple(held_by_processes(experiment))


def test_what_each_process_holds() -> None:
    """Counted by hand: a server's slice, momentum and the pushes that wait for a barrier."""
    plain = {"optimizer": {"name": "sgd"}}
    assert vectors(live(**plain)) == (2, 2, 1, 2)
    assert vectors(live(strategy="bsp", **plain)) == (1 + 1 + 64, 2, 1, 2)
    assert vectors(live(strategy={"name": "bsp", "servers": 4}, **plain)) == (1 + 65 / 4, 2, 1, 2)
    assert vectors(live(strategy="bsp")) == (1 + 2 + 64, 2, 2, 2)
    assert vectors(live(strategy="all_reduce")) == (2, 3, 2, 2)
    assert vectors(live(strategy={"name": "fsdp", "stage": 3})) == (2, 2, 2, 2)
    assert vectors(live(strategy="local_sgd")) == (1 + 2 + 64, 2 + 2, 2, 2)
    switching = {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}}
    assert vectors(live(strategy=switching)) == (1 + 2, 3, 2, 2)  # All-Reduce, then ASP


def test_machines_are_checked_for_the_roles_that_are_placed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts: the server of BSP has the pushes of all, workers have two vectors each."""
    workload = Workload.build(live(strategy="bsp", cluster={"workers": 4}, batch_size=64))
    model = workload.model_bytes
    roles = roles_of(workload.experiment)
    assert roles == ["coordinator", "worker 0", "worker 1", "worker 2", "worker 3", "evaluator"]
    apart = {
        role: f"tcp://{'server' if role == 'coordinator' else 'others'}:{n}" for n, role in enumerate(roles)
    }

    def check(of_server: int, of_others: int) -> None:
        free = {"server": of_server, "others": of_others}
        found = {each: (host := each[6:12], free[host]) for each in apart.values()}
        monkeypatch.setattr(machines, "ask", lambda *_, **__: found)
        check_machines(None, workload, apart)  # type: ignore[arg-type]

    check(8 * model, 12 * model)
    check(100 * model, 12 * model)
    with pytest.raises(BackendError, match=r"^server: 1 processes of the run \(coordinator\) would need"):
        check(7 * model, 12 * model)
    with pytest.raises(BackendError, match=r"^others: 5 processes of the run \(worker 0, ...\) would need"):
        check(8 * model, 11 * model)
