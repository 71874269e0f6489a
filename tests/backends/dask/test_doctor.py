"""`psbench doctor` on a real cluster: what it measures and warns of, and what the simulator takes."""

from __future__ import annotations

import itertools
import json
import socket
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from distributed import Client

from psbench.backends.dask import doctor
from psbench.backends.dask.connecting import connected
from psbench.backends.dask.doctor import Diagnosis, Link, MeasuredSteps, bad_links, diagnose, slow_workers
from psbench.cli import main
from psbench.cli.commands.doctor import _text
from psbench.errors import BackendError
from psbench.experiment import Experiment
from psbench.runs.execution import run

pytestmark = pytest.mark.dask


def test_a_cluster_is_measured_and_the_simulator_takes_it(
    scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Diagnosis] = []
    steps: list[str] = []

    def once(experiment: Experiment, on_step: Any) -> Diagnosis:
        made.extend([] if made else [diagnose(experiment, on_step=steps.append)])
        return made[0]

    monkeypatch.setattr("psbench.backends.dask.doctor.diagnose", once)
    monkeypatch.setattr(doctor, "_LINE_EVERY_S", 0.0)
    settings = ["--set", "cluster={workers: 20}", "--set", "strategy=bsp", "--scheduler", scheduler]
    file = tmp_path / "cluster.yaml"
    assert main(["doctor", *settings, "--json", "--out", str(file)]) == 1
    found = json.loads(capsys.readouterr().out)
    problem = "threads: a run of this experiment needs 22, and 6 are free"
    # on a busy machine some worker or link may really be slow
    assert [said for said in found["problems"] if not said.startswith("slow")] == [problem]
    assert len(found["steps"]) == 6
    assert len({(link["from"], link["to"]) for link in found["links"]}) == 30
    assert all(link["latency_s"] > 0 and link["up_mbit_s"] > 0 for link in found["links"])
    assert {len(each) for link in found["links"] for each in link["by_size"]} == {3}  # bytes, up, down
    assert found["sampled"] == "all 30 links were timed"
    assert found["sampled_steps"] == "steps of all 6 workers were timed"
    assert steps[0] == "steps: 0 of 6 workers timed; at most 25 s"
    assert "links: 10 of 30 timed, in round 2 of 5; at most 90 s, or until one round is over" in steps
    assert len({link["from"] for link in found["at_once"]} | {link["to"] for link in found["at_once"]}) == 6
    assert main(["doctor", *settings]) == 1
    assert f"problem: {problem}" in capsys.readouterr().out
    cluster = yaml.safe_load(file.read_text())["cluster"]
    assert max(cluster["speed"]) == 1.0
    simulated = run(Experiment(cluster=cluster, stop={"updates": 3}, strategy="bsp"))
    assert simulated.meta["num_workers"] == 6


@pytest.mark.parametrize(("alone_s", "alone"), [(1e9, 5), (0.0, 1)])
def test_when_time_is_over_every_worker_was_timed(
    scheduler: str, monkeypatch: pytest.MonkeyPatch, alone_s: float, alone: int
) -> None:
    """With the server if that fits into half of the time; steps are timed on a worker of each machine."""
    timed, together = doctor._Doctor._timed, list[list[tuple[str, str]]]()

    def recorded(self: Any, ways: dict[tuple[str, str], Any]) -> Any:
        together.append(list(ways))
        return timed(self, ways)

    monkeypatch.setattr(doctor._Doctor, "_timed", recorded)
    monkeypatch.setattr(doctor, "_TO_SERVER_S", alone_s)
    monkeypatch.setattr(doctor, "_LINKS_S", 0.0)
    monkeypatch.setattr(doctor, "_STEPS_S", 0.0)
    experiment = Experiment(
        strategy="bsp", cluster={"workers": 2}, stop={"updates": 2}, backend="dask", scheduler=scheduler
    )
    with connected(experiment, 4, None) as client:
        examined = doctor._Doctor(client, experiment, (said := list[str]()).append)
        examined._time_steps()
        examined._time_links()
    found = examined._found
    assert [line.partition(",")[0] for line in said] == [
        "steps: 0 of 6 workers timed; at most 0 s",
        "links: 0 of 30 timed",
        "links: 5 at once to the server's worker",
    ]
    assert len(found.steps) == 1
    assert found.sampled_steps.startswith("steps of 1 of 6 workers were timed, as many as fit into 0 s; ")
    assert found.cluster()["speed"] == [1.0] * 6
    others = [worker for worker in found.workers if worker != found.server]
    assert together[:alone] == [[(other, found.server)] for other in others[:alone]]
    *rounds, at_once = together[alone:]
    assert at_once == [(other, found.server) for other in others]
    assert [len({*itertools.chain(*pairs)}) for pairs in rounds] in ([6, 6], [6, 4], [4, 6])
    assert found.links.keys() == {*itertools.chain(*together[:-1])}
    assert {*itertools.chain(*found.links)} == {*found.workers}
    assert (
        " of 30 links were timed, those to the server's worker first, as many as fit into 0" in found.sampled
    )


def test_links_at_once_are_within_the_time_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 workers: 2 s a link alone, 10 s those of a round each way, 30 s all to the server at once."""
    now, together = 0.0, list[int]()

    def timed(self: Any, ways: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Link]:
        nonlocal now
        now += {1: 2.0, 15: 30.0}.get(len(ways), 10.0)
        together.append(len(ways))
        return dict.fromkeys(ways, Link(1e-4, 900.0, 900.0))

    monkeypatch.setattr(doctor._Doctor, "_timed", timed)
    monkeypatch.setattr(doctor._Doctor, "_echoes", lambda self, of: nullcontext(dict.fromkeys(of)))
    monkeypatch.setattr(doctor, "time", SimpleNamespace(monotonic=lambda: now))
    examined = object.__new__(doctor._Doctor)
    examined._found, examined._on_step, examined._next_line_s = Diagnosis([*"abcdefghijklmnop"]), print, 0.0
    examined._time_links()
    assert together[:15] == [1] * 15
    assert together[-1] == 15
    assert len(together) == 15 + 2 + 1
    assert now <= doctor._LINKS_S


def test_many_workers_are_summed_up_with_the_slowest() -> None:
    workers = [f"tcp://10.0.0.{number}:4" for number in range(64)]
    found = Diagnosis(workers)
    found.steps = {
        each: MeasuredSteps(1e-5 * (1 + number), 0.002, 0.1) for number, each in enumerate(workers)
    }
    ends = itertools.permutations(workers, 2)
    found.links = {both: Link(1e-4, 900.0, 800.0) for both in ends}
    found.links |= {(workers[5], other): Link(1e-4, 90.0, 800.0) for other in workers[:5]}
    found.problems = [*slow_workers(found.steps), *bad_links(found.links), *(f"a: {n}" for n in range(20))]
    text = _text(found).splitlines()
    assert text[0] == "64 free Dask workers on 64 machines"
    assert text[1:3] == [
        "steps, median (range): 0.325 (0.01 to 0.64) ms a sample, 2 (2 to 2) ms a step; the slowest:",
        "  tcp://10.0.0.63:4: 0.64 ms a sample, 2 ms a step, ± 10.0\xa0%",
    ]
    assert "  tcp://10.0.0.5:4 to tcp://10.0.0.0:4: 0.1 ms, 90 Mbit/s up, 800 down" in text
    assert text[-1] == "problem: a: 12 more; --json lists all"
    assert len(text) == 24


def test_a_run_and_the_doctor_say_at_once_that_no_dask_worker_is_reached(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process of the run is started and waited for; the wrong cause came after 98 s."""
    connect, started = socket.create_connection, list[Any]()

    def behind_a_firewall(address: Any, timeout: Any = None, *rest: Any, **more: Any) -> Any:
        if timeout == 0.25:
            raise TimeoutError
        return connect(address, timeout, *rest, **more)

    def submit(client: Client, *task: Any, of: Any = Client.submit, **options: Any) -> Any:
        started.append(options.get("key"))
        return of(client, *task, **options)

    monkeypatch.setattr(socket, "create_connection", behind_a_firewall)
    monkeypatch.setattr(Client, "submit", submit)
    experiment = Experiment(
        strategy="bsp",
        cluster={"workers": 2},
        stop={"updates": 2},
        backend="dask",
        scheduler=scheduler,
        connection={"connect_within_s": 0.25},
    )
    for begin in (run, diagnose):
        with pytest.raises(BackendError, match="not Dask worker"):
            begin(experiment)
        assert started == []
