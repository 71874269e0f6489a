"""`psbench doctor` on a real cluster: what it measures and warns of, and what the simulator takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from psbench.cli import main
from psbench.experiment import Experiment
from psbench.runs.execution import run

pytestmark = pytest.mark.dask


def test_a_cluster_is_measured_and_the_simulator_takes_it(
    scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", "cluster={workers: 2}", "--set", "strategy=bsp", "--set", "stop={updates: 3}"]
    file = tmp_path / "cluster.yaml"
    code = main(["doctor", *settings, "--scheduler", scheduler, "--json", "--out", str(file)])
    found = json.loads(capsys.readouterr().out)
    assert code == int(bool(found["problems"]))
    # on a busy machine some worker or link may really be slow
    assert [problem for problem in found["problems"] if not problem.startswith("slow")] == []
    assert len(found["steps"]) == 6
    assert len({(link["from"], link["to"]) for link in found["links"]}) == 30
    assert all(link["latency_s"] > 0 and link["up_mbit_s"] > 0 for link in found["links"])
    assert {len(each) for link in found["links"] for each in link["by_size"]} == {3}  # bytes, up, down
    assert len({link["from"] for link in found["at_once"]} | {link["to"] for link in found["at_once"]}) == 6
    cluster = yaml.safe_load(file.read_text())["cluster"]
    assert max(cluster["speed"]) == 1.0
    simulated = run(Experiment(cluster=cluster, stop={"updates": 3}, strategy="bsp"))
    assert simulated.meta["num_workers"] == 6


def test_what_would_go_wrong_is_said(scheduler: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "cluster={workers: 20}", "--set", "strategy=bsp"]
    assert main(["doctor", *settings, "--scheduler", scheduler]) == 1
    assert (
        "would go wrong: threads: a run of this experiment needs 22, and 6 are free"
        in capsys.readouterr().out
    )
