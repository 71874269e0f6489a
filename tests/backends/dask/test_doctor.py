"""`psbench doctor` on a real cluster: what it measures and warns of, and what the simulator takes."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from psbench.backends.dask import doctor
from psbench.backends.dask.connecting import connected
from psbench.backends.dask.doctor import Diagnosis, diagnose
from psbench.cli import main
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
    assert steps[0] == "steps: 0 of 6 workers timed"
    assert "links: 6 of 30 timed, in round 2 of 5; at most 90 s" in steps
    assert len({link["from"] for link in found["at_once"]} | {link["to"] for link in found["at_once"]}) == 6
    assert main(["doctor", *settings]) == 1
    assert f"problem: {problem}" in capsys.readouterr().out
    cluster = yaml.safe_load(file.read_text())["cluster"]
    assert max(cluster["speed"]) == 1.0
    simulated = run(Experiment(cluster=cluster, stop={"updates": 3}, strategy="bsp"))
    assert simulated.meta["num_workers"] == 6


def test_when_the_time_is_over_every_worker_has_had_two_partners(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_LINKS_S", 0.0)
    experiment = Experiment(
        strategy="bsp", cluster={"workers": 2}, stop={"updates": 2}, backend="dask", scheduler=scheduler
    )
    with connected(experiment, 4, None) as client:
        examined = doctor._Doctor(client, experiment, lambda text: None)
        examined._time_links()
    found = examined._found
    assert [sum(start == worker for start, _ in found.links) for worker in found.workers] == [2] * 6
    assert found.sampled.startswith(
        "12 of 30 links were timed, 2 from each worker, as many as fit into 0 s; "
    )


def test_a_run_and_the_doctor_say_at_once_that_no_dask_worker_is_reached(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process of the run is started; the wrong cause came after 98 s."""
    connect = socket.create_connection

    def behind_a_firewall(address: Any, timeout: Any = None, *rest: Any, **more: Any) -> Any:
        if timeout == 0.25:
            raise TimeoutError
        return connect(address, timeout, *rest, **more)

    monkeypatch.setattr(socket, "create_connection", behind_a_firewall)
    experiment = Experiment(
        strategy="bsp",
        cluster={"workers": 2},
        stop={"updates": 2},
        backend="dask",
        scheduler=scheduler,
        connection={"connect_within_s": 0.25},
    )
    for begin in (run, diagnose):
        began = time.monotonic()
        with pytest.raises(BackendError, match="not Dask worker"):
            begin(experiment)
        assert time.monotonic() - began < 20
